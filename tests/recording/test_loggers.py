"""Loggers: what is logged and when, how a run ends, and what a failure does. The trackers are stand-ins."""

import signal
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import nowait as nw
from fake_trackers import FakeMLflow, FakeTrackio, FakeWandb, Recorder
from nowait.core.ledger import Counts
from nowait.core.notes import Note
from nowait.recording.loggers import mlflow as mlflow_logger
from nowait.recording.loggers.measurements import Events, Mark, evaluation, flattened, measurements

PROBLEM = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1)
METHOD = nw.AsynchronousSGD(nw.Constant(0.1))
SPEEDS = nw.speeds.Fixed([1.0, 2.0])


class Scored(nw.problems.NoisyQuadratic):
    def evaluate(self, params):
        return {"score@1": -self.loss(params)}


def simulated(*callbacks, problem=PROBLEM, **options):
    options = {"steps": 50, "evaluate_every": 10} | options
    return nw.simulate(problem, METHOD, SPEEDS, callbacks=callbacks, **options)


def a_control(**members):
    columns = {"delay": np.array([1, 2, 2, 9]), "stepsize": np.array([0.1, 0.0, 0.3, 0.2])}
    usual = {
        "steps": 7,
        "gradients": 9,
        "counts": Counts(gradients=9, dropped=2, rejected=1, late=3, lost=4, cancelled=5),
        "time": 4.0,
        "num_workers": 3,
        "loss": 0.5,
        "loss_step": 5,
        "metrics": {"accuracy": 0.9},
        "recent": columns.__getitem__,
        "folder": None,
        "config": {},
        "last_note": None,
    }
    return SimpleNamespace(**usual | members)


# What is logged


def test_the_numbers_of_a_run():
    events = Events(joined=1, lost=2, checkpoints=3)
    assert measurements(a_control(), Mark(steps=1, gradients=1, time=2.0), events) == {
        "delay/mean": 3.5,
        "delay/median": 2.0,
        "delay/max": 9.0,
        "stepsize": pytest.approx(0.2),
        "throughput/steps_per_second": 3.0,
        "throughput/gradients_per_second": 4.0,
        "gradients/total": 9.0,
        "gradients/dropped": 2.0,
        "gradients/rejected": 1.0,
        "gradients/late": 3.0,
        "workers/live": 3.0,
        "workers/joined": 1.0,
        "workers/lost": 2.0,
        "checkpoints": 3.0,
        "seconds": 4.0,
    }


def test_the_numbers_of_the_latest_decision_are_logged():
    control = a_control(last_note=Note(7, 3.0, "waits for", {"waits_for": 6.0, "workers": 8.0}))
    logged = measurements(control, Mark.of(control), Events())
    decision = {name: value for name, value in logged.items() if name.startswith("decision/")}
    assert decision == {"decision/waits_for": 6.0, "decision/workers": 8.0}


def test_what_is_not_known_at_the_start_is_left_out():
    nothing = {"delay": np.array([], dtype=int), "stepsize": np.array([])}
    start = a_control(steps=0, gradients=0, time=0.0, loss=None, recent=nothing.__getitem__)
    names = set(measurements(start, Mark.of(start), Events()))
    assert not names & {"delay/mean", "stepsize", "throughput/steps_per_second"}
    assert evaluation(start) == {}


def test_a_config_is_flattened():
    config = {"method": {"type": "A", "stepsize": {"gamma": 0.1}}, "speeds": [1, 2], "seed": 0, "update": None}
    assert flattened(config) == {
        "method.type": "A",
        "method.stepsize.gamma": 0.1,
        "speeds": "[1, 2]",
        "seed": 0,
        "update": None,
    }


def test_a_loss_is_logged_at_its_own_step_and_the_rest_at_the_current_one():
    recorder = Recorder()
    recorder.on_start(a_control(steps=0, gradients=0, time=0.0))
    recorder.on_evaluate(a_control())
    (loss_step, evaluated), (step, numbers) = recorder.rows
    assert (loss_step, evaluated) == (5, {"loss": 0.5, "accuracy": 0.9})
    assert step == 7
    assert "loss" not in numbers
    assert numbers["throughput/steps_per_second"] == 7 / 4.0


def test_if_the_two_steps_are_the_same_there_is_one_row():
    recorder = Recorder()
    recorder.on_evaluate(a_control(loss_step=7))
    [(step, values)] = recorder.rows
    assert step == 7
    assert {"loss", "accuracy", "delay/max"} <= set(values)


