"""Plans: advice for workers for which the best choice is known, and the sources of speeds."""

import dataclasses
import json
import math
import os

import numpy as np
import pytest
from typer.testing import CliRunner

import nowait as nw
from nowait.cli import app
from nowait.cli.records import speeds_of
from nowait.recording.until import until
from nowait.studies import compare, tuner
from nowait.studies.advice import Advice, Simulated
from nowait.studies.candidates import candidates, smaller_groups
from nowait.studies.smoothing import smoothed
from nowait.studies.sources import Source
from nowait.studies.target import FreshSeeds, Goal, first_place, steady_place
from nowait.studies.tuner import Tuner, best_of

RUNNER = CliRunner()
QUIET = nw.problems.NoisyQuadratic(dimension=20, sigma=0.0, mu=0.01)
NOISY = nw.problems.NoisyQuadratic(dimension=20, sigma=0.3, mu=0.05)


AT_THE_MINIMUM = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1, distance=0.0)


def planned(problem=NOISY, gradients=600, **options):
    return nw.plan(problem, gradients=gradients, seeds=1, progress=False, **options)


def test_with_very_unequal_workers_asynchrony_pays():
    seconds = [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 40.0]
    advice = planned(seconds_per_gradient=seconds)
    assert advice.asynchrony_pays
    assert advice.gain > 5
    assert advice.speedup.speedup == nw.theory.speedup(seconds).speedup
    assert "Asynchrony pays" in str(advice)
    assert advice.simulated == sorted(advice.simulated, key=lambda one: one.seconds)
    assert advice.predicted["Minibatch SGD"] > 2 * advice.predicted["Asynchronous SGD, delay-adaptive"]


def test_with_equal_workers_and_no_noise_synchronous_is_better_and_the_plan_says_so():
    advice = planned(QUIET, seconds_per_gradient=[1.0] * 8)
    assert advice.synchronous_is_better
    assert not advice.asynchrony_pays
    assert "Asynchrony gains time" not in str(advice)
    assert advice.drop == []
    text = str(advice)
    assert "no worker waits, so there is nothing to gain" in text
    assert "Synchronous is better here: Minibatch SGD" in text
    assert "Per gradient asynchrony is worse" in text


def test_workers_with_data_of_their_own_get_other_methods_and_nobody_is_left_out():
    problem = NOISY.split(4, by="sorted", zeta=0.5)
    advice = planned(problem, seconds_per_gradient=[1.0, 1.0, 1.0, 5.0])
    names = {one.method for one in advice.simulated}
    assert "Gradient table" in names
    assert not any(name.startswith("Asynchronous SGD") for name in names)
    assert all(len(one.workers) == 4 for one in advice.simulated)


def test_a_recorded_run_gives_its_speeds():
    speeds = nw.speeds.Fixed([1.0, 2.0, 5.0])
    run = nw.simulate(NOISY, nw.AsynchronousSGD(nw.Constant(0.01)), speeds, steps=200)
    advice = planned(trace=run.trace)
    assert advice.speedup.seconds.tolist() == [1.0, 2.0, 5.0]
    assert "a recorded run: 3 workers, 200 gradients" in advice.source
    given = planned(seconds_per_gradient=[1.0, 2.0, 5.0])
    assert advice.fastest == given.fastest


def test_any_speeds_are_measured_by_their_means():
    advice = planned(speeds=nw.speeds.Exponential([1.0, 4.0]))
    assert advice.speedup.seconds == pytest.approx([1.0, 4.0], rel=0.2)


def test_a_probe_measures_this_machine():
    advice = planned(workers=2, probe_seconds=0.3)
    assert "a probe of this machine for " in advice.source
    assert "2 workers" in advice.source
    assert advice.speedup.seconds.min() > 0


