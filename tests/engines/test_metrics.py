"""Metrics beside the loss: where they appear, targets, early stopping, the best params and the training loss."""

import math

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

import nowait as nw
from nowait.core.problem import Evaluation
from nowait.engines.budget import Budget
from nowait.engines.training_losses import TrainingLosses
from nowait.recording import HistoryRecorder
from nowait.recording.best import BestFile, checked_keep_best
from nowait.recording.metrics import read_metrics, write_metrics
from nowait.testing import train_scripted
from nowait.testing.scripted import Report, ReportAgain

METHOD = nw.AsynchronousSGD(nw.Constant(0.1))
SPEEDS = nw.speeds.Fixed([1.0, 2.0, 5.0])
PLAIN = nw.problems.NoisyQuadratic(dimension=4, sigma=0.1)


class Measured:
    """A quadratic whose metrics are functions of its loss, and whose losses for training count its gradients."""

    dimension = 4

    def __init__(self, **metrics):
        self.metrics = metrics or {"halved": lambda loss: loss / 2}
        self.jobs = 0

    def initial(self):
        return np.ones(4)

    def gradient(self, point, sample):
        self.jobs = sample.job
        return point + 0.1 * sample.normals(4)

    def loss(self, point):
        return float(point @ point) / 2

    def evaluate(self, params):
        return {name: metric(self.loss(params)) for name, metric in self.metrics.items()}

    def training_loss(self):
        return float(self.jobs)


class Plain(Measured):
    training_loss = None


def simulated(problem, **options):
    return nw.simulate(problem, METHOD, SPEEDS, **({"steps": 60, "evaluate_every": 10} | options))


def scripted(problem, **options):
    return train_scripted(problem, METHOD, workers=2, **({"steps": 60, "evaluate_every": 10} | options))


@pytest.mark.parametrize("run_of", [simulated, scripted])
def test_metrics_are_in_the_history_next_to_the_loss(run_of):
    run = run_of(Plain())
    assert run.history.metrics.keys() == {"halved"}
    assert np.array_equal(run.history.metrics["halved"], run.history.loss / 2)
    replayed = nw.replay(run.trace, Plain(), METHOD, evaluate_every=10)
    assert np.array_equal(replayed.history.metrics["halved"], replayed.history.loss / 2)


def test_a_wrapped_problem_has_its_metrics_too():
    run = simulated(nw.problems.Compressed(Plain(), nw.problems.TopK(2)))
    assert np.array_equal(run.history.metrics["halved"], run.history.loss / 2)


def test_a_compiled_run_has_metrics_too():
    class Known(nw.problems.NoisyQuadratic):
        def evaluate(self, params):
            return {"loss": self.loss(params), "first": params[0]}

    run = nw.simulate(Known(dimension=3), METHOD, SPEEDS, steps=40, target={"first": ("<=", 0.5)}, evaluate_every=5)
    assert run.stats.engine == "compiled"
    assert run.stats.steps < 40
    assert run.history.metrics["first"][-1] == run.last[0] <= 0.5


def test_callbacks_get_the_metrics_of_the_same_evaluation_as_the_loss():
    seen = []

    class Listener(nw.Callback):
        def on_evaluate(self, control):
            seen.append((control.loss, control.metrics))
            assert control.history.loss[-1] == control.loss

    run = scripted(Plain(), callbacks=[Listener()])
    assert seen == [(loss, {"halved": loss / 2}) for loss in run.history.loss.tolist()]


def test_the_checksum_of_losses_is_that_of_the_first_ones_whenever_it_is_asked_for():
    recorder, fresh = HistoryRecorder(), HistoryRecorder()
    for step in range(6):
        recorder.add(step, step, 0.1 * step, math.nan if step == 2 else 1 / (1 + step), {"accuracy": 0.5})
        if step < 4:
            fresh.add(*recorder.entries[-1])
    checksums = [recorder.checksum(count) for count in (2, 4, 6, 4, 0)]
    assert checksums[1] == checksums[3] == fresh.checksum(4)
    assert len(set(checksums)) == 4