def test_a_run_is_logged_at_every_evaluation():
    recorder = Recorder()
    run = simulated(recorder)
    assert [step for step, _ in recorder.rows] == run.history.step.tolist()
    assert [values["loss"] for _, values in recorder.rows] == run.history.loss.tolist()
    for count, (_, values) in list(zip(run.history.gradients.tolist(), recorder.rows, strict=True))[1:]:
        assert values["delay/mean"] == pytest.approx(run.trace.delay[:count].mean())
        assert values["gradients/total"] == count
    [opening] = recorder.openings
    assert (opening.step, opening.folder, opening.previous) == (0, None, None)
    assert opening.config["method.stepsize.gamma"] == 0.1
    assert run.stats.not_compiled == "there are callbacks"


def test_joins_losses_and_checkpoints_are_counted(tmp_path):
    faults = nw.speeds.Faults([(3.0, "leave", 1), (5.0, "join", 1), (9.0, "leave", 0)])
    recorder = Recorder()
    simulated(recorder, faults=faults)
    last = recorder.rows[-1][1]
    assert (last["workers/joined"], last["workers/lost"], last["workers/live"]) == (1, 2, 1)
    trained = Recorder()
    nw.train(PROBLEM, METHOD, workers=2, steps=40, folder=tmp_path / "run", checkpoint_every=10, callbacks=[trained])
    assert trained.rows[-1][1]["checkpoints"] == 5


# How a run ends


def test_the_tracker_hears_that_a_run_is_finished_or_diverged():
    recorder = Recorder()
    simulated(recorder)
    nw.simulate(PROBLEM, nw.AsynchronousSGD(nw.Constant(50.0)), SPEEDS, steps=10_000, callbacks=[recorder])
    assert recorder.states == ["finished", "diverged"]


def test_the_tracker_hears_that_a_run_was_interrupted_and_how_far_it_was():
    def interrupt(control):
        if control.steps == 13:
            signal.raise_signal(signal.SIGINT)

    recorder = Recorder()
    with pytest.raises(nw.Interrupted):
        simulated(interrupt, recorder)
    assert recorder.states == ["interrupted"]
    assert recorder.rows[-1][0] == 13
    assert recorder.rows[-1][1]["gradients/total"] == 13
    assert "loss" in recorder.rows[-1][1], "the last params are evaluated"


def test_the_tracker_hears_that_a_run_failed():
    def fail(control):
        raise ArithmeticError("a callback of the user")

    recorder = Recorder()
    with pytest.raises(ArithmeticError):
        simulated(fail, recorder)
    assert recorder.states == ["failed"]


def test_if_a_later_logger_does_not_open_those_before_it_are_closed():
    class Broken(Recorder):
        def open(self, opening):
            raise ValueError("no such project")

    recorder, broken = Recorder(), Broken()
    with pytest.raises(ValueError, match="no such project"):
        simulated(recorder, broken)
    assert recorder.states == ["failed"]
    assert broken.states == []


def test_an_exception_in_on_end_of_a_failed_run_does_not_hide_the_first_one(caplog):
    class Broken(nw.Callback):
        def on_step(self, control):
            raise ArithmeticError("first")

        def on_end(self, control, run):
            raise ValueError("second")

    recorder = Recorder()
    with pytest.raises(ArithmeticError, match="first"):
        simulated(Broken(), recorder)
    assert "a callback's on_end did as well: ValueError('second')" in caplog.text
    assert recorder.states == ["failed"]


def test_a_run_whose_logger_does_not_open_leaves_no_folder(tmp_path):
    class Broken(Recorder):
        def open(self, opening):
            raise ValueError("no such project")

    with pytest.raises(ValueError, match="no such project"):
        nw.train(PROBLEM, METHOD, workers=1, steps=9, folder=tmp_path / "run", callbacks=[Recorder("7"), Broken()])
    assert not (tmp_path / "run").exists()


# Failures of a tracker


def test_a_tracker_that_fails_is_one_warning_and_the_run_goes_on(caplog):
    class Broken(Recorder):
        def log(self, values, step):
            raise ConnectionError("no network")

        def close(self, state):
            raise ConnectionError("no network")

    assert simulated(Broken()).stats.steps == 50
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.message.startswith("logging to a list failed; the run goes on")
    assert "no network" in record.message


def test_metrics_that_mlflow_refuses_in_the_background_are_one_warning(caplog):
    class Refusing(FakeMLflow):
        def log_metrics(self, *arguments, **options):
            raise ConnectionError("no network")

    module = Refusing()
    assert simulated(nw.loggers.MLflow(module)).stats.steps == 50
    [record] = caplog.records
    assert record.message.startswith("logging to MLflow failed")
    assert module.statuses == ["FINISHED"]


