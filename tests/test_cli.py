"""The command line, as a user calls it."""

import json
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


SMALL_SWEEP = ["sweep", "--workers", "4", "--gradients", "300", "--seeds", "2"]


def test_the_sweep_prints_a_table_and_draws_a_figure(tmp_path):
    options = ["--stepsizes", "0.01,0.1,1e6", "--folder", str(tmp_path / "sweep")]
    result = RUNNER.invoke(app, [*SMALL_SWEEP, *options])
    assert result.exit_code == 0, result.output
    rows = [line for line in result.output.splitlines() if "│" in line]
    assert [("best" in row, "2 of 2" in row) for row in rows] == [(False, False), (True, False), (False, True)]
    assert (tmp_path / "sweep" / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_the_sweep_takes_any_method_and_data_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.libsvm").write_text("".join(f"{sign} 1:{value} 3:1\n" for sign, value in [(1, 2), (-1, -1)] * 9))
    options = ["--problem", "data.libsvm", "--loss", "logistic", "--method", "ringmaster:max_delay=3,stepsize=constant"]
    result = RUNNER.invoke(app, [*SMALL_SWEEP, *options])
    assert result.exit_code == 0, result.output
    assert "LogisticRegression(18 sparse rows, dimension 3" in result.output.replace("\n", " ")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["sweep-1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "nope"], "there is no method 'nope': choose one of adaptiverevision, asynchronous"),
        (["--method", "ringmaster"], "ringmaster needs max_delay: write ringmaster:max_delay=..."),
        (["--method", "ringmaster:depth=3"], "ringmaster has no parameter 'depth'; it has max_delay, cancel_stale"),
        (["--method", "ringmaster:max_delay"], "'max_delay' is not a parameter: write name=value"),
        (["--method", "ringmaster:max_delay=x"], "'x' is neither a number nor true or false"),
        (["--method", "asynchronous:stepsize=odd"], "stepsize must be one of adaptive, constant, got 'odd'"),
        (["--stepsizes", "a,b"], "--stepsizes must be numbers with commas between them, got 'a,b'"),
        (["--stepsizes", "0"], "stepsize must be a finite number above 0"),
        (["--stepsizes", "0.1,0.1"], "--stepsizes has one of them twice: 0.1,0.1"),
        (["--loss", "odd"], "--loss must be one of least-squares, logistic, got 'odd'"),
        (["--loss", "logistic"], "the built-in problem is least squares: give --problem FILE for another loss"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_sweep_is_told_in_a_line(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, printed = run_main(monkeypatch, capsys, "sweep", *options)
    assert code == 1
    assert message in printed.err
    assert list(tmp_path.iterdir()) == []


def test_the_tables_are_printed_with_the_users_numbers():
    result = RUNNER.invoke(app, ["tables", "--seconds", "1,1,1,10", "--mu", "0.01"], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    for words in ("Table 1", "Table 2", "7.75", "3,100", "at most 1.29 s", "smaller without worker 3"):
        assert words in result.output


def test_the_tables_for_machines():
    result = RUNNER.invoke(app, ["tables", "--seconds", "1,3", "--json"])
    found = json.loads(result.output)
    assert [row["updates"] for row in found["table_2"]] == [333, 1333, 1333]
    assert found["table_1"][0]["strongly_convex"] is None, "mu is not known"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tables", "--seconds", "1,x"], "--seconds must be numbers with commas between them, got '1,x'"),
        (["tables", "--mu", "2"], "mu must not exceed L, got mu=2.0 and L=1.0"),
        (["tables", "--sigma", "-1"], "sigma must be a finite number of at least 0"),
        (["tables", "--budget", "1"], "the slowest worker, 10 s, computes nothing"),
        (["plan"], "give the speeds by one of --seconds 1,1,1,10, --trace FOLDER (of a run) and --workers N"),
        (["plan", "--seconds", "1", "--workers", "2"], "give the speeds by one of"),
        (["plan", "--seconds", "1", "--problem", "nowhere.py:make"], "--problem: there is no file nowhere.py"),
        (["plan", "--seconds", "1", "--problem", "nowhere:make"], "--problem: there is no module nowhere"),
        (["plan", "--seconds", "1", "--problem", "json:make"], "json has no function make"),
        (["plan", "--seconds", "1", "--problem", "json:dumps"], "called without arguments, but needs some"),
        (["plan", "--trace", "nowhere"], "nowhere is not a saved run"),
        (["certify", "--setting", "odd"], "there is no setting 'odd'"),
        (["certify", "--figure", "nowhere/figure.png"], "there is no folder nowhere for the figure"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_question_of_theory_is_told_in_a_line(arguments, message, monkeypatch, capsys):
    code, printed = run_main(monkeypatch, capsys, *arguments)
    assert code == 1
    assert message in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("command", ["race", "sweep", "plan", "tables", "certify"])
def test_every_command_has_an_example(command):
    assert f"Example: nowait {command}" in RUNNER.invoke(app, [command, "--help"]).output
