"""``nowait report`` on folders of races, sweeps, and runs that are finished, running, killed or damaged."""

import json
import re
import shutil

import pytest
from typer.testing import CliRunner

import nowait as nw
from nowait.cli import app
from nowait.recording.folder import LOCK
from nowait.recording.lock import FileLock

RUNNER = CliRunner()
PROBLEM = nw.problems.LeastSquares.random(samples=60, dimension=4, seed=0)
SPEEDS = nw.speeds.Fixed([1.0, 1.0, 9.0])


def constant(size):
    return nw.AsynchronousSGD(nw.Constant(size))


def a_run(size=0.1, **options):
    return nw.simulate(PROBLEM, constant(size), SPEEDS, steps=40, progress=False, **options)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A race, a sweep and two runs that differ in their stepsize, in one folder."""
    folder = tmp_path_factory.mktemp("runs")
    nw.race(PROBLEM, engine="simulate", speeds=SPEEDS, gradients=300, progress=False).save(folder / "race")
    nw.sweep(PROBLEM, constant, SPEEDS, stepsizes=[0.01, 0.1], gradients=60, progress=False).save(folder / "sweep")
    a_run().save(folder / "single" / "first")
    a_run(0.05).save(folder / "single" / "second")
    return folder


@pytest.fixture
def report(tmp_path):
    def call(*arguments):
        result = RUNNER.invoke(app, ["report", *map(str, arguments), "--out", str(tmp_path / "all.html")])
        text = (tmp_path / "all.html").read_text(encoding="utf-8") if result.exit_code == 0 else ""
        return result, text

    return call


def data_of(text):
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])


def unfinished(folder, source):
    """Make a folder as a killed run leaves it: without the results."""
    shutil.copytree(source, folder)
    (folder / "stats.json").unlink()
    return folder


def test_the_folder_of_a_race_keeps_title_minimum_findings_and_theory(folders, report):
    result, text = report(folders / "race")
    assert result.exit_code == 0, result.output
    race = nw.Race.load(folders / "race")
    assert "<h1>Race: Least squares, 60 × 4, 3 workers</h1>" in text
    assert re.search(r'class="headline">[\d.]+ × as fast as Minibatch SGD<', text)
    assert data_of(text)["minimum"] == race.minimum
    assert all(finding.split("(")[0] in text for finding in race.findings[:1])
    assert "Theory and measurement" in text
    assert [entry["name"] for entry in data_of(text)["sweeps"]] == [f"{name}, tuning" for name in race.tunings]


def test_a_minimum_on_the_command_line_replaces_that_of_the_race(folders, report):
    assert data_of(report(folders / "race", "--minimum", "0.25")[1])["minimum"] == 0.25


def test_races_sweeps_and_runs_are_reported_together(folders, report):
    result, text = report(folders)
    assert result.exit_code == 0, result.output
    names = [entry["name"] for entry in data_of(text)["methods"]]
    assert names[:2] == ["stepsize 0.1", "stepsize 0.05"]
    assert set(nw.Race.load(folders / "race").runs) <= set(names)
    assert [entry["name"] for entry in data_of(text)["sweeps"]] == ["sweep"]


def test_a_sweep_alone_is_reported(folders, report):
    _, text = report(folders / "sweep")
    assert 'class="headline">Best stepsize: 0.1<' in text
    assert 'id="timeline"' not in text
    assert data_of(text)["sweeps"][0]["stepsize"] == [0.01, 0.1]


def test_a_killed_run_is_reported_and_said_to_be_so(folders, report, tmp_path):
    folder = unfinished(tmp_path / "killed", folders / "single" / "first")
    result, text = report(folder)
    assert result.exit_code == 0, result.output
    assert f"{folder} was killed after step 40; nowait resume continues it." in text
    assert data_of(text)["methods"][0]["note"] == "was killed at step 40"


def test_a_running_run_is_reported_and_said_to_be_so(folders, report, tmp_path):
    folder = unfinished(tmp_path / "running", folders / "single" / "first")
    lock = FileLock()
    lock.acquire(folder / LOCK, "it is locked")
    try:
        result, text = report(folder)
    finally:
        lock.release()
    assert result.exit_code == 0, result.output
    assert f"{folder} is still running" in text
    assert data_of(text)["methods"][0]["note"] == "still running, step 40"


def test_a_run_that_was_killed_before_its_first_evaluation_is_reported(folders, report, tmp_path):
    folder = unfinished(tmp_path / "early", folders / "single" / "first")
    (folder / "metrics.jsonl").unlink()
    result, text = report(folder)
    assert result.exit_code == 0, result.output
    assert "No loss was evaluated" in text
    assert data_of(text)["methods"][0]["curves"]["time"] == {"x": [], "middle": []}
    run = nw.load(folder, unfinished=True)
    assert (len(run.history), run.stats.steps) == (0, 40)
    assert "loss" not in repr(run)


def test_a_folder_that_cannot_be_read_is_skipped_with_its_reason(folders, report, tmp_path):
    shutil.copytree(folders / "single", tmp_path / "runs")
    (tmp_path / "runs" / "first" / "stats.json").write_text("{")
    result, text = report(tmp_path / "runs")
    assert result.exit_code == 0, result.output
    assert f"Skipped {tmp_path}/runs/first:" in result.output.replace("\n", "")
    assert len(data_of(text)["methods"]) == 1


def test_a_run_whose_params_are_damaged_is_reported_with_a_note(folders, report, tmp_path):
    folder = shutil.copytree(folders / "single" / "first", tmp_path / "damaged")
    (folder / "params.safetensors").write_bytes(b"x")
    result, text = report(folder)
    assert result.exit_code == 0, result.output
    assert f"{folder / 'params.safetensors'} is damaged: it has 1 bytes" in text
    assert len(data_of(text)["methods"][0]["curves"]["time"]["x"]) > 2


def test_only_damaged_folders_are_an_error(folders, report, tmp_path):
    shutil.copytree(folders / "single" / "first", tmp_path / "damaged")
    (tmp_path / "damaged" / "stats.json").write_text("{")
    result, _ = report(tmp_path / "damaged")
    assert result.exit_code == 1
    assert "none of these folders can be read" in str(result.exception)


def test_the_command_sweep_writes_a_report(tmp_path):
    arguments = ["sweep", "--stepsizes", "0.01,0.1", "--seeds", "1", "--gradients", "60", "--workers", "2"]
    result = RUNNER.invoke(app, [*arguments, "--folder", str(tmp_path / "sweep")])
    assert result.exit_code == 0, result.output
    assert "Final loss against stepsize" in (tmp_path / "sweep" / "report.html").read_text(encoding="utf-8")