def test_a_run_does_not_wait_for_a_server_of_mlflow_that_hangs(caplog, monkeypatch):
    released = threading.Event()

    class Hanging(FakeMLflow):
        def log_metrics(self, *arguments, **options):
            released.wait()

    monkeypatch.setattr(mlflow_logger, "SECONDS_TO_SEND", 0.0)
    module = Hanging()
    simulated(nw.loggers.MLflow(module))
    released.set()
    assert "the last numbers were not sent within 0 s" in caplog.text
    assert module.statuses == ["FINISHED"]


# The trackers


def test_wandb_gets_a_run_with_steps_as_its_x_axis():
    module = FakeWandb()
    run = simulated(nw.loggers.Wandb(module, project="mine", config={"my": "own"}))
    [logged] = module.runs
    assert logged.settings["project"] == "mine"
    assert logged.config["method.type"] == "AsynchronousSGD"
    assert logged.config["my"] == "own"
    assert [row["step"] for row in logged.rows] == run.history.step.tolist()
    assert [row["loss"] for row in logged.rows] == run.history.loss.tolist()
    assert logged.x_axes["loss"] == logged.x_axes["delay/max"] == "step"
    assert logged.x_axes["step"] is None
    assert (logged.summary, logged.exit_codes) == ({"state": "finished"}, [0])


def test_a_wandb_run_of_the_user_is_used_and_stays_open():
    module = FakeWandb()
    own = module.init(project="theirs", config={"seed": "theirs"})
    simulated(nw.loggers.Wandb(module))
    assert module.runs == [own]
    assert own.config["seed"] == "theirs"
    assert own.config["nowait.method.type"] == "AsynchronousSGD"
    assert len(own.rows) == 6
    assert own.exit_codes == []


def test_a_run_that_diverged_failed_for_wandb_and_is_an_alert_for_trackio(capsys):
    wandb, trackio = FakeWandb(), FakeTrackio()
    method, both = nw.AsynchronousSGD(nw.Constant(50.0)), [nw.loggers.Wandb(wandb), nw.loggers.Trackio(trackio)]
    nw.simulate(PROBLEM, method, SPEEDS, steps=10_000, callbacks=both)
    assert wandb.runs[0].exit_codes == [1]
    assert wandb.runs[0].summary == {"state": "diverged"}
    assert trackio.runs[0].alerts == [("run diverged", "error")]
    assert trackio.finished == 1
    assert capsys.readouterr().out == "", "Trackio's own words go to standard error"


def test_a_trackio_run_of_the_user_is_used_and_stays_open(capsys):
    module = FakeTrackio()
    own = module.init("theirs", config={"seed": "theirs"})
    run = simulated(nw.loggers.Trackio(module))
    assert module.runs == [own]
    assert own.config["nowait.seed"] == 0
    assert [step for step, _ in own.rows] == run.history.step.tolist()
    assert module.finished == 0


def test_mlflow_gets_a_run_with_names_that_it_allows():
    module = FakeMLflow()
    logger = nw.loggers.MLflow(module, experiment="mine", run_name="first", tags={"a": "b"})
    problem = Scored(dimension=3, sigma=0.1)
    run = simulated(logger, problem=problem)
    assert module.experiments == ["mine"]
    assert module.starts == [{"run_id": None, "run_name": "first", "tags": {"a": "b"}}]
    assert module.params["method.stepsize.gamma"] == "0.1"
    assert [step for _, step, _ in module.rows] == run.history.step.tolist()
    assert [values["score_1"] for _, _, values in module.rows] == (-run.history.loss).tolist()
    assert module.tags == {"nowait.state": "finished"}
    assert module.statuses == ["FINISHED"]


def test_an_mlflow_run_of_the_user_is_used_and_stays_open():
    module = FakeMLflow()
    module.start_run()
    simulated(nw.loggers.MLflow(module, experiment="not used"))
    assert len(module.starts) == 1
    assert module.experiments == module.statuses == []
    assert {run_id for run_id, _, _ in module.rows} == {"run-1"}
    assert module.params["nowait.seed"] == "0"


@pytest.mark.parametrize(("state", "status"), [("diverged", "FAILED"), ("interrupted", "KILLED"), ("failed", "FAILED")])
def test_mlflow_has_a_status_for_every_end(state, status):
    module = FakeMLflow()
    logger = nw.loggers.MLflow(module)
    logger.open(nw.loggers.Opening({}, 0))
    logger.close(state)
    assert module.statuses == [status]


