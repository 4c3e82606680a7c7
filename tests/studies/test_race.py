"""Races: the table, the sentences, and what is written."""

import math

import pytest

import nowait as nw
from nowait.studies.entrants import ADAPTIVE, CONSTANT, MINIBATCH, checked_entrants, tune
from nowait.studies.findings import findings, rows_of

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
    assert "No other method reached the loss that Minibatch SGD ends with." in said
    assert "per gradient Minibatch SGD is ahead" in said[2]


def test_a_method_that_diverges_is_a_result():
    runs = {
        "Minibatch SGD": [a_run(nw.MinibatchSGD(nw.Constant(2.0)))],
        "wild": [a_run(nw.AsynchronousSGD(nw.Constant(1e6)))],
    }
    gain = nw.theory.speedup([1.0] * 4)
    rows = rows_of(runs, 0.0, gain)
    assert rows[1].diverged
    assert "wild diverged" in findings(rows, runs, gain, "simulate")[-1]


def test_the_grid_moves_to_where_the_best_stepsize_is():
    [entrant] = checked_entrants({"far": lambda size: nw.MinibatchSGD(nw.Constant(size / 500))})
    tuning = tune(PROBLEM, entrant, UNEQUAL, 1 / PROBLEM.constants().L, 300.0, seed=0)
    assert 0 < tuning.best_place < len(tuning.stepsizes) - 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "odd"}, "engine must be one of processes, simulate, ray, got 'odd'"),
        ({"engine": "ray"}, "engine='ray' is not there yet"),
        ({"engine": "simulate"}, "a simulated race needs speeds="),
        ({"methods": {}}, "methods must be named"),
        ({"methods": {"a": 3}}, "method must be a method or a function"),
        ({"seeds": []}, "seeds is empty"),
        ({"engine": "simulate", "speeds": UNEQUAL, "seconds": 1.0, "gradients": 3}, "seconds= or gradients=, not both"),
    ],
    ids=str,
)
def test_wrong_races_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        nw.race(PROBLEM, **options)
