"""A folder from another person is safe to open: code that it names does not run without the user's consent."""

import json
import sys

import pytest
from typer.testing import CliRunner

import nowait as nw
from nowait.cli import app, consent
from nowait.cli.problems import source_file

RUNNER = CliRunner()
HOSTILE = """
from pathlib import Path
import numpy as np
import nowait as nw

Path(__file__).with_name("ran").touch()

def make(): return nw.problems.NoisyQuadratic(dimension=3, sigma=0.1)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a finished run whose config names a Python file; the file creates a marker when it is executed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "hostile.py").write_text(HOSTILE)
    problem = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1)
    labels = {"command": {"problem": f"{tmp_path}/hostile.py:make", "loss": "least-squares", "batch_size": 1}}
    method, speeds = nw.AsynchronousSGD(nw.Constant(0.1)), nw.speeds.Fixed([1.0, 2.0])
    nw.simulate(problem, method, speeds, steps=20, labels=labels).save(tmp_path / "run")
    yield tmp_path / "run"
    sys.modules.pop("hostile", None)


def change(folder, **command):
    config = json.loads((folder / "config.json").read_text())
    config["labels"]["command"] |= command
    del config["checksum"]
    (folder / "config.json").write_text(json.dumps(config))


def ran(folder):
    return (folder.parent / "ran").exists()


def answering(monkeypatch):
    monkeypatch.setattr(consent, "on_terminal", lambda: True)


@pytest.mark.parametrize("command", ["replay", "resume"])
def test_without_a_terminal_code_that_a_folder_names_is_refused(command, folder):
    result = RUNNER.invoke(app, [command, str(folder)])
    assert result.exit_code == 2
    assert not ran(folder)
    name = f"{folder.parent}/hostile.py"
    assert result.stderr == (
        f"nowait: config.json in '{folder}' names code to run: make() of '{name}', which is the file '{name}'; "
        f"if you trust it, give --problem '{name}:make'\n"
    )


@pytest.mark.parametrize("command", ["replay", "resume"])
@pytest.mark.parametrize("answer", ["n\n", "\n"])
def test_on_a_terminal_the_user_is_asked_and_no_is_no(command, answer, folder, monkeypatch):
    answering(monkeypatch)
    result = RUNNER.invoke(app, [command, str(folder)], input=answer)
    assert result.exit_code == 2
    assert f"make() of '{folder.parent}/hostile.py'" in result.stderr
    assert not ran(folder)


def test_on_a_terminal_yes_runs_it(folder, monkeypatch):
    answering(monkeypatch)
    result = RUNNER.invoke(app, ["replay", str(folder)], input="y\n")
    assert result.exit_code == 0, result.output
    assert "the same params, bit for bit" in result.output
    assert ran(folder)


def test_code_that_the_user_names_runs_without_a_question(folder):
    result = RUNNER.invoke(app, ["replay", str(folder), "--problem", "hostile.py:make"])
    assert result.exit_code == 0, result.output
    assert ran(folder)


@pytest.mark.parametrize("name", ["hostile:make", "os:getpid", "package.inner:make", "nowhere.at_all:make"])
def test_modules_are_not_imported_either(name, folder):
    (folder.parent / "package").mkdir()
    (folder.parent / "package" / "__init__.py").write_text(HOSTILE)
    (folder.parent / "package" / "inner.py").write_text(HOSTILE)
    change(folder, problem=name)
    result = RUNNER.invoke(app, ["replay", str(folder)])
    assert result.exit_code == 2
    assert f"--problem '{name}'" in result.stderr
    assert not ran(folder)
    assert not (folder.parent / "package" / "ran").exists()


@pytest.mark.parametrize("command", ["replay", "resume"])
def test_a_method_that_a_folder_names_is_not_imported(command, folder):
    change(folder, method=f"{folder.parent}/hostile.py:make", stepsize=0.1)
    result = RUNNER.invoke(app, [command, str(folder), "--problem", str(folder / "nothing")])
    assert result.exit_code == 2
    assert f"--method '{folder.parent}/hostile.py:make'" in result.stderr
    assert not ran(folder)


def test_the_file_of_a_module_is_found_without_importing_it(folder):
    package = folder.parent / "package"
    package.mkdir()
    (package / "__init__.py").write_text(HOSTILE)
    (package / "inner.py").write_text(HOSTILE)
    before = list(sys.path)
    assert source_file("hostile") == str(folder.parent / "hostile.py")
    assert source_file("package.inner") == str(package / "inner.py")
    assert source_file("package.nowhere") is None
    assert source_file("hostile.package") is None, "only packages have modules inside"
    assert source_file("nowhere") is None
    assert not ran(folder)
    assert not (package / "ran").exists()
    assert sys.path == before


def test_a_name_cannot_imitate_the_question(folder):
    change(folder, problem="x\n\x1b[2Kharmless\u202e.py:make")
    result = RUNNER.invoke(app, ["replay", str(folder)])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "\x1b" not in result.stderr
    assert "\u202e" not in result.stderr


def test_the_built_in_problem_needs_no_question(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = RUNNER.invoke(app, ["simulate", "--speeds", "1,2", "--steps", "20", "--stepsize", "0.1"])
    assert made.exit_code == 0, made.output
    assert RUNNER.invoke(app, ["replay", "runs/simulate-1"]).exit_code == 0


def test_a_data_file_that_a_folder_names_is_told_and_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.libsvm").write_text("1 1:1\n-1 2:1\n" * 5)
    made = RUNNER.invoke(app, ["simulate", "data.libsvm", "--speeds", "1,2", "--steps", "20", "--stepsize", "0.1"])
    assert made.exit_code == 0, made.output
    result = RUNNER.invoke(app, ["replay", "runs/simulate-1"])
    assert result.exit_code == 0, result.output
    assert f"reading the data file '{tmp_path}/data.libsvm', which config.json in 'runs/simulate-1'" in result.stderr


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", "/", "/nowhere"])
def test_what_is_no_file_of_data_is_not_opened(name, folder):
    change(folder, problem=name)
    result = RUNNER.invoke(app, ["replay", str(folder)])
    assert isinstance(result.exception, ValueError)
    assert f"there is no file {name}" in str(result.exception)


@pytest.mark.parametrize(
    "command",
    [
        {"problem": 3},
        {"problem": ["x"]},
        {"loss": {}},
        {"batch_size": "x"},
        {"batch_size": 0},
        {"method": 3, "stepsize": 0.1},
        {"method": "hostile.py:make", "stepsize": "x"},
        {"method": "hostile.py:make", "stepsize": 0.1, "schedule": 3},
        {"method": "hostile.py:make", "stepsize": 0.1, "steps": "x"},
    ],
    ids=str,
)
def test_a_wrong_command_in_the_labels_is_told_in_a_sentence(command, folder):
    change(folder, **command)
    result = RUNNER.invoke(app, ["replay", str(folder)])
    assert isinstance(result.exception, ValueError)
    assert str(result.exception).startswith("config.json, entry 'labels': ")


def test_a_cluster_that_a_folder_names_is_joined_only_if_the_user_agrees(folder, monkeypatch):
    config = json.loads((folder / "config.json").read_text())
    config["engine"] = {"type": "RayCluster", "has_runtime_env": False, "address": "somewhere:6379"}
    config["labels"] = {}
    del config["checksum"]
    (folder / "config.json").write_text(json.dumps(config))
    refused = RUNNER.invoke(app, ["resume", str(folder)])
    assert refused.exit_code == 2
    assert "--engine ray --address 'somewhere:6379'" in refused.stderr
    answering(monkeypatch)
    agreed = RUNNER.invoke(app, ["resume", str(folder)], input="y\n")
    assert "its problem is not known" in str(agreed.exception), "it went on to the next question"


def test_brackets_in_the_name_of_a_folder_are_printed_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "runs [red]:heart:[/] x"
    options = ["--speeds", "1,2", "--steps", "20", "--stepsize", "0.1", "--folder", name]
    made = RUNNER.invoke(app, ["simulate", *options], env={"COLUMNS": "200"})
    assert made.exit_code == 0, made.output
    assert f"Run: {name}\n" in made.stdout
    report = RUNNER.invoke(app, ["report", name, "--out", "[b]all.html"], env={"COLUMNS": "200"})
    assert "Report: [b]all.html\n" in report.stdout


def test_brackets_in_tables_and_in_the_names_of_problems_are_printed_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from rich.table import Table

    from nowait.cli.results import open_console

    console = open_console()
    table = Table(title="[red]title[/]")
    table.add_column("[b]method")
    table.add_row("[i]ringmaster[/b]")
    with console.capture() as printed:
        console.print(table)
    for words in ("[red]title[/]", "[b]method", "[i]ringmaster[/b]"):
        assert words in printed.get()


def test_control_characters_in_an_error_are_not_sent_to_the_terminal(folder, monkeypatch, capsys):
    from nowait.cli import main

    monkeypatch.setattr(sys, "argv", ["nowait", "replay", "no\x1b[2J\x07where"])
    with pytest.raises(SystemExit):
        main()
    assert "no\\x1b[2J\\x07where" in capsys.readouterr().err
