"""What the public verbs have in common: the meaning of ``seeds``, and a split that does not fit the workers."""

import inspect
import logging
import sys

import numpy as np
import pytest

import nowait as nw
from nowait.api.sweep import checked_seeds

PROBLEM = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1)
SPEEDS = nw.speeds.Fixed([1.0, 2.0])
METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(0.1))
SMALL = {"progress": False}


def swept(seeds):
    return nw.sweep(PROBLEM, METHOD, SPEEDS, stepsizes=[0.1], seeds=seeds, steps=20, **SMALL).seeds.tolist()


def raced(seeds):
    return nw.race(
        PROBLEM, {"one": METHOD}, engine="simulate", speeds=SPEEDS, gradients=100, seeds=seeds, **SMALL
    ).config["seeds"]


class KnownError(Exception):
    """Ends a study whose seeds are known."""


def planned(seeds, monkeypatch, **options):
    used = []

    def tuner(*arguments, **options):
        used.extend(arguments[4])
        raise KnownError

    monkeypatch.setattr(inspect.getmodule(nw.plan), "Tuner", tuner)
    with pytest.raises(KnownError):
        nw.plan(PROBLEM, seconds_per_gradient=[1.0, 2.0], gradients=100, seeds=seeds, **options, **SMALL)
    return used


def certified(seeds, monkeypatch, **options):
    used = []
    module = sys.modules["nowait.studies.certified"]
    original = module.simulate
    monkeypatch.setattr(
        module, "simulate", lambda *arguments, **named: used.append(named["seed"]) or original(*arguments, **named)
    )
    nw.certify(settings=["convex"], patterns=["equal"], steps=20, seeds=seeds, **options, **SMALL)
    return sorted(set(used))


def test_a_number_of_seeds_means_the_first_ones_everywhere(monkeypatch):
    assert swept(2) == raced(2) == planned(2, monkeypatch) == certified(2, monkeypatch) == [0, 1]


def test_the_seeds_themselves_are_taken_everywhere(monkeypatch):
    assert swept([3, 7]) == raced((3, 7)) == planned([3, 7], monkeypatch) == certified([3, 7], monkeypatch) == [3, 7]


def test_where_there_is_a_first_seed_a_number_counts_from_it(monkeypatch):
    assert planned(2, monkeypatch, seed=5) == certified(2, monkeypatch, seed=5) == [5, 6]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "seeds must be an integer of at least 1, got 0"),
        ((1.5,), "seeds must be an integer of at least 1, got 1.5"),
        ((True,), "seeds must be an integer of at least 1, got True"),
        ((None,), "seeds must be an integer of at least 1, got None"),
        (([],), "seeds is empty"),
        (("12",), "seeds must be a list of numbers, got '12'"),
        (([1, 1],), "seeds has one of them twice"),
        (([1, -1],), "seed must be an integer of at least 0, got -1"),
        (([1, 2], 5), "give seed=5 with a number of seeds, or the seeds themselves, not both"),
    ],
)
def test_bad_seeds(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        checked_seeds(*arguments)


LARGE = 2**63


@pytest.mark.parametrize("seed", [LARGE, 2**64 + 3, 10**5000], ids=["2^63", "above 2^64", "5001 digits"])
@pytest.mark.parametrize(
    "call",
    [
        lambda seed: nw.simulate(SPLIT, METHOD, nw.speeds.Fixed([1.0]), steps=2, seed=seed, **SMALL),
        lambda seed: nw.train(SPLIT, METHOD, workers=1, steps=2, seed=seed, **SMALL),
        lambda seed: nw.replay(TRACE.trace, SPLIT, METHOD, seed=seed, **SMALL),
        lambda seed: nw.sweep(SPLIT, METHOD, nw.speeds.Fixed([1.0]), stepsizes=[0.1], steps=2, seeds=[seed], **SMALL),
        lambda seed: checked_seeds(2, first=seed - 1),
    ],
    ids=["simulate", "train", "replay", "sweep", "several"],
)
def test_a_seed_that_would_repeat_the_run_of_a_smaller_one_is_refused_everywhere(call, seed):
    with pytest.raises(ValueError, match=r"seed must be below 2\*\*63, got"):
        call(seed)


@pytest.mark.parametrize("seed", [-1, 1.0, True, None, LARGE, "0"])
def test_seeds_of_splits(seed):
    rows = nw.problems.LeastSquares.random(samples=8, dimension=2, seed=0)
    with pytest.raises(ValueError, match=r"seed must be (an integer of at least 0|below 2\*\*63), got"):
        rows.split(2, seed=seed)


def test_too_many_seeds():
    for number in (10**7, 2**63, 10**400):
        with pytest.raises(ValueError, match=r"seeds must be (at most 1,048,576|below 2\*\*63), got"):
            checked_seeds(number)


def test_numpy_numbers_are_seeds():
    assert checked_seeds(np.int64(2)) == [0, 1]
    assert checked_seeds(np.array([4, 2])) == [4, 2]


SPLIT = nw.problems.NoisyQuadratic(dimension=4, sigma=0.1, mu=0.1).split(3, by="sorted", zeta=0.5)
TRACE = nw.simulate(SPLIT, METHOD, nw.speeds.Fixed([1.0] * 3), steps=2, **SMALL)
VERBS = {
    "simulate": lambda workers: nw.simulate(SPLIT, METHOD, nw.speeds.Fixed([1.0] * workers), steps=20, **SMALL),
    "train": lambda workers: nw.train(SPLIT, METHOD, workers=workers, steps=20, **SMALL),
    "sweep": lambda workers: nw.sweep(
        SPLIT, METHOD, nw.speeds.Fixed([1.0] * workers), stepsizes=[0.1, 0.2], steps=20, **SMALL
    ),
    "plan": lambda workers: nw.plan(SPLIT, seconds_per_gradient=[1.0] * workers, gradients=100, seeds=1, **SMALL),
    "race": lambda workers: nw.race(
        SPLIT, {"one": METHOD}, engine="simulate", speeds=nw.speeds.Fixed([1.0] * workers), gradients=100, **SMALL
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_split_that_does_not_fit_the_workers_is_the_same_warning_everywhere(verb, caplog):
    with caplog.at_level(logging.WARNING, logger="nowait"):
        VERBS[verb](2)
        VERBS[verb](3)
        VERBS[verb](4)
    assert [record.getMessage() for record in caplog.records if "split" in record.getMessage()] == [
        "the problem is split for 3 workers, but there are 2: shards without a worker are not used",
        "the problem is split for 3 workers, but there are 4: some workers share a shard",
    ]


VERBS_WITH_A_BUDGET = [nw.simulate, nw.train, nw.sweep, nw.race]


def test_seconds_is_a_budget_in_every_verb():
    for verb in VERBS_WITH_A_BUDGET:
        assert inspect.signature(verb).parameters["seconds"].annotation == "float | None"
    assert "seconds" not in inspect.signature(nw.plan).parameters


def test_an_argument_that_was_renamed_says_how():
    with pytest.raises(TypeError, match=r"argument 'seconds': it is seconds_per_gradient= now"):
        nw.plan(seconds=[1.0, 1.0])
    with pytest.raises(TypeError, match=r"plan\(\) got an unexpected keyword argument 'sconds'$"):
        nw.plan(sconds=[1.0, 1.0])
