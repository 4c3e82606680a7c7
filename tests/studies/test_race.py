"""Races: the table, the sentences, and what is written."""

import math

import numpy as np
import pytest

import nowait as nw
from names import plain
from nowait.studies.entrants import ADAPTIVE, CONSTANT, MINIBATCH, best_of, checked_entrants, tune
from nowait.studies.findings import findings, rows_of
from nowait.studies.race import folder_names

PROBLEM = nw.problems.LeastSquares.random(samples=300, dimension=10, noise=0.01, batch_size=4, seed=0)
UNEQUAL = nw.speeds.Fixed([1.0, 1.0, 2.0, 15.0])


@pytest.fixture(scope="module")
def a_race():
    said = []
    found = nw.race(
        PROBLEM, engine="simulate", speeds=UNEQUAL, gradients=1_500, seeds=[0, 1], tell=said.append, progress=False
    )
    return found, said


def test_every_method_gets_the_same_time(a_race):
    found, _ = a_race
    assert list(found.runs) == [MINIBATCH, CONSTANT, ADAPTIVE]
    assert {len(runs) for runs in found.runs.values()} == {2}
    for row in found.rows:
        assert row.seconds == pytest.approx(found.seconds, rel=0.05)
    minibatch, constant, adaptive = found.rows
    assert minibatch.steps == pytest.approx(found.seconds / 15.0, abs=1)
    assert constant.steps == adaptive.steps == adaptive.gradients > 20 * minibatch.steps


def test_the_speedup_is_predicted_and_measured(a_race):
    found, _ = a_race
    minibatch, *others = found.rows
    assert (minibatch.predicted, minibatch.measured) == (None, None)
    for row in others:
        assert row.predicted == found.speedup.speedup
        assert row.measured == pytest.approx(row.predicted, rel=0.7)
        assert row.seconds_to_first < minibatch.seconds_to_first


def test_every_stage_is_told_with_grid_and_winner(a_race):
    found, said = a_race
    assert "4 workers, 1 to 15 s per gradient" in said[0]
    for words, (name, tuning) in zip(said[1:], found.tunings.items(), strict=True):
        assert words.startswith(f"{name}: of the stepsizes ")
        assert f"the best is {tuning.best:.3g}" in words


def test_the_findings_name_steps_speedup_and_gradients(a_race):
    found, _ = a_race
    first, second, third = found.findings[:3]
    assert "of virtual time Minibatch SGD made" in first
    assert "times as fast (s_max/HM of the workers' speeds promises" in second
    assert "After the same" in third


def test_everything_is_saved(a_race, tmp_path):
    found, _ = a_race
    folder = found.save(tmp_path / "race")
    names = {path.name for path in folder.iterdir()}
    assert {"report.html", "race.png", "race.svg", "config.json", "minibatch-sgd-seed-0"} <= names
    assert nw.load(folder / "minibatch-sgd-seed-1").stats.steps > 0


def test_methods_with_their_own_stepsize_are_not_tuned():
    own = {"mine": nw.AsynchronousSGD(nw.Constant(0.05)), "tuned": lambda size: nw.MinibatchSGD(nw.Constant(size))}
    found = nw.race(PROBLEM, own, engine="simulate", speeds=UNEQUAL, gradients=300)
    assert list(found.tunings) == ["tuned"]
    assert found.runs["mine"][0].config["method"]["stepsize"]["value"] == 0.05


def test_a_race_of_real_workers():
    speeds = nw.speeds.Fixed([0.002, 0.002, 0.02])
    found = nw.race(PROBLEM, workers=3, speeds=speeds, seconds=0.4, probe_seconds=0.3, progress=False)
    assert all(runs[0].stats.way == "processes" for runs in found.runs.values())
    assert found.speedup.seconds[2] > 3 * found.speedup.seconds[0]
    assert found.rows[0].steps < found.rows[2].steps
    assert "wall-clock time" in found.findings[0]


def a_run(method, seconds=300.0, problem=PROBLEM):
    return nw.simulate(problem, method, nw.speeds.Fixed([1.0] * 4), seconds=seconds, seed=0)


def test_a_race_that_minibatch_sgd_wins_says_so():
    """Equal workers; the asynchronous stepsize is far too small."""
    runs = {
        "Minibatch SGD": [a_run(nw.MinibatchSGD(nw.Constant(2.0)))],
        "slow": [a_run(nw.AsynchronousSGD(nw.Constant(1e-4)))],
    }
    gain = nw.theory.speedup([1.0] * 4)
    rows = rows_of(runs, 0.0, gain)
    assert rows[1].seconds_to_first == math.inf
    said = findings(rows, runs, gain, "simulate")
    assert said[1].startswith("No other method reached the loss that Minibatch SGD ends with")
    assert "per gradient Minibatch SGD is ahead. Its gradients are all fresh" in said[2]
    assert rows[1].measured is None


def test_a_method_that_diverges_is_a_result():
    runs = {
        "Minibatch SGD": [a_run(nw.MinibatchSGD(nw.Constant(2.0)))],
        "wild": [a_run(nw.AsynchronousSGD(nw.Constant(1e6)))],
    }
    gain = nw.theory.speedup([1.0] * 4)
    rows = rows_of(runs, 0.0, gain)
    assert rows[1].diverged
    assert findings(rows, runs, gain, "simulate") == [
        "Only Minibatch SGD ended below the loss it began with.",
        "wild diverged: its stepsize is too large for these workers.",
    ]


