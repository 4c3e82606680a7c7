"""Loggers with the real trackers in their offline modes: what they stored is read back."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import nowait as nw

PROBLEM = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1)
METHOD = nw.AsynchronousSGD(nw.Constant(0.1))
SPEEDS = nw.speeds.Fixed([1.0, 2.0])


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """What the trackers have stored of a run that finished and of one that diverged."""
    script, folder = Path(__file__).parent.parent / "tracked_runs.py", tmp_path_factory.mktemp("tracked")
    result = subprocess.run(
        [sys.executable, str(script), str(folder)], capture_output=True, text=True, cwd=folder, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def found_by(tracked, tracker):
    if tracker not in tracked["found"]:
        pytest.skip(f"{tracker} is not installed")
    return tracked["found"][tracker]


def test_trackers_ask_for_no_network_and_leave_nothing_running(tracked):
    assert tracked["attempts"] == []
    assert tracked["left"] == {"threads": ["MainThread"], "processes": []}


def test_wandb_stores_rows_config_and_exit_codes(tracked):
    runs = found_by(tracked, "Wandb")
    finished, diverged = runs["finished"], runs["diverged"]
    expected = tracked["runs"]["finished"]
    assert finished["project"] == "mine"
    assert [row["step"] for row in finished["rows"]] == expected["steps"]
    assert [row["loss"] for row in finished["rows"]] == expected["losses"]
    assert finished["rows"][-1]["delay/max"] == 3
    assert finished["config"]["method.stepsize.gamma"] == 0.1
    assert (finished["summary"]["state"], finished["exit_code"]) == ("finished", 0)
    assert (diverged["summary"]["state"], diverged["exit_code"]) == ("diverged", 1)


def test_trackio_stores_rows_config_and_alerts(tracked):
    runs = found_by(tracked, "Trackio")
    expected = tracked["runs"]["finished"]
    rows = runs["finished"]["rows"]
    assert [row["step"] for row in rows] == expected["steps"]
    assert [row["loss"] for row in rows] == expected["losses"]
    assert rows[-1]["throughput/gradients_per_second"] == pytest.approx(1.5, rel=0.01)
    assert runs["finished"]["config"]["method.type"] == "AsynchronousSGD"
    assert [runs[name]["alerts"] for name in ("finished", "diverged")] == [[], ["run diverged"]]


def test_mlflow_stores_metrics_params_and_statuses(tracked):
    runs = found_by(tracked, "MLflow")
    expected = tracked["runs"]["finished"]
    pairs = [list(pair) for pair in zip(expected["steps"], expected["losses"], strict=True)]
    assert runs["finished"]["metrics"]["loss"] == pairs
    assert runs["finished"]["metrics"]["workers/live"] == [[step, 2] for step in expected["steps"]]
    assert runs["finished"]["params"]["method.stepsize.gamma"] == "0.1"
    assert [(runs[name]["status"], runs[name]["state"]) for name in ("finished", "diverged")] == [
        ("FINISHED", "finished"),
        ("FAILED", "diverged"),
    ]


# TensorBoard


def events_of(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return events


def points(events, tag):
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_tensorboard_gets_the_losses(tmp_path):
    class Scored(nw.problems.NoisyQuadratic):
        def evaluate(self, params):
            return {"score": -self.loss(params)}

    problem, logger = Scored(dimension=3, sigma=0.1), nw.TensorBoard(tmp_path)
    run = nw.simulate(problem, METHOD, SPEEDS, steps=50, evaluate_every=10, callbacks=[logger])
    events = events_of(tmp_path)
    steps, losses = run.history.step.tolist(), run.history.loss
    assert points(events, "loss") == [
        (step, pytest.approx(loss, rel=1e-6)) for step, loss in zip(steps, losses.tolist(), strict=True)
    ]
    assert [value for _, value in points(events, "score")] == pytest.approx((-losses).tolist(), rel=1e-6)
    assert points(events, "stepsize") == [(step, pytest.approx(0.1)) for step in steps[1:]]
    assert [value for _, value in points(events, "delay/mean")] == pytest.approx(
        [run.trace.delay[:count].mean() for count in run.history.gradients.tolist()[1:]]
    )
    assert [step for step, _ in points(events, "seconds")] == steps


def test_tensorboard_gets_config_and_state(tmp_path):
    metadata = pytest.importorskip("tensorboard.plugins.hparams.metadata")
    from tensorboard.plugins.hparams import api_pb2

    method = nw.AsynchronousSGD(nw.Constant(50.0))
    nw.simulate(PROBLEM, method, SPEEDS, steps=10_000, callbacks=[nw.TensorBoard(tmp_path)])
    events = events_of(tmp_path)
    hparams = events.PluginTagToContent("hparams")
    config = metadata.parse_session_start_info_plugin_data(hparams[metadata.SESSION_START_INFO_TAG]).hparams
    assert config["method.type"].string_value == "AsynchronousSGD"
    assert config["method.stepsize.gamma"].number_value == 50.0
    end = metadata.parse_session_end_info_plugin_data(hparams[metadata.SESSION_END_INFO_TAG])
    assert end.status == api_pb2.STATUS_FAILURE
    assert events.Tensors("state")[0].tensor_proto.string_val == [b"diverged"]


def test_of_a_resumed_run_tensorboard_forgets_what_came_after_the_checkpoint(tmp_path):
    pytest.importorskip("tensorboard")

    def logged(step, *, steps):
        logger = nw.TensorBoard(tmp_path)
        logger.open(nw.loggers.Opening({"seed": 0}, step))
        for number in steps:
            logger.log({"loss": 100.0 * step + number}, number)
        logger.close("interrupted")

    logged(0, steps=[0, 10, 20, 30])
    next(tmp_path.iterdir()).rename(tmp_path / "events.out.tfevents.0")  # files are read in the order of their names
    logged(10, steps=[25, 40])
    assert points(events_of(tmp_path), "loss") == [(0, 0.0), (10, 10.0), (25, 1025.0), (40, 1040.0)]


def test_without_its_package_tensorboard_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        nw.simulate(PROBLEM, METHOD, SPEEDS, steps=5, callbacks=[nw.TensorBoard(tmp_path)])
