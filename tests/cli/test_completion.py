"""Completion in shells: what they call after Tab, and what they get."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from typer.main import get_command

from nowait.cli import app
from nowait.cli.methods import known_methods
from nowait.cli.updates import UPDATES

NOWAIT = get_command(app)


@pytest.fixture
def completed(monkeypatch, capsys):
    """Return a function that returns the words that a shell gets for the beginning of a command line."""

    def complete(line, shell="bash"):
        words = line.split(" ")
        monkeypatch.setenv("_NOWAIT_COMPLETE", f"complete_{shell}")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        with pytest.raises(SystemExit) as end:
            NOWAIT(prog_name="nowait")
        assert not end.value.code
        return capsys.readouterr().out.split()

    return complete


METHOD_COMMANDS = ("race", "simulate", "train", "serve", "sweep", "tune", "plan", "resume", "replay")


@pytest.mark.parametrize("command", METHOD_COMMANDS)
def test_methods_are_completed(command, completed):
    assert completed(f"nowait {command} --method ") == list(known_methods())
    assert completed(f"nowait {command} --method ringm") == ["ringmaster", "ringmasterlmo"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nowait tab", ["tables"]),
        ("nowait race --nat", ["--native"]),
        ("nowait race --engine ", ["processes", "simulate", "ray"]),
        ("nowait train --engine p", ["processes"]),
        ("nowait tune --loss lo", ["logistic"]),
        ("nowait resume x --engine r", ["ray"]),
        ("nowait tolerance --update ", list(UPDATES)),
        ("nowait tolerance --update sgd,ada", ["sgd,adam", "sgd,adamw"]),
        ("nowait train --update ada", ["adam", "adamw"]),
        ("nowait serve --schedule c", ["constant", "cosine"]),
        ("nowait simulate --schedule constant,w", ["constant,warmup"]),
        ("nowait tolerance --rule a", ["adaptive"]),
        ("nowait tolerance --schedule c", ["constant", "cosine"]),
        ("nowait tolerance --pattern u", ["uniform"]),
        ("nowait certify --setting het", ["heterogeneous"]),
        ("nowait certify --pattern h", ["hard"]),
        ("nowait reproduce ringm", ["ringmaster"]),
        ("nowait bench --tier f", ["full"]),
        ("nowait bench --problem dig", ["digits"]),
        ("nowait whatif x --unit m", ["ms", "min"]),
        ("nowait serve --wire int", ["int8"]),
        ("nowait sweep --device c", ["cpu", "cuda"]),
        ("nowait methods mu", ["muon"]),
        ("nowait serve --audit o", ["off"]),
        ("nowait train --aud", ["--audit"]),
        ("nowait resume x --allow", ["--allow-changes"]),
        ("nowait train --folder ru", []),
    ],
)
def test_names_are_completed(line, words, completed):
    assert completed(line) == words


def test_parameters_of_a_method_are_completed_where_the_shell_keeps_the_colon(completed):
    found = completed("nowait train --method ringmaster:max_delay=3,c", shell="fish")
    assert found == ["ringmaster:max_delay=3,cancel_stale="]
    assert completed("nowait train --method ringmaster:max_delay=", shell="fish") == []
    assert completed("nowait train --update adamw:eps=1,w", shell="fish") == ["adamw:eps=1,weight_decay="]
    assert completed("nowait resume x --audit 0.1:to", shell="fish") == ["0.1:tolerance="]
    assert completed("nowait serve --audit 0.1:on_difference=l", shell="fish") == ["0.1:on_difference=leave-out"]
    assert completed("nowait train --schedule warmup:steps=9,cosine:f", shell="fish") == [
        "warmup:steps=9,cosine:final="
    ]


@pytest.mark.parametrize("command", ["resume", "replay", "check", "report"])
def test_the_folders_of_runs_are_completed(command, completed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/train-1", "runs/train-2", "mine"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "other").mkdir()
    assert completed(f"nowait {command} ") == ["mine", "runs/train-1", "runs/train-2"]
    assert completed(f"nowait {command} runs/train-2") == ["runs/train-2"]
    assert completed(f"nowait {command} {tmp_path}/m") == [f"{tmp_path}/mine"]
    assert completed(f"nowait {command} oth") == [], "the shell offers files then"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_every_shell(shell, monkeypatch, capsys):
    monkeypatch.setenv("_NOWAIT_COMPLETE", f"source_{shell}")
    with pytest.raises(SystemExit) as end:
        NOWAIT(prog_name="nowait")
    assert not end.value.code
    assert "_NOWAIT_COMPLETE=complete_" in capsys.readouterr().out


RUN = f'exec {sys.executable} -c \'import sys; sys.argv[0] = "nowait"; from nowait.cli import main; main()\' "$@"'
WATCHED = "import json, sys; from nowait.cli import main\ntry: main()\nfinally: print(json.dumps(list(sys.modules)))"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_with_the_script_that_it_is_given(tmp_path):
    command = tmp_path / "nowait"
    command.write_text(f"#!/bin/sh\n{RUN}\n")
    command.chmod(0o755)
    script = (
        'eval "$(_NOWAIT_COMPLETE=source_bash nowait)"; COMP_WORDS=(nowait race --method ringl); COMP_CWORD=3; '
        '_nowait_completion nowait; echo "${COMPREPLY[@]}"'
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    found = subprocess.run(
        ["bash", "-c", script], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "ringleader"


def test_completion_imports_nothing_heavy():
    line = {"_NOWAIT_COMPLETE": "complete_bash", "COMP_WORDS": "nowait race --method r", "COMP_CWORD": "3"}
    arguments = [sys.executable, "-c", f"import sys\nsys.argv[0] = 'nowait'\n{WATCHED}"]
    found = subprocess.run(arguments, env=os.environ | line, capture_output=True, text=True, check=True)
    *names, modules = found.stdout.splitlines()
    assert "ringmaster" in names
    assert not {"matplotlib", "numba", "scipy", "torch", "ray", "rich", "IPython", "pandas"} & set(json.loads(modules))