def test_a_first_method_that_went_astray_is_no_yardstick():
    runs = {
        "wild": [a_run(nw.AsynchronousSGD(nw.Constant(1e6)))],
        "Minibatch SGD": [a_run(nw.MinibatchSGD(nw.Constant(2.0)))],
    }
    gain = nw.theory.speedup([1.0] * 4)
    said = findings(rows_of(runs, 0.0, gain), runs, gain, "simulate")
    assert said[0] == "wild ended above the loss it began with, so there is nothing to compare the others with."


def test_a_method_that_ends_above_its_start_is_not_praised():
    late = a_run(nw.AsynchronousSGD(nw.Constant(0.2)))
    late.history.loss[-1] = 1e9
    runs = {"Minibatch SGD": [a_run(nw.MinibatchSGD(nw.Constant(2.0)))], "late": [late]}
    gain = nw.theory.speedup([1.0] * 4)
    said = findings(rows_of(runs, 0.0, gain), runs, gain, "simulate")
    assert (
        said[-1] == "late ended at a loss of 1e+09, above where it began: its stepsize is too large for these workers."
    )
    assert not any("times as fast" in sentence for sentence in said)


def test_a_first_method_without_a_step_is_no_yardstick():
    slow = nw.simulate(PROBLEM, nw.MinibatchSGD(nw.Constant(1.0)), nw.speeds.Fixed([1.0, 900.0]), seconds=50.0)
    runs = {"Minibatch SGD": [slow], "other": [a_run(nw.AsynchronousSGD(nw.Constant(0.1)))]}
    gain = nw.theory.speedup([1.0, 900.0])
    assert "made no step in the time of the race" in findings(rows_of(runs, 0.0, gain), runs, gain, "simulate")[0]


def test_the_formula_is_about_minibatch_sgd_and_what_applies_gradients_at_once():
    runs = {
        "first": [a_run(nw.AsynchronousSGD(nw.Constant(0.2)))],
        "second": [a_run(nw.AsynchronousSGD(nw.Constant(0.1)))],
    }
    assert [row.predicted for row in rows_of(runs, 0.0, nw.theory.speedup([1.0] * 4))] == [None, None]


def test_a_method_that_makes_no_step_is_not_tuned():
    [entrant] = checked_entrants({"waits": lambda size: nw.MinibatchSGD(nw.Constant(size))})
    tuning = tune(PROBLEM, entrant, nw.speeds.Fixed([1.0, 900.0]), 1.0, 50.0)
    assert best_of(tuning) == tuning.stepsizes[len(tuning.stepsizes) // 2]


def test_every_run_has_a_folder_of_its_own():
    names = folder_names(["A", "a", "***", "x" * 300], [0])
    assert len(set(names.values())) == 4
    assert all(0 < len(name) < 100 for name in names.values())
    assert folder_names(["A"], [3, 4]) == {("A", 3): "a-seed-3", ("A", 4): "a-seed-4"}


class Negative:
    """Losses below zero, and no known minimum."""

    dimension = 1

    def initial(self):
        return np.ones(1)

    def gradient(self, point, sample):
        return point + 0.01 * sample.normals(1)

    def loss(self, point):
        return float(0.5 * point @ point - 100)


def test_an_unknown_minimum_is_not_zero(tmp_path):
    found = nw.race(Negative(), engine="simulate", speeds=UNEQUAL, gradients=300, folder=tmp_path / "race")
    assert found.minimum is None
    assert all(math.isnan(row.error) for row in found.rows)
    assert found.shown_from < -100
    assert found.problem == "Negative"
    assert (tmp_path / "race" / "report.html").exists()


def test_an_interrupted_race_keeps_what_there_is(tmp_path):
    calls = []

    def interrupting(size):
        calls.append(size)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return nw.AsynchronousSGD(nw.Constant(size))

    methods = {"first": nw.MinibatchSGD(nw.Constant(0.5)), "second": interrupting}
    found = nw.race(
        PROBLEM, methods, engine="simulate", speeds=UNEQUAL, gradients=300, seeds=[0, 1, 2], folder=tmp_path / "race"
    )
    assert found.interrupted
    assert found.findings[0] == "Interrupted: not every method had its time."
    assert sorted(path.name for path in (tmp_path / "race").glob("first*")) == [
        f"first-seed-{seed}" for seed in range(3)
    ]
    assert (tmp_path / "race" / "report.html").exists()


def test_the_grid_moves_to_where_the_best_stepsize_is():
    [entrant] = checked_entrants({"far": lambda size: nw.MinibatchSGD(nw.Constant(size / 100))})
    tuning = tune(PROBLEM, entrant, UNEQUAL, 1 / PROBLEM.constants().L, 300.0, seed=0)
    assert 0 < tuning.best_place < len(tuning.stepsizes) - 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "odd"}, "engine must be one of processes, simulate, ray, got 'odd'"),
        ({"engine": "simulate"}, "a simulated race needs speeds="),
        ({"methods": {}}, "methods must be named"),
        ({"methods": {"a": 3}}, "method must be a method or a function"),
        ({"methods": {"a": lambda size: 3}}, "must be a nowait Method"),
        ({"seeds": []}, "seeds is empty"),
        ({"engine": "simulate", "speeds": UNEQUAL, "seconds": 1.0, "gradients": 3}, "seconds= or gradients=, not both"),
    ],
    ids=plain,
)
def test_wrong_races_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        nw.race(PROBLEM, **options)