def test_a_resumed_run_continues_the_runs_of_its_trackers(tmp_path, capsys):
    wandb, trackio, mlflow, recorder = FakeWandb(), FakeTrackio(), FakeMLflow(), Recorder("seven")
    every = [nw.loggers.Wandb(wandb), nw.loggers.Trackio(trackio, project="p"), nw.loggers.MLflow(mlflow), recorder]
    folder = tmp_path / "first"
    nw.train(PROBLEM, METHOD, workers=1, steps=20, folder=folder, callbacks=every)
    nw.resume(folder, PROBLEM, steps=40, callbacks=every)
    assert [opening.previous for opening in recorder.openings] == [None, "seven"]
    assert [opening.step for opening in recorder.openings] == [0, 20]
    first, second = (run.settings for run in wandb.runs)
    assert first["name"] == second["name"] == "first"
    assert (second["id"], second["resume"]) == (wandb.runs[0].id, "allow")
    assert [run.settings["resume"] for run in trackio.runs] == ["never", "allow"]
    assert [start["run_id"] for start in mlflow.starts] == [None, "run-1"]
    assert mlflow.params["budget.steps"] == "20", "MLflow refuses another value for the same param"
    assert recorder.rows[-1][0] == 40


def test_a_damaged_file_of_trackers_is_named(tmp_path):
    folder = tmp_path / "run"
    nw.train(PROBLEM, METHOD, workers=1, steps=9, folder=folder, callbacks=[Recorder("7")])
    (folder / "trackers.json").write_text("{")
    with pytest.raises(ValueError, match=r"trackers\.json is not JSON: remove it"):
        nw.resume(folder, PROBLEM, steps=20, callbacks=[Recorder("7")])


@pytest.mark.parametrize("kind", [nw.loggers.Wandb, nw.loggers.Trackio, nw.loggers.MLflow])
def test_something_that_is_not_the_module_is_refused(kind):
    with pytest.raises(TypeError, match=r"must be the imported module, as in nw\.loggers\..*, got 'mine'"):
        kind("mine")


def test_settings_that_a_tracker_does_not_have_are_refused_at_once():
    with pytest.raises(TypeError, match=r"wandb\.init has no setting 'projct': did you mean 'project'\?"):
        nw.loggers.Wandb(FakeWandb(), projct="mine")
    with pytest.raises(TypeError, match=r"trackio\.init has no setting 'x': it has project, name, config, resume"):
        nw.loggers.Trackio(FakeTrackio(), x=1)


def test_a_race_logs_each_of_its_runs():
    recorders = {}
    methods = {"A": METHOD, "B": nw.MinibatchSGD(nw.Constant(0.1))}
    found = nw.race(
        PROBLEM,
        methods,
        engine="simulate",
        speeds=SPEEDS,
        gradients=100,
        seeds=2,
        log=lambda name: [recorders.setdefault(name, Recorder())],
    )
    assert list(recorders) == ["a-seed-0", "a-seed-1", "b-seed-0", "b-seed-1"]
    assert recorders["b-seed-1"].rows[-1][1]["loss"] == found.runs["B"][1].history.loss[-1]
    assert all(recorder.states == ["finished"] for recorder in recorders.values())


# Other callbacks


def test_every_checkpoint_is_told_with_its_folder(tmp_path):
    class Listener(nw.Callback):
        def __init__(self):
            self.heard = []

        def on_checkpoint(self, control, path):
            assert (path / "state.json").exists() or any(path.iterdir())
            self.heard.append((control.steps, path.name))

    listener = Listener()
    nw.train(PROBLEM, METHOD, workers=2, steps=40, folder=tmp_path / "run", checkpoint_every=10, callbacks=[listener])
    assert [name for _, name in listener.heard] == [f"step_{step}" for step in (0, 10, 20, 30, 40)]
    assert [step for step, _ in listener.heard] == [0, 10, 20, 30, 40]


def test_a_loss_comes_with_its_step():
    seen = []

    class Listener(nw.Callback):
        def on_evaluate(self, control):
            seen.append((control.loss_step, control.loss))

    run = simulated(Listener())
    assert seen == list(zip(run.history.step.tolist(), run.history.loss.tolist(), strict=True))


def test_control_has_counts_config_and_folder(tmp_path):
    seen = []

    class Listener(nw.Callback):
        def on_start(self, control):
            seen.append((control.config["seed"], control.folder, control.counts))

        def on_end(self, control, run):
            seen.append(control.counts)

    run = nw.train(PROBLEM, METHOD, workers=1, steps=9, folder=tmp_path / "run", seed=3, callbacks=[Listener()])
    assert seen == [(3, tmp_path / "run", Counts()), replace(Counts(), gradients=9, lost=run.stats.lost)]


def test_labels_are_kept_with_a_run(tmp_path):
    run = nw.simulate(PROBLEM, METHOD, SPEEDS, steps=5, labels={"why": "to see", "try": 3})
    run.save(tmp_path / "run")
    assert nw.load(tmp_path / "run").config["labels"] == {"why": "to see", "try": 3}
