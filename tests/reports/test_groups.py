"""How a report groups runs, and how it names the groups."""

import dataclasses

import pytest

import nowait as nw
from nowait.reports.groups import group_names, grouped

PROBLEM = nw.problems.NoisyQuadratic(dimension=4)
SPEEDS = nw.speeds.Fixed([1.0, 2.0])
METHOD = nw.AsynchronousSGD(nw.Constant(0.1))


def a_run(problem=PROBLEM, method=METHOD, speeds=SPEEDS, **options):
    return nw.simulate(problem, method, speeds, **({"steps": 20} | options))


def test_runs_that_differ_in_their_seed_are_one_group_whatever_their_folders_are_called():
    groups = grouped([("x-0", a_run(seed=0)), ("x-1", a_run(seed=1)), ("other", a_run(seed=2))])
    assert {name: len(runs) for name, runs in groups.items()} == {"Asynchronous SGD": 3}


@pytest.mark.parametrize(
    ("other", "names"),
    [
        ({"method": nw.MinibatchSGD(nw.Constant(0.1))}, ["Asynchronous SGD", "Minibatch SGD"]),
        (
            {"method": nw.AsynchronousSGD(nw.Constant(0.100001))},
            ["stepsize 0.1", "stepsize 0.100001"],
        ),
        (
            {"method": nw.AsynchronousSGD(nw.DelayAdaptive(0.1))},
            ["constant stepsize", "delay adaptive stepsize"],
        ),
        (
            {"update": nw.Momentum(0.5)},
            ["update Sgd", "update Momentum"],
        ),
        (
            {"output": nw.UniformAverage()},
            ["output LastIterate", "output UniformAverage"],
        ),
        (
            {"speeds": nw.speeds.Exponential(1.0, workers=2)},
            ["speeds Fixed", "speeds Exponential"],
        ),
        ({"steps": 30}, ["budget.steps 20", "budget.steps 30"]),
        ({"labels": {"trick": True}}, ["labels.trick none", "labels.trick yes"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_runs_that_differ_in_anything_else_are_groups_named_by_it(other, names):
    groups = grouped([("run-seed-0", a_run()), ("run-seed-1", a_run(**other))])
    assert list(groups) == names


def test_runs_on_different_problems_get_no_common_median():
    other = nw.problems.NoisyQuadratic(dimension=5)
    names = list(grouped([("x-seed-0", a_run()), ("x-seed-1", a_run(other, seed=1))]))
    assert names == ["Noisy quadratic, dimension 4", "Noisy quadratic, dimension 5"]


def test_speeds_of_many_workers_are_compared_by_their_values():
    many = [1.0 + 0.01 * worker for worker in range(20)]
    first, second = a_run(speeds=nw.speeds.Fixed(many)), a_run(speeds=nw.speeds.Fixed([*many[1:19], many[0], many[19]]))
    assert len(grouped([("a", first), ("b", second)])) == 2


def test_what_a_command_says_of_its_place_is_not_what_was_run():
    labels = [
        {"command": {"problem": "mine.py:make", "folder": f"runs/{seed}", "seed": seed, "as_json": bool(seed)}}
        for seed in range(2)
    ]
    runs = [(str(seed), a_run(seed=seed, labels=labels[seed])) for seed in range(2)]
    assert len(grouped(runs)) == 1
    same_rules = {"update": "adam:beta1=0.9", "schedule": "constant"}
    written_out = a_run(labels={"command": labels[0]["command"] | same_rules})
    assert len(grouped([*runs, ("2", written_out)])) == 1, "the entries of method and update say what was run"
    elsewhere = a_run(labels={"command": labels[0]["command"] | {"problem": "mine.py:other"}})
    assert len(grouped([*runs, ("2", elsewhere)])) == 2


def test_runs_without_a_configuration_go_by_their_names():
    bare = dataclasses.replace(a_run(), config={})
    assert list(grouped([("first", bare), ("second", bare), ("first", bare)])) == ["first", "second"]


def test_no_more_is_named_than_tells_groups_apart():
    configs = [
        {"method": "A", "problem": "p", "seed count": "1"},
        {"method": "A", "problem": "q", "seed count": "2"},
        {"method": "B", "problem": "q", "seed count": "3"},
    ]
    assert group_names(configs) == ["A, p", "A, q", "B"]


def test_where_a_run_was_made_does_not_make_another_group():
    other = a_run(seed=1)
    elsewhere = dataclasses.replace(other, config=other.config | {"environment": {"machine": {"host": "elsewhere"}}})
    assert list(grouped([("a", a_run()), ("b", elsewhere)])) == ["Asynchronous SGD"]


def test_numbers_in_names_have_no_more_digits_than_tell_them_apart():
    sizes = [0.1 / 3, 0.1 / 3 + 1e-5, 0.2]
    runs = [(str(size), a_run(method=nw.AsynchronousSGD(nw.Constant(size)))) for size in sizes]
    assert list(grouped(runs)) == ["stepsize 0.03333", "stepsize 0.03334", "stepsize 0.2"]