def test_a_metric_that_some_evaluations_lack_is_nan_there(tmp_path):
    recorder = HistoryRecorder()
    recorder.add(0, 0, 0.0, 1.0)
    recorder.add(5, 5, 1.0, 0.5, {"accuracy": 0.75})
    history = recorder.history()
    assert np.array_equal(history.metrics["accuracy"], [math.nan, 0.75], equal_nan=True)
    assert history.rows()[0].keys() == {"step", "gradients", "time", "loss"}
    write_metrics(tmp_path / "metrics.jsonl", "12", history)
    found, broken = read_metrics(tmp_path / "metrics.jsonl", "12")
    assert (found, broken) == (recorder, [])
    assert found.cut(4).history().metrics == {}


@pytest.mark.parametrize(
    ("metrics", "error", "message"),
    [
        ({"step": float}, ValueError, "cannot be called 'step'"),
        ({"training_loss": float}, ValueError, "cannot be called 'training_loss'"),
        ({"curve": lambda loss: [loss, loss]}, TypeError, "for 'curve' a number, got list"),
        ({"curve": lambda loss: None}, TypeError, "for 'curve' a number, got NoneType"),
    ],
)
def test_wrong_metrics_are_refused_at_the_first_evaluation(metrics, error, message):
    with pytest.raises(error, match=message):
        simulated(Plain(**metrics))


# Targets


@pytest.mark.parametrize("run_of", [simulated, scripted])
def test_a_target_ends_the_run_when_every_metric_has_reached_it(run_of):
    problem = Plain(score=lambda loss: -loss, perplexity=lambda loss: 10 * loss)
    run = run_of(problem, steps=None, target={"score": -0.5, "perplexity": ("<=", 2), "loss": 1.5}, evaluate_every=3)
    reached = run.history.metrics["perplexity"] <= 2
    assert run.stats.steps > 0
    assert np.flatnonzero(reached)[0] in (len(reached) - 1, len(reached) - 2), "it went on after reaching its target"


@pytest.mark.parametrize(
    ("target", "values", "reached"),
    [
        ({"accuracy": 0.9}, {"accuracy": 0.9}, True),
        ({"accuracy": 0.9}, {"accuracy": 0.89}, False),
        ({"accuracy": 0.9}, {"accuracy": math.nan}, False),
        ({"accuracy": ("<=", 0.9)}, {"accuracy": 0.89}, True),
        ({"accuracy": 0.9, "training_loss": 1}, {"accuracy": 1.0}, False),
        ({"accuracy": 0.9, "training_loss": 1}, {"accuracy": 1.0, "training_loss": 0.5}, True),
    ],
)
def test_which_values_reach_a_target(target, values, reached):
    evaluation = Evaluation(7.0, values)
    assert Budget(target=target).reached(evaluation) is reached
    assert not Budget(steps=3).reached(evaluation)


def test_wrong_targets_are_refused():
    with pytest.raises(ValueError, match="there is no metric 'acc', only"):
        simulated(Plain(), target={"acc": 0.5})
    with pytest.raises(ValueError, match="there is no metric 'acc', only"):
        simulated(Plain(), target={"loss": -1.0, "acc": 0.5})
    for target in ({}, 0.5, {"accuracy": (">", 0.5)}, {"accuracy": math.nan}, {3: 0.5}):
        with pytest.raises((TypeError, ValueError), match="target"):
            Budget(target=target)


# Early stopping


class Scores(Plain):
    """A problem whose evaluations return a list of scores, one after the other."""

    def __init__(self, scores):
        super().__init__()
        self.scores = list(scores)

    def evaluate(self, params):
        return {"score": self.scores.pop(0)}


