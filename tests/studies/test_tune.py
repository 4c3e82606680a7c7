"""Tuning: which stepsizes are tried, what is found, and what is said about it."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import nowait as nw
from nowait.cli import app
from nowait.pytorch import TorchOptimizer, TorchProblem
from nowait.studies.search import DIVERGED, REACHED, UNFINISHED, best_size, next_size
from nowait.studies.tune import size_of

PROBLEM = nw.problems.LeastSquares.random(samples=200, dimension=10, seed=0)
SPEEDS = nw.speeds.Fixed([1, 1, 9])
RUNNER = CliRunner()


def tuned(first=1.0, method=None, **options):
    method = nw.AsynchronousSGD(nw.DelayAdaptive(first)) if method is None else method
    return nw.tune(PROBLEM, method, **{"speeds": SPEEDS, "steps": 300, "progress": False} | options)


def search(score, start, trials):
    """Return the stepsizes that a search tries, and the best, if ``score`` is what trials find."""
    scores = {}
    for _ in range(trials):
        size = next_size(scores, start)
        scores[size] = score(size)
    return list(scores), best_size(scores)


def parabola(size):
    return (DIVERGED, 0.0) if size > 3 else (UNFINISHED, math.log(size / 0.5) ** 2)


@pytest.mark.parametrize("start", [0.01, 0.5, 1.0, 100.0])
def test_a_search_gets_near_the_minimum_from_either_side(start):
    tried, best = search(parabola, start, 9)
    assert len(set(tried)) == 9
    assert 0.5 / 1.5 < best < 0.5 * 1.5


def test_a_search_goes_down_while_trials_diverge_and_beyond_the_end_that_is_best():
    assert search(lambda _: (DIVERGED, 0.0), 1.0, 4) == ([1.0, 0.25, 0.0625, 0.015625], None)
    assert search(lambda size: (UNFINISHED, -size), 1.0, 4) == ([1.0, 4.0, 16.0, 64.0], 64.0)
    assert search(lambda size: (UNFINISHED, size), 1.0, 4) == ([1.0, 4.0, 0.25, 0.0625], 0.0625)


def test_between_two_equal_gaps_a_search_takes_the_side_of_the_better_neighbour():
    middle = {1.0: (UNFINISHED, 1.0), 4.0: (UNFINISHED, 2.0), 0.25: (UNFINISHED, 3.0)}
    assert next_size(middle, 1.0) == 2.0
    assert next_size(middle | {4.0: (DIVERGED, 0.0)}, 1.0) == 0.5
    assert next_size(middle | {2.0: (UNFINISHED, 1.5)}, 1.0) == 0.5


def test_a_target_reached_is_better_than_any_value():
    assert best_size({1.0: (REACHED, 50.0), 2.0: (UNFINISHED, 0.1), 4.0: (REACHED, 60.0)}) == 1.0


def test_the_best_stepsize_is_found_and_is_that_of_the_method():
    said = []
    found = tuned(tell=said.append)
    values = {trial.stepsize: trial.value for trial in found.trials}
    assert next(iter(values)) == 1.0
    assert len(said) == len(values) == 6
    assert found.stepsize == min(values, key=values.get) == found.method.stepsize.gamma
    assert found.best.value == found.best.history.loss[-1]
    assert (found.advice, found.diverged, found.improved) == ("", False, True)
    assert said[0] == f"trial 1, stepsize 1: loss {values[1.0]:.4g}"


def test_a_trial_is_the_run_with_its_stepsize():
    [trial] = tuned(trials=1, seed=3).trials
    run = nw.simulate(PROBLEM, nw.AsynchronousSGD(nw.DelayAdaptive(1.0)), SPEEDS, steps=300, seed=3)
    assert trial.value == run.history.loss[-1]
    assert trial.mean_delay == run.trace.delay.mean()
    assert (trial.steps, trial.seconds) == (300, run.stats.seconds)


def test_tuning_twice_finds_the_same():
    first, second = (tuned(trials=4) for _ in range(2))
    assert [(one.stepsize, one.value) for one in first.trials] == [(one.stepsize, one.value) for one in second.trials]


def test_stepsizes_that_are_too_large_are_left_behind(caplog):
    found = tuned(1_000.0)
    assert found.trials[0].diverged
    assert math.isnan(found.trials[0].value)
    assert found.stepsize < 1.0
    assert "is the smallest that was tried" in found.advice
    assert found.advice in caplog.text
    assert "Try a stepsize ten times smaller" not in caplog.text


def test_if_every_trial_diverges_the_result_says_so():
    found = tuned(1e9, trials=2)
    assert found.diverged
    assert found.advice.startswith("every trial diverged: try again with start=")
    assert "every trial diverged" in repr(found)


def test_too_small_stepsizes_are_reported_as_the_end_of_the_range():
    assert "is the largest that was tried" in tuned(1e-6, trials=3).advice


def test_trials_that_reach_the_target_are_compared_by_their_time():
    found = tuned(0.1, target_loss=0.01, trials=5, evaluate_every=5)
    times = {trial.stepsize: trial.seconds_to_target for trial in found.trials}
    assert found.stepsize == min(times, key=times.get)
    assert math.isfinite(times[found.stepsize])


def test_tunings_of_several_methods_are_compared_by_their_scores():
    methods = [nw.MinibatchSGD(0.5), nw.MSynchronousSGD(0.5, m=2)]
    slow, fast = (tuned(method=method, target_loss=0.01, trials=2, evaluate_every=1) for method in methods)
    assert fast.score == (REACHED, fast.best.seconds_to_target)
    assert fast.score < slow.score, "a round without the slow worker takes a ninth of the time"


def test_a_function_of_the_stepsize_starts_at_half_of_1_over_l_times_m():
    found = tuned(method=lambda size: nw.AsynchronousSGD(nw.Constant(size)), trials=1)
    assert found.stepsize == pytest.approx(0.5 / (3 * PROBLEM.constants().L))
    rounds = tuned(method=lambda size: nw.MinibatchSGD(nw.Constant(size)), trials=1)
    assert rounds.stepsize == pytest.approx(0.5 / PROBLEM.constants().L)


def test_the_size_of_a_rule_is_found_below_schedules():
    assert size_of(nw.Scheduled(nw.DelayAdaptive(0.03), nw.schedules.warmup(10))) == 0.03
    assert size_of(nw.Scheduled(0.03, lambda step: 0.0 if step < 100 else 2.0)) == 0.03
    with pytest.raises(ValueError, match="give start="):
        size_of(nw.Scheduled(0.03, lambda step: 0.0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": None, "target_loss": 0.1}, "give steps=, gradients= or seconds="),
        ({"engine": "magic"}, "engine must be one of processes, simulate, ray"),
        ({"engine": "simulate", "speeds": None}, "simulated trials need speeds="),
        ({"workers": 2}, "are for real workers"),
        ({"trials": 0}, "trials must be an integer of at least 1"),
        ({"method": nw.AsynchronousSGD(1.0), "start": -1.0}, "start must be"),
        ({"monitor": "accuracy", "trials": 1}, "there is no metric 'accuracy'"),
    ],
)
def test_wrong_arguments_are_errors(options, words):
    with pytest.raises(ValueError, match=words):
        tuned(**options)


def nesterov(size, momentum):
    return nw.MinibatchSGD(nw.Constant(size)), nw.Nesterov(momentum)


def shown(found):
    return [(trial.stepsize, trial.momentum, trial.value, trial.mean_delay) for trial in found.trials]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_trials_of_auto_are_minibatches_with_its_momentum(momentum):
    found = tuned(method=nw.Auto(0.5, momentum=momentum), seconds=300.0, steps=None)
    other = tuned(method=lambda size: nesterov(size, momentum), seconds=300.0, steps=None, start=0.5)
    assert shown(found) == shown(other)
    assert (found.method, found.update) == (nw.Auto(nw.Constant(found.stepsize), momentum=momentum), None)
    assert {trial.mean_delay for trial in found.trials} == {1.0}


def test_a_function_of_stepsize_and_momentum_has_both_tuned():
    said, budget = [], {"seconds": 300.0, "steps": None, "trials": 7}
    found = tuned(method=nesterov, start=1.0, tell=said.append, **budget)
    first, later = found.trials[:3], found.trials[3:]
    assert [(trial.stepsize, trial.momentum) for trial in first] == [(1.0, 0.0), (1.0, 0.9), (1.0, 0.97)]
    best = min(first, key=lambda trial: trial.value)
    assert {trial.momentum for trial in later} == {found.momentum} == {best.momentum}
    assert len({trial.stepsize for trial in later}) == 4
    assert found.best.momentum == found.momentum
    assert found.best.value == min(trial.value for trial in found.trials)
    assert (found.method, found.update) == nesterov(found.stepsize, found.momentum)
    assert said[1].startswith("trial 2, stepsize 1, momentum 0.9: loss ")
    assert f"stepsize {found.stepsize:.4g}, momentum {found.momentum:g} after 7 trials" in repr(found)
    assert "momentum" in found._repr_html_()


def test_the_stepsizes_are_those_that_tuning_with_the_best_momentum_alone_tries():
    budget = {"seconds": 300.0, "steps": None, "start": 1.0}
    found = tuned(method=nesterov, momenta=[0.9, 0.0], trials=7, **budget)
    alone = tuned(method=lambda size: nesterov(size, 0.9), trials=6, **budget)
    assert found.momentum == 0.9, "the first one, so that the last one's trial could be taken for its own"
    mine = [trial for trial in found.trials if trial.momentum == 0.9]
    assert [(trial.stepsize, trial.value) for trial in mine] == [(one.stepsize, one.value) for one in alone.trials]


def test_the_momentum_of_auto_is_tuned_as_that_of_minibatches():
    budget = {"seconds": 300.0, "steps": None, "momenta": [0.5, 0.9], "start": 1.0}
    found = tuned(method=lambda size, momentum: nw.Auto(nw.Constant(size), momentum), **budget)
    other = tuned(method=nesterov, **budget)
    assert shown(found) == shown(other)
    assert found.method == nw.Auto(nw.Constant(found.stepsize), found.momentum)


def test_the_advice_is_about_the_stepsizes_with_the_best_momentum():
    found = tuned(method=nesterov, momenta=[0.0, 0.9], trials=2, start=1e-6)
    assert f"the best stepsize, {found.stepsize:.3g}, is the smallest that was tried" in found.advice


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"momenta": [0.9]}, "momenta= needs a function of stepsize and momentum"),
        ({"method": nesterov, "momenta": []}, "momenta is empty"),
        ({"method": nesterov, "momenta": 0.9}, r"momenta must be several numbers, such as \[0.0, 0.9\], got 0.9"),
        ({"method": nesterov, "momenta": "0.9"}, "momenta must be several numbers"),
        ({"method": nesterov, "momenta": [1.0]}, "a momentum must be"),
        ({"method": nesterov, "trials": 2}, "trials must be at least 3, one for each of the momenta, got 2"),
        ({"method": nesterov, "update": nw.Momentum(0.9)}, "returns a method and its update: omit update="),
        ({"method": nw.Auto(0.1, momentum=0.9), "update": nw.Momentum(0.9)}, "Auto has momentum 0.9 of its own"),
        (
            {"method": lambda size: (nw.MinibatchSGD(size), 3)},
            r"the update of method\(stepsize\) must be",
        ),
    ],
)
def test_wrong_momenta_and_updates_are_errors(options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        tuned(**options)


def test_momenta_on_the_command_line():
    data = Path(__file__).parents[1] / "small.libsvm"
    command = ["tune", str(data), "--speeds", "1,1,9", "--seconds", "30", "--trials", "3", "--json"]
    for method, momenta in (("auto", "0,0.9"), ("minibatch", "0,0.9"), ("orderedmomentum", "0.5,0.9")):
        result = RUNNER.invoke(app, [*command, "--method", method, "--momentum", momenta])
        assert result.exit_code == 0, result.output
        trials = json.loads(result.stdout)["trials"]
        assert [trial["momentum"] for trial in trials][:2] == [float(value) for value in momenta.split(",")]
        assert json.loads(result.stdout)["momentum"] in (0.0, 0.5, 0.9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--update", "nesterov"], "omit --update"),
        (["--method", "adaptiverevision"], "which has no momentum to tune"),
        (["--momentum", "x"], "--momentum must be numbers with commas between them"),
    ],
)
def test_wrong_momenta_on_the_command_line(options, words):
    command = ["tune", "--speeds", "1,1,9", "--steps", "30", "--momentum", "0.9", *options]
    result = RUNNER.invoke(app, command)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def build_model():
    return nn.Linear(4, 2)


def a_torch_problem():
    inputs = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
    accuracy = {"accuracy": lambda output, target: (output.argmax(1) == target).float().mean()}
    return TorchProblem(build_model, nn.functional.cross_entropy, data, batch_size=8, metrics=accuracy)


def test_a_torch_problem_is_tuned_with_its_optimiser_and_a_metric():
    update = TorchOptimizer(torch.optim.AdamW, betas=(0.5, 0.99))
    method = nw.AsynchronousSGD(nw.Scheduled(nw.DelayAdaptive(1e-4), nw.schedules.warmup(5)))
    options = {"speeds": SPEEDS, "steps": 40, "trials": 4, "update": update}
    found = nw.tune(a_torch_problem(), method, monitor="accuracy", **options)
    assert [trial.stepsize for trial in found.trials][:2] == [1e-4, 4e-4]
    assert found.best.value == max(trial.value for trial in found.trials) == found.best.history.metrics["accuracy"][-1]
    assert found.method.stepsize == nw.Scheduled(nw.DelayAdaptive(found.stepsize), nw.schedules.warmup(5))


def test_real_workers_make_the_trials():
    found = nw.tune(PROBLEM, nw.AsynchronousSGD(1.0), workers=2, steps=200, trials=2, progress=False)
    assert [trial.stepsize for trial in found.trials] == [1.0, 4.0]
    assert [trial.steps for trial in found.trials] == [200, 200]


COMMAND = ["tune", "--speeds", "1,1,9", "--steps", "200", "--batch-size", "1"]


def test_the_command_prints_every_trial_and_the_best_stepsize():
    result = RUNNER.invoke(app, [*COMMAND, "--stepsize", "0.001", "--trials", "3"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "trial 1, stepsize 0.001: loss" in result.output
    assert "Best stepsize: 0.016 (the best stepsize, 0.016, is the largest that was tried" in result.output


def test_the_command_prints_json_and_its_exit_status_says_if_every_trial_diverged():
    result = RUNNER.invoke(app, [*COMMAND, "--stepsize", "1e9", "--trials", "2", "--json"])
    assert result.exit_code == 3
    found = json.loads(result.stdout)
    assert found["stepsize"] is None
    assert [trial["stepsize"] for trial in found["trials"]] == [1e9, 2.5e8]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["tune"], "say when a trial ends"),
        ([*COMMAND, "--workers", "3"], "--speeds simulates the workers"),
        ([*COMMAND, "--speeds", "1,x"], "--speeds must be numbers"),
    ],
)
def test_wrong_options_of_the_command_are_errors(options, words):
    result = RUNNER.invoke(app, options)
    assert result.exit_code == 2
    assert words in result.stderr