def test_a_probe_slows_workers_and_its_seconds_are_those_of_its_run(monkeypatch):
    asked = []

    def simulated(problem, method, *, workers, seconds, slowdown, seed, **options):
        asked.append((workers, slowdown))
        speeds = nw.speeds.Fixed([seconds / 100 * slowdown.get(worker, 1.0) for worker in range(workers)])
        return nw.simulate(problem, method, speeds, seconds=seconds, seed=seed)

    monkeypatch.setattr("nowait.studies.sources.train", simulated)
    advice = planned(workers=2, probe_seconds=1.0, slowdown={1: 8.0})
    assert set(map(str, asked)) == {"(2, {1: 8.0})"}
    assert advice.speedup.seconds[1] == pytest.approx(8 * advice.speedup.seconds[0])


class Slow:
    """A user's problem, not compiled."""

    dimension = 2

    def initial(self):
        return np.zeros(2)

    def gradient(self, point, sample):
        return point - 1.0 + 0.1 * sample.normals(2)

    def loss(self, point):
        return float(((point - 1.0) ** 2).sum() / 2)


def test_a_problem_of_ones_own_with_a_target_of_ones_own():
    advice = planned(Slow(), gradients=300, seconds_per_gradient=[1.0, 9.0], target_loss=0.1)
    assert advice.target_loss == 0.1
    assert advice.asynchrony_pays


def test_a_target_out_of_reach_is_told():
    advice = planned(seconds_per_gradient=[1.0, 2.0], target_loss=-1.0)
    assert math.isinf(advice.fastest.seconds)
    assert "No method reached the loss -1" in str(advice)
    assert math.isnan(advice.gain)


def test_the_same_question_has_the_same_answer():
    first, second = (planned(seconds_per_gradient=[1.0, 3.0]) for _ in range(2))
    assert first.simulated == second.simulated


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give one of seconds_per_gradient=, speeds=, trace= and workers= .*got none"),
        ({"seconds_per_gradient": [1.0], "workers": 2}, "got seconds_per_gradient and workers"),
        ({"seconds_per_gradient": [1.0, -1.0]}, r"^seconds_per_gradient\[1\] must be a finite number above 0"),
        ({"trace": "run"}, "trace must be a nowait Trace such as run.trace"),
        ({"speeds": [1.0, 2.0]}, "speeds must be a nowait Speeds"),
        ({"seconds_per_gradient": [1.0], "gradients": 5}, "gradients must be an integer of at least 100"),
        ({"seconds_per_gradient": [1.0], "seeds": 0}, "seeds must be an integer of at least 1"),
        ({"seconds_per_gradient": [1.0], "problem": 3}, "problem must have dimension"),
        ({"seconds_per_gradient": [1.0], "target_loss": 1e9, "problem": NOISY, "gradients": 100}, "is reached already"),
        (
            {"seconds_per_gradient": [1.0], "problem": AT_THE_MINIMUM, "gradients": 100},
            "no method gets below the loss",
        ),
        ({"workers": 2}, "a probe measures your problem's gradients: pass the problem"),
        ({"workers": 2, "problem": QUIET, "probe_seconds": 0}, "probe_seconds must be a finite number above 0"),
    ],
    ids=str,
)
def test_wrong_questions_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        nw.plan(**options)


def test_the_fast_groups_that_are_tried():
    assert smaller_groups(nw.theory.speedup([1.0, 1.0, 10.0, 1.0])) == [(0, 1, 3)]
    assert smaller_groups(nw.theory.speedup([1.0] * 4)) == []
    assert smaller_groups(nw.theory.speedup([5.0])) == []
    names = [candidate.name for candidate in candidates(nw.theory.speedup([1.0, 9.0]), heterogeneous=False)]
    assert names[0] == "Minibatch SGD"
    assert names[-1] == "Minibatch SGD, the 1 fastest of 2", "which alone is not asynchronous"


def test_a_method_that_does_not_wait_for_the_slow_uses_all_workers():
    all_candidates = candidates(nw.theory.speedup([1.0, 1.0, 10.0, 1.0]), heterogeneous=False)
    [found] = [one for one in all_candidates if one.name == "m-Synchronous SGD, the first 3 of 4"]
    assert (found.workers, found.kind) == ((0, 1, 2, 3), "rounds")
    assert found.make(0.5) == nw.MSynchronousSGD(nw.Constant(0.5), m=3)