@pytest.mark.parametrize(
    ("scores", "options", "evaluations"),
    [
        ([1, 2, 2, 2, 3, 3, 3, 3], {"patience": 3}, 8),
        ([1, 2, 2, 2, 2, 3, 3, 3], {"patience": 3}, 5),
        ([1, 2, 3, 4, 5, 6, 7, 8], {"patience": 2, "mode": "min"}, 3),
        ([1, 1.05, 1.1, 2, 2, 9, 9, 9], {"patience": 2, "min_change": 0.5}, 3),
        ([1, math.nan, math.nan, 0, 9, 9, 9, 9], {"patience": 2}, 7),
    ],
)
def test_early_stopping_waits_for_a_better_value(scores, options, evaluations):
    stopping = nw.EarlyStopping("score", **options)
    for _ in range(2):  # the same callback starts again in another run
        run = simulated(Scores(scores), callbacks=[stopping], steps=70)
        assert len(run.history) == evaluations


def test_early_stopping_names_the_metrics_that_there_are():
    with pytest.raises(ValueError, match="there is no metric 'accuracy', only loss, halved"):
        simulated(Plain(), callbacks=[nw.EarlyStopping("accuracy")])
    with pytest.raises(ValueError, match='"min" or "max"'):
        nw.EarlyStopping("accuracy", mode="best")


@pytest.mark.parametrize("run_of", [simulated, scripted])
def test_the_callback_that_ended_the_run_is_not_called_for_the_last_params(run_of):
    class Counting(nw.Callback):
        def __init__(self, last):
            self.last, self.steps = last, []

        def on_evaluate(self, control):
            self.steps.append(control.loss_step)
            if control.loss_step >= self.last:
                control.stop()

    ending, watching = Counting(20), Counting(math.inf)
    run = run_of(Plain(), callbacks=[ending, watching])
    assert ending.steps == [0, 10, 20]
    assert watching.steps == run.history.step.tolist()


# The best params


def best_of(folder, monitor="halved"):
    return BestFile(folder / "best.safetensors", checked_keep_best(monitor))


@pytest.mark.parametrize("monitor", ["loss", ("halved", "min"), "halved"])
def test_the_best_params_are_those_that_were_evaluated(tmp_path, monitor):
    problem, best = Plain(), best_of(tmp_path, monitor)
    run = scripted(problem, best=best)
    losses = run.history.loss
    place = int(losses.argmax() if monitor == "halved" else losses.argmin())
    with safe_open(best.path, framework="numpy") as file:
        metadata = file.metadata()
    assert int(metadata["step"]) == run.history.step[place]
    value = losses[place] if monitor == "loss" else losses[place] / 2
    assert (float(metadata["value"]), metadata["monitor"]) == (value, best.monitor.name)
    assert problem.loss(load_file(best.path)["params"]) == losses[place]


def test_the_last_params_may_be_the_best(tmp_path):
    class Exact(Plain):
        def gradient(self, point, sample):
            return point.copy()

    best = best_of(tmp_path, "loss")
    run = scripted(Exact(), best=best, steps=35)
    with safe_open(best.path, framework="numpy") as file:
        assert file.metadata()["step"] == "35"
        assert np.array_equal(file.get_tensor("params"), run.last)


def test_a_worse_value_leaves_the_file_alone_and_a_damaged_file_is_replaced(tmp_path):
    best = best_of(tmp_path, "loss")
    best.offer(3, Evaluation(0.5, {}), np.full(4, 3.0), None)
    best.offer(4, Evaluation(0.7, {}), np.full(4, 4.0), None)
    best.offer(5, Evaluation(math.nan, {}), np.full(4, 5.0), None)
    assert load_file(best.path)["params"].tolist() == [3.0] * 4
    best.path.write_bytes(b"damaged")
    best.offer(6, Evaluation(0.9, {}), np.full(4, 6.0), None)
    assert load_file(best.path)["params"].tolist() == [6.0] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["best.safetensors"]


