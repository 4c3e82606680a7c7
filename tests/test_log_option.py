"""The option --log of the command line."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import nowait as nw
from fake_trackers import FakeMLflow, FakeTrackio, FakeWandb
from nowait.cli import app

RUNNER = CliRunner()
DATA = str(Path(__file__).parent / "small.libsvm")
SIMULATE = ["simulate", "--speeds", "1,2", "--steps", "40", "--stepsize", "0.01"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def trackers(monkeypatch):
    """The modules that --log imports."""
    modules = {"wandb": FakeWandb(), "mlflow": FakeMLflow(), "trackio": FakeTrackio()}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return modules


def test_a_simulation_is_written_to_every_tracker_that_is_named(trackers):
    logs = ["--log", "wandb:project=mine", "--log", "mlflow:experiment=e", "--log", "trackio"]
    result = RUNNER.invoke(app, [*SIMULATE, *logs, "--folder", "runs/first", "--json"])
    assert result.exit_code == 0, result.output
    losses = json.loads(result.stdout)["loss"]
    [run] = trackers["wandb"].runs
    assert (run.settings["project"], run.settings["name"]) == ("mine", "first")
    assert [row["loss"] for row in run.rows] == losses
    assert trackers["mlflow"].experiments == ["e"]
    assert trackers["mlflow"].starts[0]["run_name"] == "first"
    assert trackers["trackio"].runs[0].settings["project"] == "nowait"
    assert trackers["trackio"].runs[0].name == "first"


def test_train_and_resume_continue_one_run_of_a_tracker(trackers):
    train = ["train", DATA, "--workers", "1", "--steps", "20", "--stepsize", "0.01", "--folder", "runs/first"]
    assert RUNNER.invoke(app, [*train, "--log", "wandb"]).exit_code == 0
    resumed = RUNNER.invoke(app, ["resume", "runs/first", "--steps", "40", "--log", "wandb"])
    assert resumed.exit_code == 0, resumed.output
    first, second = trackers["wandb"].runs
    assert second.settings["id"] == first.id
    assert second.rows[-1]["step"] == 40
    assert "log" not in nw.load("runs/first").config["labels"]["command"]


def test_every_run_of_a_race_is_a_run_of_the_tracker(trackers):
    race = [
        "race",
        "--engine",
        "simulate",
        "--workers",
        "3",
        "--gradients",
        "300",
        "--batch-size",
        "4",
        "--problem",
        DATA,
    ]
    result = RUNNER.invoke(app, [*race, "--folder", "runs/race", "--log", "wandb"])
    assert result.exit_code == 0, result.output
    assert [run.settings["name"] for run in trackers["wandb"].runs] == [
        "race-minibatch-sgd",
        "race-asynchronous-sgd-delay-adaptive",
        "race-minibatch-sgd-momentum",
        "race-first-m-momentum",
        "race-auto",
    ]


def test_tensorboard_files_are_in_logs_under_the_name_of_the_run(tmp_path):
    pytest.importorskip("tensorboard")
    result = RUNNER.invoke(app, [*SIMULATE, "--log", "tensorboard"])
    assert result.exit_code == 0
    assert "tensorboard --logdir logs/simulate-1" in result.stderr
    assert len(list((tmp_path / "logs" / "simulate-1").iterdir())) == 1
    assert RUNNER.invoke(app, [*SIMULATE, "--log", "tensorboard:folder=elsewhere"]).exit_code == 0
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("wandbb", "there is no tracker 'wandbb': choose one of tensorboard, wandb, mlflow, trackio"),
        ("wandbb", "did you mean 'wandb'?"),
        ("wandb:projct=x", "wandb.init has no setting 'projct': did you mean 'project'?"),
        ("mlflow:project=x", "--log mlflow has no setting 'project': it has experiment, run_name"),
        ("wandb:mine", "'mine' is not a parameter: write name=value"),
    ],
)
@pytest.mark.parametrize("command", [["train", "--steps", "9"], ["resume", "."], ["race"]])
def test_a_wrong_tracker_ends_the_command_before_any_work(command, text, words, trackers, tmp_path):
    result = RUNNER.invoke(app, [*command, "--log", text], env={"COLUMNS": "300"})
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_that_is_not_installed_is_named_before_any_work(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "trackio", None)
    result = RUNNER.invoke(app, [*SIMULATE, "--log", "trackio"], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert "--log trackio needs the package trackio" in result.output
    assert "pip install trackio" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_that_refuses_the_run_is_an_error_of_one_sentence(trackers, monkeypatch):
    def refuse(**settings):
        raise RuntimeError("No API key configured.\nUse `wandb login` to log in.")

    monkeypatch.setattr(trackers["wandb"], "init", refuse)
    result = RUNNER.invoke(app, [*SIMULATE, "--log", "wandb"])
    words = "--log wandb: No API key configured; set WANDB_MODE=offline to log without an account"
    assert (type(result.exception).__base__, str(result.exception)) == (ValueError, words)