def test_when_a_curve_reaches_a_target():
    times, losses = np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 0.1, 0.01, np.nan])
    steps = 10 * times
    assert until(times, losses, steps, 0.1) == pytest.approx(1.0)
    assert until(times, losses, steps, 10**-1.5) == pytest.approx(1.5)
    assert until(times, losses, steps, 2.0) == 0.0
    assert until(times, losses, steps, 0.001) == math.inf
    assert until(times, np.array([1.0, np.inf, 0.5, 0.1]), steps, 0.5) == 2.0
    assert until(times, losses, times, 0.5) == 1.0, "within one step there is nothing to interpolate"


def test_the_first_stepsize_at_the_target_must_get_there_with_every_seed():
    sweep = nw.sweep(
        NOISY,
        nw.AsynchronousSGD(nw.Constant(1.0)),
        nw.speeds.Fixed([1.0]),
        stepsizes=[0.1, 1e9],
        seeds=[0, 1],
        steps=100,
    )
    times = Goal(0.05).times(sweep)
    assert first_place(times) == 0
    assert 0 < times[0].mean() < 100
    assert np.isinf(times[1]).all()


def test_one_lucky_loss_reaches_no_target():
    losses = np.array([9.0, 8.0, 0.1, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, np.nan])
    assert np.nanmin(smoothed(losses, half_width=1)) == 3.0
    falling = np.arange(20.0, 0.0, -1.0)
    assert smoothed(falling)[:-2].tolist() == falling[:-2].tolist(), "what only decreases stays"


def test_a_stepsize_is_chosen_by_its_neighbours_too_and_for_times_that_scatter_little():
    lucky = np.array([[60.0, 60.0], [50.0, 50.0], [60.0, 60.0], [100.0, 100.0], [40.0, 40.0], [math.inf, math.inf]])
    assert steady_place(lucky, seconds=200.0) == 1
    scattering = np.array([[50.0, 54.0]] * 3 + [[10.0, 92.0]] * 3)
    assert steady_place(scattering, seconds=200.0) in (0, 1)


def simulated(method, workers, kind, seconds, rank=0, scatter=0.0):
    times = (seconds * (1 - scatter), seconds, seconds * (1 + scatter))
    return Simulated(method, workers, kind, 0.1, times, times, (len(workers) * seconds,), rank)


def advice_of(sync, sync_subset, asynchronous, subset, scatter=0.0):
    found = [
        simulated("Minibatch SGD", (0, 1, 2), "synchronous", sync, 0),
        simulated("A", (0, 1, 2), "asynchronous", asynchronous, 1, scatter),
        simulated("Minibatch SGD, the 2 fastest of 3", (0, 1), "synchronous", sync_subset, 2),
        simulated("A, the 2 fastest of 3", (0, 1), "asynchronous", subset, 3),
    ]
    ordered = sorted(found, key=lambda one: one.seconds)
    return Advice("s", "p", nw.theory.speedup([1, 1, 9]), 0.1, 100.0, ordered, {})


@pytest.mark.parametrize(
    ("times", "pays", "better", "drop", "words"),
    [
        (
            (90, 50, 10, 20),
            True,
            False,
            [],
            "with all workers, and reaches the target 5 x sooner",
        ),
        ((90, 10, 10.2, 20), True, False, [], "the 2 fastest of 3 is as fast: leaving out slow workers gains as much"),
        (
            (90, 5, 10, 20),
            False,
            True,
            [2],
            "Synchronous is better here: Minibatch SGD, the 2 fastest of 3 reaches the target 2 x",
        ),
        ((90, 50, 20, 10), True, False, [2], "Asynchrony pays: A, the 2 fastest of 3"),
        (
            (10, 50, 20, 30),
            False,
            True,
            [],
            "better here: Minibatch SGD reaches the target 2 x sooner than A.",
        ),
        (
            (10, 50, 10.1, 30),
            False,
            False,
            [],
            "the times of Minibatch SGD and A differ by less than 5 %",
        ),
        ((math.inf, math.inf, 10, 30), True, False, [], "reaches the target, unlike Minibatch SGD with all workers"),
    ],
    ids=str,
)
def test_the_words_follow_the_numbers(times, pays, better, drop, words):
    advice = advice_of(*times)
    assert (advice.asynchrony_pays, advice.synchronous_is_better, advice.drop) == (pays, better, drop)
    assert words in str(advice)