def test_what_keep_best_refuses(tmp_path):
    with pytest.raises(ValueError, match="give folder= as well"):
        nw.train(Plain(), METHOD, workers=1, steps=5, keep_best="loss")
    with pytest.raises(ValueError, match="is of no single iterate"):
        nw.train(Plain(), METHOD, workers=1, steps=5, keep_best="training_loss", folder=tmp_path / "run")
    with pytest.raises(TypeError, match="keep_best must be the name of a metric"):
        checked_keep_best(3)
    assert checked_keep_best(None) is None


# The training loss


@pytest.mark.parametrize("run_of", [simulated, scripted])
def test_the_training_loss_is_the_mean_since_the_evaluation_before(run_of):
    seen = []

    class Listener(nw.Callback):
        def on_evaluate(self, control):
            seen.append(control.training_loss)

    run = run_of(Measured(), callbacks=[Listener()])
    column = run.history.metrics["training_loss"]
    assert math.isnan(column[0])
    assert seen[0] is None
    assert seen[1:] == column[1:].tolist()
    if run_of is simulated:
        jobs, first = run.trace.job, 0
        for place, last in enumerate(run.history.gradients.tolist()[1:], start=1):
            assert column[place] == pytest.approx(jobs[first:last].mean(), abs=1e-12)
            first = last


def test_training_losses_that_are_not_finite_do_not_count():
    class Broken(Measured):
        def training_loss(self):
            return math.inf if self.jobs % 2 else 4.0

    run = scripted(Broken())
    assert set(run.history.metrics["training_loss"][1:].tolist()) <= {4.0}


def test_training_losses_without_use_are_left_out_and_said_more_and_more_rarely(caplog):
    losses = TrainingLosses()
    for loss in (4.0, 1e308, 1e308, -1e308, math.nan, math.inf, 2.0):
        losses.add(loss, worker=3)
    assert (losses.take(), losses.left_out) == (3.0, 5)
    assert [record.getMessage() for record in caplog.records] == [
        f"worker 3 reported a training loss of {loss}: it is left out of training_loss ({number} so far in this run)"
        for loss, number in (("1e+308", 1), ("1e+308", 2), ("nan", 4))
    ]


def test_a_report_that_comes_twice_counts_once():
    script = [Report(), *[Report(0), ReportAgain(0), Report(1)] * 5]  # the first one is that of the evaluator
    run = scripted(Measured(), script=script, steps=40, evaluate_every=40)
    assert run.history.metrics["training_loss"][-1] == pytest.approx(run.trace.job.mean(), abs=1e-12)


def test_a_problem_without_a_training_loss_has_none():
    run = simulated(PLAIN)
    assert run.history.metrics == {}


# Resumed runs


def test_a_finished_run_keeps_its_metrics_and_goes_on_with_a_larger_budget(tmp_path):
    problem, folder, update = Measured(), tmp_path / "run", nw.Momentum(0.5)
    first = nw.train(
        problem, METHOD, workers=2, steps=40, evaluate_every=10, update=update, folder=folder, keep_best="loss"
    )
    before = nw.load(folder).history.metrics
    assert before.keys() == {"halved", "training_loss"}
    assert np.array_equal(before["halved"], first.history.loss / 2)
    assert 0 <= np.nanmax(before["training_loss"]) <= 40
    for wrong in ({"steps": 40}, {"gradients": 3, "steps": 90}, {"seconds": 1e-9}):
        with pytest.raises(ValueError, match="already"):
            nw.resume(folder, problem, **wrong)

    run = nw.resume(folder, problem, steps=90, target_loss=-1.0)

    assert (first.stats.steps, run.stats.steps) == (40, 90)
    for name, column in before.items():
        assert np.array_equal(run.history.metrics[name][: len(column)], column, equal_nan=True)
    replayed = nw.replay(run.trace, problem, METHOD, update=nw.Momentum(0.5))
    assert np.array_equal(replayed.last, run.last), "the momentum did not go on"
    assert nw.load(folder).config["budget"]["steps"] == 90
    assert problem.loss(load_file(folder / "best.safetensors")["params"]) == run.history.loss.min()
    with pytest.raises(ValueError, match="is finished"):
        nw.resume(folder, problem)
