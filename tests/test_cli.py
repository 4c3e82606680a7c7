"""The command line, as a user calls it."""

import logging
import sys

import pytest
from typer.testing import CliRunner

import nowait as nw
from nowait.cli import app, main


@pytest.fixture(autouse=True)
def logging_as_before():
    """The command silences warnings, which is for its own process; tests share theirs."""
    logger = logging.getLogger("nowait")
    level = logger.level
    yield
    logger.setLevel(level)


RUNNER = CliRunner()
SMALL = ["race", "--workers", "4", "--gradients", "400", "--batch-size", "8"]


def test_the_race_prints_a_table_and_writes_a_figure_and_its_runs(tmp_path):
    result = RUNNER.invoke(app, [*SMALL, "--folder", str(tmp_path / "race")])
    assert result.exit_code == 0, result.output
    for words in ("Minibatch", "Async, adaptive", "the best is", "virtual time"):
        assert words in result.output
    assert (tmp_path / "race" / "race.png").read_bytes().startswith(b"\x89PNG")
    for name in ("minibatch", "async-constant", "async-adaptive"):
        assert nw.load(tmp_path / "race" / name).stats.gradients > 0


def test_the_race_uses_a_new_folder_every_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert RUNNER.invoke(app, SMALL).exit_code == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["race-1", "race-2"]


def run_main(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["nowait", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code, capsys.readouterr()


def test_a_folder_that_exists_is_refused_before_the_race(tmp_path, monkeypatch, capsys):
    code, printed = run_main(monkeypatch, capsys, "race", "--folder", str(tmp_path))
    assert code == 1
    assert printed.err == f"nowait: {tmp_path} exists: choose another --folder\n"
    assert printed.out == ""


def test_a_folder_that_cannot_be_made_is_told_before_the_race(monkeypatch, capsys):
    code, printed = run_main(monkeypatch, capsys, "race", "--folder", "/proc/nowhere/race")
    assert code == 1
    assert printed.err.startswith("nowait: cannot make the folder /proc/nowhere/race")
    assert printed.out == ""


def test_a_wrong_option_is_told_in_a_line(monkeypatch, capsys):
    code, printed = run_main(monkeypatch, capsys, "race", "--workers", "1")
    assert code == 2
    assert "--workers" in printed.err


def test_the_version(monkeypatch, capsys):
    code, printed = run_main(monkeypatch, capsys, "--version")
    assert (code, printed.out.strip()) == (0, nw.__version__)


def test_help_has_an_example():
    assert "Example: nowait race" in RUNNER.invoke(app, ["race", "--help"]).output