def timed(method, workers, kind, choosing, times, rank):
    return Simulated(method, workers, kind, 0.1, times, choosing, times, rank)


def unlike_seeds():
    """B is clearly slower than A with the choosing seeds, and not with the reporting seeds; C is slower with both."""
    return [
        timed("A", (0, 1), "asynchronous", (10.0, 10.2, 9.8), (10.0, 11.0, 9.0), 1),
        timed("B", (0, 1), "asynchronous", (11.5, 11.6, 11.4), (10.1, 11.1, 9.1), 2),
        timed("C", (0, 1), "asynchronous", (13.0, 13.1, 12.9), (13.0, 13.1, 12.9), 3),
        timed("Minibatch SGD", (0, 1), "synchronous", (10.6, 10.9, 10.3), (12.0, 13.0, 11.0), 0),
    ]


def test_a_method_that_the_table_shows_to_be_as_fast_is_called_as_good():
    advice = Advice("s", "p", nw.theory.speedup([1, 2]), 0.1, 100.0, unlike_seeds(), {})
    assert [one.method for one in advice.as_good] == ["A", "B"]


def test_the_verdict_does_not_tell_apart_what_is_called_as_good():
    found = [
        timed("Minibatch SGD", (0, 1), "synchronous", (10.0, 11.0, 9.0), (10.0, 10.1, 9.9), 0),
        timed("A", (0, 1), "asynchronous", (10.2, 11.2, 9.2), (12.0, 12.1, 11.9), 1),
    ]
    advice = Advice("s", "p", nw.theory.speedup([1, 2]), 0.1, 100.0, found, {})
    assert [one.method for one in advice.as_good] == ["Minibatch SGD", "A"]
    assert not advice.synchronous_is_better
    assert "no clear difference: Minibatch SGD and A are 1.2 x apart" in str(advice)


def test_workers_whose_times_are_random_and_alike_are_not_called_slow():
    advice = nw.plan(speeds=nw.speeds.Pareto(1.0, 1.5, workers=6), gradients=500, seeds=1, progress=False)
    assert advice.speedup.worth_removing
    assert advice.removable == []
    assert "M/K" not in str(advice)


def test_the_advice_does_not_claim_a_simulation_that_was_not_made():
    advice = nw.plan(seconds_per_gradient=[1.0, 1.05, 1.1], gradients=500, seeds=1, progress=False)
    assert "No simulation left out workers, because no gap between their speeds is wide enough." in str(advice)


SMALL = ["plan", "--gradients", "2000", "--seeds", "1"]


