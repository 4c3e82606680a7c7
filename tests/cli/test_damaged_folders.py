"""Commands on damaged folders of runs: one sentence with the name of the file, what to do, and status 1."""

import json
import shutil
import sys

import pytest
from typer.main import get_command

import nowait as nw
from nowait.cli import app, main

NOWAIT = get_command(app)
"""Built once: that takes longer than a command that fails."""
PROBLEM = nw.problems.NoisyQuadratic(3)
ADVICE = "nowait check FOLDER says which files are whole and what can be done with them"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with checkpoints."""
    folder = tmp_path_factory.mktemp("damaged") / "run"
    method = nw.AsynchronousSGD(nw.Constant(0.1))
    labels = {"command": {"problem": None, "loss": "least-squares", "batch_size": 16}}
    nw.train(PROBLEM, method, workers=1, steps=6, checkpoint_every=3, folder=folder, labels=labels)
    return folder


@pytest.fixture
def folder(trained, tmp_path, monkeypatch):
    """A copy of the run, to be damaged."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nowait.cli.runs.load_problem", lambda *_: PROBLEM)
    return shutil.copytree(trained, tmp_path / "run")


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x55
    path.write_bytes(bytes(content))


def folder_instead(path):
    path.unlink()
    path.mkdir()


def other_types(path):
    path.write_text(json.dumps({name: ["a list"] for name in json.loads(path.read_text())}))


DAMAGES = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut": cut,
    "flipped": flip,
    "a list": lambda path: path.write_text("[1, 2]"),
    "a folder": folder_instead,
}
FILES = ("config.json", "stats.json", "params.safetensors", "trace.rows")
COMMANDS = {
    "replay": ["replay", "run"],
    "plan": ["plan", "--trace", "run"],
    "whatif": ["whatif", "run"],
    "simulate": ["simulate", "--steps", "3", "--stepsize", "0.1", "--speeds", "run"],
    "tune": ["tune", "--steps", "3", "--stepsize", "0.1", "--speeds", "run"],
}


@pytest.fixture
def run(monkeypatch, capsys):
    """Return a function that calls a command as a shell does, and returns the status and what it printed."""

    monkeypatch.setattr(sys.modules["nowait.cli.main"], "app", NOWAIT)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["nowait", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, capsys.readouterr()

    return call


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_in_one_sentence(name, damage, command, folder, run):
    DAMAGES[damage](folder / name)
    code, printed = run(*COMMANDS[command])
    assert code == 1
    [line] = [line for line in printed.err.splitlines() if line.startswith("nowait: ")]
    assert name in line
    assert line.endswith(ADVICE)
    assert "Traceback" not in printed.err
    assert not printed.out


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name not in ("missing", "a folder")])
@pytest.mark.parametrize("name", [name for name in FILES if name != "params.safetensors"])
def test_a_report_names_the_damaged_file_of_a_run_that_it_skips(name, damage, folder, run):
    DAMAGES[damage](folder / name)
    code, printed = run("report", "run")
    assert code == 1
    assert "Skipped run: " in printed.out
    assert name in printed.out
    assert printed.err == "nowait: none of these folders can be read: run\n"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("damage", ["missing", "a folder"])
def test_missing_losses_are_named_in_one_sentence(damage, command, folder, run):
    DAMAGES[damage](folder / "metrics.jsonl")
    code, printed = run(*COMMANDS[command])
    assert code == 1
    assert printed.err == f"nowait: run is not a saved run: it has no metrics.jsonl; {ADVICE}\n"


@pytest.mark.parametrize("damage", [*DAMAGES, "other types"])
@pytest.mark.parametrize("command", ["resume", "replay"])
def test_a_damaged_configuration_stops_resume_and_replay(command, damage, folder, run):
    damages = DAMAGES | {"other types": other_types}
    damages[damage](folder / "config.json")
    code, printed = run(command, "run", *(["--steps", "9"] if command == "resume" else []))
    assert code == 1
    assert "config.json" in printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "flipped", "a folder"])
def test_a_run_without_a_whole_checkpoint_is_not_resumed(damage, folder, run):
    for path in folder.glob("checkpoints/*/state.json"):
        DAMAGES[damage](path)
    code, printed = run("resume", "run", "--steps", "9")
    assert code == 1
    assert "it has no intact checkpoint to resume from" in printed.err
    assert "state.json" in printed.err
    assert printed.err.rstrip().endswith(ADVICE)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_check_names_every_damaged_file_and_ends_with_status_1(name, damage, folder, run):
    if damage == "missing" and name == "stats.json":
        pytest.skip("that is a run that has not finished")
    DAMAGES[damage](folder / name)
    code, printed = run("check", "run")
    assert code == 1
    assert any(name in line and "damaged" in line for line in printed.out.splitlines()) or name in printed.err


@pytest.mark.parametrize("command", ["check", "replay", "resume", "report"])
def test_an_empty_folder_is_not_a_run(command, tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nothing").mkdir()
    code, printed = run(command, "nothing")
    assert code == 1
    assert "nothing " in printed.err
    assert len([line for line in printed.err.splitlines() if line.startswith("nowait: ")]) == 1


STUDIES = {
    "sweep.json": ["sweep", "--stepsizes", "0.1,0.2", "--seeds", "1", "--gradients", "9", "--workers", "2"],
    "bench.json": ["bench"],
}


@pytest.mark.parametrize("damage", ["empty", "cut", "a list"])
@pytest.mark.parametrize("name", STUDIES)
def test_a_damaged_study_is_not_continued(name, damage, tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nowait.cli.sweep.load_problem", lambda *_: PROBLEM)
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / name).write_text('{"suite": "small", "checksum": "0"}')
    DAMAGES[damage](tmp_path / "study" / name)
    code, printed = run(*STUDIES[name], "--folder", "study")
    assert code == 1
    assert f"study/{name} is damaged" in printed.err
    assert printed.err.rstrip().endswith("remove the folder, or choose another one with --folder")


def test_a_folder_in_place_of_a_file_is_named(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nowait.cli.sweep.load_problem", lambda *_: PROBLEM)
    (tmp_path / "study" / "config.json").mkdir(parents=True)
    (tmp_path / "study" / "sweep.json").write_text("{}")
    code, printed = run(*STUDIES["sweep.json"], "--folder", "study")
    assert code == 1
    assert printed.err == "nowait: study/config.json: Is a directory\n"
