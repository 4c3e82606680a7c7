"""The command ``nowait tolerance``, and updates by name."""

import json
import signal
import sys

import pytest
from typer.testing import CliRunner

import nowait as nw
from nowait.cli import app
from nowait.cli.updates import parse_update, parse_updates
from nowait.studies.tolerance_text import short_names

RUNNER = CliRunner()


def test_updates_are_parsed_with_their_options():
    found = parse_updates(["sgd,muon:beta=0.9,nesterov=false,exclude=a+b", "lmo:ball=sign,adam"])
    assert list(found) == ["sgd", "muon:beta=0.9,nesterov=false,exclude=a+b", "lmo:ball=sign", "adam"]
    assert list(found.values()) == [
        nw.Sgd(),
        nw.Muon(beta=0.9, nesterov=False, exclude=("a", "b")),
        nw.LMO("sign"),
        nw.Adam(),
    ]
    assert "AdamW" in repr(parse_update("adamw:weight_decay=0.1,beta1=0.5"))
    assert list(short_names(tuple(found)).values()) == ["sgd", "muon", "lmo", "adam"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("adamv", "there is no update 'adamv'; did you mean 'adam"),
        ("", "there is no update ''"),
        ("sgd,sgd", "--update has one of them twice"),
        ("adam:scale=rate", "scale must be one of"),
        ("muon:rest=adam", "muon has no parameter 'rest'; did you mean 'rest_stepsize'?"),
        ("sgd:beta=1", "sgd has no parameter 'beta'; it has scale"),
        ("adam:beta1", "'beta1' is not a parameter: write name=value"),
        ("momentum:beta=2", "beta must be at least 0 and below 1"),
    ],
)
def test_wrong_updates_are_errors(text, words):
    with pytest.raises(ValueError, match=words):
        parse_updates([text])


@pytest.mark.parametrize("name", ["momentum", "adam", "adamw", "muon", "heloco"])
def test_a_delay_rule_can_scale_the_gradients_of_every_update(name):
    scaled = parse_update(f"{name}:scale=gradient")
    assert scaled.scales_gradient
    assert repr(scaled.update) == repr(parse_update(f"{name}:scale=step")) == repr(parse_update(name))


def test_adamw_without_pytorch_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ValueError, match="adamw needs PyTorch: pip install nowait"):
        parse_update("adamw")


MINE = """
import nowait as nw

def make():
    return nw.problems.NoisyQuadratic(dimension=4, mu=0.2, sigma=0.01)

def broken():
    raise ValueError("my own mistake")
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "tolerant.py").write_text(MINE)
    yield "tolerant.py:make"
    sys.modules.pop("tolerant", None)


SHORT = ["--steps", "20", "--trials", "2", "--seeds", "1", "--delays", "1,2"]


def test_the_command_prints_tables_and_writes_figure_and_data(mine, tmp_path):
    result = RUNNER.invoke(app, ["tolerance", mine, "--update", "sgd,adam", *SHORT, "--start", "adam=0.01", "--retune"])
    assert result.exit_code == 0, result.output
    assert "sgd: stepsize" in result.output
    assert "sgd, tuned again: keeps 95% of its progress up to delay" in result.output
    folder = tmp_path / "runs" / "tolerance-1"
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "tolerance.csv",
        "tolerance.json",
        "tolerance.png",
    }
    assert nw.Tolerance.load(folder).updates == ("sgd", "adam")
    assert json.loads((folder / "config.json").read_text())["update"] == ["sgd,adam"]


def test_the_command_prints_json_and_reads_its_options_from_a_file(mine, tmp_path):
    (tmp_path / "mine.toml").write_text(
        '[tolerance]\nupdate = ["sgd"]\ndelays = [1, 2]\nsteps = 20\npattern = "uniform"'
    )
    options = ["--config", "mine.toml", "--json", "--trials", "2", "--seeds", "2", "--rule", "adaptive"]
    result = RUNNER.invoke(app, ["tolerance", mine, *options, "--schedule", "cosine"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["updates"], found["delays"], found["patterns"]) == (["sgd"], [1, 2], ["uniform"])
    assert "DelayAdaptive" in found["rule"]
    assert found["tolerated"][0]["update"] == "sgd"
    assert len(found["rows"][0]["losses"]) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--update", "adamv"], "did you mean 'adam"),
        (["--delays", "0,1"], "a fresh gradient has delay 1"),
        (["--delays", ""], "--delays must be whole numbers"),
        (["--delays", "2,2"], "twice"),
        (["--pattern", "sometimes"], "a pattern must be one of"),
        (["--rule", "adaptiv"], "did you mean 'adaptive'"),
        (["--schedule", "step"], "there is no schedule 'step': choose one of constant, warmup, linear, cosine"),
        (["--start", "muon=1"], "start has a stepsize for 'muon'"),
        (["--update", "muon"], "muon is for matrices"),
        (["--problem-that-is-not-there"], "there is no option --problem-that-is-not-there"),
    ],
)
def test_wrong_options_of_the_command_end_it_with_status_2_before_any_work(options, words, mine, tmp_path):
    result = RUNNER.invoke(app, ["tolerance", mine, *SHORT, *options], env={"COLUMNS": "300"})
    assert result.exit_code == 2, result.output
    assert words in result.output
    assert not (tmp_path / "runs").exists()


def test_a_problem_that_is_not_there_ends_it_with_status_2(mine):
    result = RUNNER.invoke(app, ["tolerance", "nothing.py:make"], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert "there is no file nothing.py" in result.output


def test_a_folder_that_exists_ends_it_with_status_2(mine, tmp_path):
    result = RUNNER.invoke(app, ["tolerance", mine, "--update", "sgd", "--delays", "1,2", "--folder", str(tmp_path)])
    assert result.exit_code == 2
    assert "choose another --folder" in " ".join(result.output.split())
    assert not list(tmp_path.glob("config.json"))


def test_an_error_of_the_users_own_code_is_not_a_wrong_option(mine):
    result = RUNNER.invoke(app, ["tolerance", "tolerant.py:broken"])
    assert isinstance(result.exception, ValueError)
    assert str(result.exception) == "my own mistake"


def test_an_interrupted_command_writes_what_it_has(mine, tmp_path, monkeypatch):
    def press(words):
        if words.startswith("adam:"):
            signal.raise_signal(signal.SIGINT)

    original = nw.tolerance
    monkeypatch.setattr(nw, "tolerance", lambda problem, **options: original(problem, **options | {"tell": press}))
    result = RUNNER.invoke(
        app, ["tolerance", mine, *SHORT, "--update", "sgd,adam", "--folder", "study"], env={"COLUMNS": "200"}
    )
    assert result.exit_code == 130
    assert "Interrupted: what was not run is left out." in result.output
    found = nw.Tolerance.load(tmp_path / "study")
    assert found.interrupted
    assert {row.update for row in found.rows} == {"sgd"}