def test_the_command_prints_the_tables_and_the_advice():
    result = RUNNER.invoke(app, [*SMALL, "--seconds-per-gradient", "1,1,1,10"], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    for words in ("Ringmaster ASGD, delays to 8", "Predicted by the rates", "7.75 x", "Use ", "fresh seeds"):
        assert words in result.output


def test_the_command_plans_from_a_recorded_run_and_prints_json(tmp_path):
    method = nw.AsynchronousSGD(nw.Constant(0.01))
    nw.simulate(NOISY, method, nw.speeds.Fixed([1.0, 20.0]), steps=100).save(tmp_path / "run")
    result = RUNNER.invoke(app, [*SMALL, "--trace", str(tmp_path / "run"), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["asynchrony_pays"] is True
    assert found["formulas"]["speedup"] == pytest.approx(10.5)
    assert found["advice"]


MINE = """
import numpy as np

class Mine:
    dimension = 2
    def initial(self): return np.zeros(2)
    def gradient(self, point, sample): return point - 1.0
    def loss(self, point): return float(((point - 1.0) ** 2).sum())

def make(): return Mine()
"""


def test_the_command_takes_a_function_of_the_users_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*os.sys.path])
    (tmp_path / "my_own_problem.py").write_text(MINE)
    for place in ("my_own_problem.py:make", "my_own_problem:make"):
        result = RUNNER.invoke(
            app, ["plan", "--gradients", "100", "--seeds", "1", "--seconds", "1,5", "--problem", place]
        )
        assert result.exit_code == 0, result.output
        assert "Mine" in result.output


def test_a_difference_within_two_standard_errors_is_none():
    steady, later = (Simulated("A", (0,), "own", 0.1, times, times, (1.0,)) for times in ((9.0, 11.0), (11.0, 13.0)))
    assert steady.clearly_before(later), "the difference is the same with every seed"
    crossing = Simulated("B", (0,), "own", 0.1, (13.0, 10.0), (13.0, 10.0), (1.0,))
    assert not steady.clearly_before(crossing)


def test_methods_that_cannot_be_told_apart_are_all_named_and_the_simplest_first():
    advice = advice_of(90, 10.2, 10.4, 30)
    assert [one.method for one in advice.as_good] == ["A", "Minibatch SGD, the 2 fastest of 3"]
    assert advice.fastest.method == "Minibatch SGD, the 2 fastest of 3"
    assert advice.choice.method == "A"
    assert "Any of these is as good" in str(advice)
    assert "A is listed first because it is the simplest with all workers." in str(advice)
    assert "Any of these" not in str(advice_of(90, 50, 10, 30))
    scattered = advice_of(90, 10, 11.5, 30, scatter=0.4)
    assert [one.method for one in scattered.as_good] == ["Minibatch SGD, the 2 fastest of 3"], "15 % is not as good"


def test_methods_are_chosen_with_some_seeds_and_times_are_those_with_others():
    one = simulated("Minibatch SGD", (0, 1), "synchronous", 10.0)
    other = dataclasses.replace(simulated("A", (0, 1), "asynchronous", 12.0, 1), choosing_times=(8.0, 8.0, 8.0))
    advice = Advice("s", "p", nw.theory.speedup([1, 1]), 0.1, 100.0, [one, other], {})
    assert advice.choice is other
    assert advice.choice.seconds == 12.0
    assert advice.gain == pytest.approx(10 / 12)
    assert advice.gain_range == pytest.approx((10 / 12, 10 / 12))


def test_the_seeds_of_tuning_comparing_and_reporting_are_different(monkeypatch):
    used = []
    original = tuner.sweep
    monkeypatch.setattr(tuner, "sweep", lambda *a, **k: used.append(k["seeds"]) or original(*a, **k))
    monkeypatch.setattr(compare, "fresh_seeds", lambda *_: FreshSeeds((70, 71), (80, 81)))
    advice = nw.plan(NOISY, seconds_per_gradient=[1.0, 3.0], gradients=300, seeds=[5], progress=False)
    tuning = {seed for seeds in used for seed in seeds} - {70, 71, 80, 81}
    assert 5 in tuning
    assert tuning <= {5, 6, 7, 8}
    assert len(advice.fastest.times) == len(advice.fastest.choosing_times) == 2


def test_a_remark_on_one_of_several_workers_is_not_about_all_of_them():
    advice = dataclasses.replace(advice_of(90, 50, 10, 20), speedup=nw.theory.speedup([1, 1, 1, 20, 30]))
    advice.simulated[-1] = simulated("Minibatch SGD", (0, 1, 2, 3, 4), "synchronous", 90.0)
    advice.simulated[0] = simulated("A", (0, 1, 2, 3, 4), "asynchronous", 10.0)
    text = str(advice)
    assert "M/K smaller if it is one of 3, 4; this says nothing about leaving out several" in text


def test_a_worker_that_never_delivers_is_slow_in_the_simulation_too():
    speeds = nw.speeds.Fixed([1.0, 1.0, 1e5])
    trace = nw.simulate(NOISY, nw.AsynchronousSGD(nw.Constant(0.05)), speeds, steps=200).trace
    advice = planned(trace=trace)
    assert advice.speedup.seconds.tolist() == [1.0, 1.0, 100.0]
    assert "1 delivered nothing" in advice.source
    assert advice.gain > 5


def test_workers_of_a_trace_are_counted_from_zero_and_later_ones_too():
    faults = nw.speeds.Faults([(20.0, "join", 1)])
    speeds = nw.speeds.Fixed([1.0, 2.0, 5.0, 3.0])
    trace = nw.simulate(NOISY, nw.AsynchronousSGD(nw.Constant(0.05)), speeds, steps=200, faults=faults).trace
    assert Source.of_trace(trace).seconds.tolist() == [1.0, 2.0, 5.0, 3.0]
    gone = nw.speeds.Faults([(1e6, "join", 1)])
    trace = nw.simulate(NOISY, nw.AsynchronousSGD(nw.Constant(0.05)), speeds, steps=200, faults=gone).trace
    source = Source.of_trace(trace)
    assert source.seconds.tolist() == [1.0, 5.0, 3.0]
    assert "workers 0, 2, 3 are counted from 0 here" in source.words


def test_a_hopeless_minibatch_does_not_set_the_target():
    advice = planned(seconds_per_gradient=[1.0, 1.0, 1.0, 1e6], gradients=500)
    assert math.isinf(advice.minibatch.seconds)
    assert advice.gain == math.inf
    assert advice.target_loss < 0.9 * NOISY.loss(NOISY.initial())


def test_losses_without_curvature_are_planned_for():
    features = np.random.default_rng(0).normal(size=(60, 3))
    problem = nw.problems.AbsoluteLoss(features, features @ np.ones(3))
    assert math.isfinite(planned(problem, seconds_per_gradient=[1.0, 2.0], gradients=300).fastest.seconds)


def test_times_are_never_shorter_than_a_gradient():
    exact = nw.problems.NoisyQuadratic(dimension=3, L=1.0, mu=1.0)
    advice = planned(exact, seconds_per_gradient=[1.0, 2.0], gradients=300)
    assert min(one.seconds for one in advice.simulated) >= 1.0
    assert min(one.gradients for one in advice.simulated) >= 1


def test_where_times_scatter_the_formula_says_what_waiting_costs():
    advice = planned(speeds=nw.speeds.Exponential(1.0, workers=8), gradients=400)
    assert 2.0 < advice.round_seconds < 3.5, "the mean of the largest of eight is 2.7"
    assert "because times vary, waiting costs" in str(advice)
    assert "By formula the workers are equal" not in str(advice)


def test_a_difference_that_may_be_chance_is_called_so():
    advice = advice_of(12, 50, 10, 30, scatter=0.9)
    assert "are 1.2 x apart, which may be chance" in str(advice)


def test_workers_are_separated_only_by_a_gap_that_is_significant():
    gain = nw.theory.speedup([1.0, 1.0, 1.3, 1.3])
    assert smaller_groups(gain) == [(0, 1)]
    assert smaller_groups(gain, np.full(4, 0.1)) == []
    assert smaller_groups(nw.theory.speedup([1.0, 1.05, 1.1, 1.15])) == []
    for speeds in (nw.speeds.Pareto(1.0, shape=1.5, workers=16), nw.speeds.LogNormal([1.0] * 16, sigma=1.0)):
        source = Source.of_speeds(speeds, seed=0)
        assert smaller_groups(nw.theory.speedup(source.seconds.tolist()), source.errors) == []


def test_methods_of_ones_own_are_compared_with_the_others():
    mine = {
        "mine": lambda size: nw.AsynchronousSGD(nw.Constant(size)),
        "as it is": nw.AsynchronousSGD(nw.Constant(0.02)),
    }
    advice = planned(seconds_per_gradient=[1.0, 3.0], methods=mine)
    found = {one.method: one for one in advice.simulated}
    assert found["mine"].times == found["Asynchronous SGD, constant"].times
    assert found["mine"].kind == "own"
    assert "mine" not in {advice.choice.method, advice.best_asynchronous.method}, "simple methods are listed first"
    with pytest.raises(ValueError, match="methods has 'Minibatch SGD', which the plan simulates anyway"):
        planned(seconds_per_gradient=[1.0], methods={"Minibatch SGD": mine["mine"]})


OWN_FILE = """
import nowait as nw

fleet = nw.speeds.Exponential([1.0, 4.0])
wrong = 3

def make():
    return fleet

class Mine(nw.Method):
    def __init__(self, stepsize):
        self.stepsize = nw.Constant(stepsize)

    def on_arrival(self, server, arrival):
        server.apply(arrival, self.stepsize.at(arrival, server))
        server.assign(arrival.worker)
"""


def test_the_command_takes_methods_and_speeds_of_the_users_file(tmp_path):
    (tmp_path / "own.py").write_text(OWN_FILE)
    fast = ["plan", "--gradients", "200", "--seeds", "1", "--json"]
    method = ["--method", f"{tmp_path}/own.py:Mine"]
    found = RUNNER.invoke(app, [*fast, *method, "--speeds", f"{tmp_path}/own.py:fleet"])
    assert found.exit_code == 0, found.output
    result = json.loads(found.output)
    assert f"{tmp_path}/own.py:Mine" in {one["method"] for one in result["simulated"]}
    assert "Exponential(means=[1.0, 4.0]" in result["source"]
    assert all(one["low"] <= one["seconds"] <= one["high"] for one in result["simulated"])
    assert result["choice"] in result["as_good"]
    refused = RUNNER.invoke(app, [*fast, "--speeds", f"{tmp_path}/own.py:wrong"])
    assert refused.exit_code == 2
    assert "must be a nowait Speeds" in refused.output.replace("\n", " ")


def test_a_function_of_the_users_file_returns_speeds(tmp_path):
    (tmp_path / "own.py").write_text(OWN_FILE)
    assert speeds_of(f"{tmp_path}/own.py:make", "--speeds") == nw.speeds.Exponential([1.0, 4.0])


def test_the_rates_for_convex_functions_are_for_convex_functions():
    labels = np.where(np.arange(40) % 3 > 0, 1, 0)
    features = np.random.default_rng(0).normal(size=(40, 3))
    problem = nw.problems.NonconvexLogisticRegression(features, labels)
    assert planned(problem, seconds_per_gradient=[1.0, 2.0], gradients=200).predicted == {}


def test_an_auto_in_a_plan_gets_the_stepsize_that_is_best_for_minibatches():
    methods = {"mine": lambda size: nw.Auto(nw.Constant(size), momentum=0.0)}
    problem = nw.problems.LeastSquares.random(samples=200, dimension=10, noise=0.1, seed=0)
    seconds, made = [1.0, 1.0, 3.0], []
    original = Tuner.tune

    def tune(tuner, make, *others, **options):
        sweep = original(tuner, make, *others, **options)
        made.append((make(1.0), best_of(sweep)))
        return sweep

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tuner, "tune", tune)
        advice = nw.plan(problem, seconds_per_gradient=seconds, methods=methods, gradients=600, seeds=1, progress=False)
    (mine,) = [one for one in advice.simulated if one.method == "mine"]
    assert (nw.MinibatchSGD(1.0), mine.stepsize) in made
    assert [size for method, size in made if isinstance(method, nw.Auto)] == [mine.stepsize]


@pytest.mark.parametrize(
    "method",
    [
        lambda size: (nw.MinibatchSGD(size), nw.Nesterov(0.9)),
        lambda size, momentum: nw.OrderedMomentum(size, beta=momentum),
    ],
)
def test_a_plan_refuses_methods_with_momentum_to_tune_or_an_update(method):
    with pytest.raises(ValueError, match=r"methods\['mine'\] has a momentum or an update of its own, but a plan"):
        nw.plan(seconds_per_gradient=[1.0, 2.0], methods={"mine": method}, gradients=100, progress=False)
