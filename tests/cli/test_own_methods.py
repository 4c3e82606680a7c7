"""Methods from a Python file: every command that takes a method takes them, and their runs go on and replay."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import nowait as nw
from nowait.cli import app, consent
from nowait.cli.methods import parse_method, parse_methods

RUNNER = CliRunner()
FILE = """
from dataclasses import dataclass
from pathlib import Path

import nowait as nw

with Path(__file__).with_name("executed").open("a") as log:
    log.write("x")

@dataclass
class Patient(nw.Method):
    stepsize: nw.Stepsize
    rounds: float = 2.0
    name: str = "a"

    def on_arrival(self, server, arrival):
        if arrival.delay <= self.rounds * server.num_workers:
            server.apply(arrival, self.stepsize.at(arrival, server))
        server.assign(arrival.worker)

@dataclass
class Needy(nw.Method):
    stepsize: nw.Stepsize
    rounds: int

    on_arrival = Patient.on_arrival

class NoDataclass(nw.Method):
    def __init__(self, stepsize):
        self.stepsize = nw.Constant(stepsize)

    on_arrival = Patient.on_arrival
    rounds = 5

def slow(stepsize):
    return Patient(nw.Constant(stepsize / 10))

def broken(stepsize):
    raise TypeError("a mistake of my own")

class Text(str):
    pass

SEVERAL = {"fast": Patient, "slow": slow}
NUMBER = 3

def problem():
    return nw.problems.LeastSquares.random(samples=50, dimension=4, seed=0)
"""


@pytest.fixture
def executed(tmp_path, monkeypatch):
    """Write the file into the current folder; return a function that says how often it was executed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_methods.py").write_text(FILE)
    yield lambda: len((tmp_path / "executed").read_text())
    for name in ("my_methods", "neighbour", "unfinished"):
        sys.modules.pop(name, None)


def passed_on(monkeypatch, name, *arguments):
    """Return the method that a command passes to a function of the library, made with a stepsize if need be."""
    calls = []

    def call(problem, method, *_, **__):
        calls.append(method)
        raise KeyboardInterrupt

    monkeypatch.setattr(name, call)
    result = RUNNER.invoke(app, arguments)
    assert calls, result.output
    return calls[0] if isinstance(calls[0], nw.Method) else calls[0](0.5)


SHORT = ["my_methods.py:problem", "--method", "my_methods.py:Patient:rounds=3", "--stepsize", "0.5", "--steps", "9"]
SWEPT = ["--problem", "my_methods.py:problem", "--method", "my_methods.py:Patient:rounds=3"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("nowait.simulate", ["simulate", *SHORT]),
        ("nowait.train", ["train", *SHORT]),
        ("nowait.train", ["serve", *SHORT, "--key-file", "key"]),
        ("nowait.tune", ["tune", *SHORT]),
        ("nowait.sweep", ["sweep", *SWEPT, "--stepsizes", "0.5"]),
    ],
    ids=["simulate", "train", "serve", "tune", "sweep"],
)
def test_commands_with_one_method_take_it_from_a_file(name, arguments, executed, monkeypatch):
    method = passed_on(monkeypatch, name, *arguments)
    assert repr(method) == "Patient(stepsize=Constant(gamma=0.5), rounds=3, name='a')"
    assert executed() == 1, "problem and method are in the same file"


@pytest.mark.parametrize("command", ["race", "plan"])
def test_commands_with_several_methods_take_a_dictionary_as_well(command, executed, monkeypatch):
    calls = []

    def call(*arguments, methods=None, **_):
        calls.append(arguments[1] if methods is None else methods)
        raise KeyboardInterrupt

    monkeypatch.setattr(f"nowait.cli.{command}.{command}", call)
    options = ["--engine", "simulate"] if command == "race" else ["--seconds", "1,2"]
    result = RUNNER.invoke(
        app, [command, *options, "--method", "my_methods.py:SEVERAL", "--method", "ringmaster:max_delay=3"]
    )
    assert calls, result.output
    names = ["my_methods.py:SEVERAL fast", "my_methods.py:SEVERAL slow", "ringmaster:max_delay=3"]
    assert list(calls[0])[-3:] == names
    assert repr(calls[0][names[1]](0.5)) == "Patient(stepsize=Constant(gamma=0.05), rounds=2.0, name='a')"


def test_parameters_and_the_stepsize_rule(executed):
    def made(text):
        return parse_method(f"my_methods.py:{text}")(0.5)

    assert repr(made("Patient:stepsize=adaptive").stepsize) == repr(nw.DelayAdaptive(0.5))
    assert repr(made("Patient:stepsize=constant").stepsize) == repr(nw.Constant(0.5))
    assert made("Patient:rounds=1.5,name=b") == type(made("Patient"))(nw.Constant(0.5), 1.5, "b")
    assert made("Needy:rounds=4").rounds == 4
    assert made("slow").stepsize == nw.Constant(0.05)
    assert executed() == 1


WRONG = [
    ("my_method.py:Patient", "there is no file my_method.py"),
    ("my_methods.py", "a method of your own is given as file.py:name, got 'my_methods.py'"),
    ("my_methods.py:Patent", "my_methods.py has no Patent; did you mean 'Patient'?"),
    ("my_methods.py:NUMBER", "my_methods.py:NUMBER must be a class or a function of the stepsize"),
    ("my_methods.py:problem", "my_methods.py:problem is called with the stepsize alone, a number: too many positional"),
    ("my_methods.py:Text", "what my_methods.py:Text makes must be a nowait Method such as a subclass of nw.Method"),
    ("my_methods.py:Patient:round=3", "my_methods.py:Patient has no parameter 'round'; did you mean 'rounds'?"),
    ("my_methods.py:Needy", "my_methods.py:Needy needs rounds: write my_methods.py:Needy:rounds=..."),
    ("my_methods.py:Patient:stepsize=0.1", "there is no stepsize rule '0.1': choose one of adaptive, constant"),
    ("my_methods.py:Patient:rounds=x", "'x' is neither a number nor true or false"),
    ("my_methods.py:SEVERAL", "is a dictionary of 2 methods, but here one method is needed"),
    ("neighbour.py:Mine", "there is no module nowhere_at_all, which neighbour.py needs"),
    ("unfinished.py:Mine", "unfinished.py, line 1: "),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[text for text, _ in WRONG])
def test_what_is_wrong_is_said_before_any_work(text, message, executed, tmp_path):
    (tmp_path / "neighbour.py").write_text("import nowhere_at_all")
    (tmp_path / "unfinished.py").write_text("class Mine(:")
    result = RUNNER.invoke(app, ["simulate", "--steps", "3", "--method", text])
    assert message in result.stderr
    assert (result.exit_code, result.stderr.count("\n")) == (2, 2)


def test_a_dictionary_has_no_parameters_and_no_method_twice(executed):
    with pytest.raises(ValueError, match=r"SEVERAL is a dictionary of methods, which has no parameters: omit 'x=3'"):
        parse_methods(["my_methods.py:SEVERAL:x=3"])
    with pytest.raises(ValueError, match="--method has one of them twice"):
        parse_methods(["my_methods.py:Patient", "my_methods.py:Patient"])


def test_an_error_in_the_users_method_has_its_place(executed):
    result = RUNNER.invoke(app, ["simulate", "--steps", "3", "--method", "my_methods.py:broken"])
    assert "a mistake of my own" in str(result.exception)
    assert not isinstance(result.exception, SystemExit), "it is no wrong option"


def test_files_with_the_same_name_are_different_methods(executed, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "my_methods.py").write_text(FILE.replace("rounds: float = 2.0", "rounds: float = 7.0"))
    assert parse_method("my_methods.py:Patient")(1.0).rounds == 2.0
    assert parse_method("other/my_methods.py:Patient")(1.0).rounds == 7.0


def simulated(method, *more):
    made = RUNNER.invoke(
        app, ["simulate", "my_methods.py:problem", "--method", method, "--stepsize", "0.1", "--steps", "20", *more]
    )
    assert made.exit_code == 0, made.output
    return "runs/simulate-1"


NAMED = ["--problem", "my_methods.py:problem"]


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ("Patient:rounds=3,stepsize=adaptive", "Patient:rounds=3,stepsize=adaptive"),
        ("Patient:rounds=3,stepsize=adaptive", "Patient"),
        ("Patient", "slow"),
        ("slow", "Patient"),
        ("Needy:rounds=3", "Needy:rounds=3"),
        ("NoDataclass", "NoDataclass"),
    ],
)
def test_a_run_replays_with_the_method_that_the_user_names(made, named, executed):
    scheduled = ["--schedule", "cosine"] if made != "NoDataclass" else []
    folder = simulated(f"my_methods.py:{made}", *scheduled)
    result = RUNNER.invoke(app, ["replay", folder, *NAMED, "--method", f"my_methods.py:{named}"])
    assert result.exit_code == 0, result.output
    assert "20 arrivals replayed: the same params, bit for bit." in result.output


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("my_methods.py:NoDataclass", "its type is NoDataclass, that of the run was Patient"),
        ("my_methods.py:Patient:rounds=4", "its rounds is 4, that of the run was 3"),
        ("my_methods.py:Patient:stepsize=adaptive", "its stepsize is DelayAdaptive, that of the run was Constant"),
        ("asynchronous", "--method is for a method of your own, file.py:Class, got 'asynchronous'"),
    ],
)
@pytest.mark.parametrize("command", ["replay", "resume"])
def test_another_method_than_that_of_the_run_is_refused(command, named, message, executed):
    folder = simulated("my_methods.py:Patient:rounds=3", "--schedule", "cosine")
    result = RUNNER.invoke(app, [command, folder, *NAMED, "--method", named])
    assert result.exit_code == 1
    assert message in str(result.exception)


@pytest.mark.parametrize("command", ["replay", "resume"])
def test_without_a_terminal_a_method_that_a_folder_names_is_refused(command, executed, tmp_path):
    folder = simulated("my_methods.py:Patient")
    before = executed()
    result = RUNNER.invoke(app, [command, folder, *NAMED])
    path = f"{tmp_path}/my_methods.py:Patient"
    assert result.exit_code == 2
    assert result.stderr == (
        f"nowait: config.json in {folder!r} names code to run: the method {path!r}; if you trust it, give "
        f"--method {path!r}\n"
    )
    assert executed() == before


def test_on_a_terminal_yes_runs_it(executed, monkeypatch):
    folder = simulated("my_methods.py:Patient")
    monkeypatch.setattr(consent, "on_terminal", lambda: True)
    result = RUNNER.invoke(app, ["replay", folder, *NAMED], input="y\n")
    assert "the same params, bit for bit" in result.output


def test_a_run_of_python_is_replayed_from_its_description(executed, tmp_path):
    method = parse_method("my_methods.py:Needy:rounds=3")(0.1)
    problem = nw.problems.LeastSquares.random(samples=50, dimension=4, seed=0)
    nw.simulate(problem, method, nw.speeds.Fixed([1.0, 3.0]), steps=20).save(tmp_path / "run")
    unnamed = RUNNER.invoke(app, ["replay", "run", *NAMED])
    assert "pass method= again (to nowait resume and replay: --method file.py:Needy)" in str(unnamed.exception)
    named = RUNNER.invoke(app, ["replay", "run", *NAMED, "--method", "my_methods.py:Patient:rounds=3"])
    assert "its type is Patient, that of the run was Needy" in str(named.exception)
    again = RUNNER.invoke(app, ["replay", "run", *NAMED, "--method", "my_methods.py:Needy:rounds=3"])
    assert "the same params, bit for bit" in again.output, again.exception


def test_a_run_of_python_whose_method_is_no_dataclass_needs_python(executed, tmp_path):
    method = parse_method("my_methods.py:NoDataclass")(0.1)
    problem = nw.problems.LeastSquares.random(samples=50, dimension=4, seed=0)
    nw.simulate(problem, method, nw.speeds.Fixed([1.0, 3.0]), steps=20).save(tmp_path / "run")
    result = RUNNER.invoke(app, ["replay", "run", *NAMED, "--method", "my_methods.py:NoDataclass"])
    assert "NoDataclass is no dataclass, so config.json does not hold its fields" in str(result.exception)


def test_a_run_of_real_workers_goes_on_with_its_own_method_update_and_schedule(executed):
    rules = [
        "--method",
        "my_methods.py:Patient:rounds=9",
        "--update",
        "adam:beta1=0.5",
        "--schedule",
        "cosine:steps=90",
    ]
    short = ["--stepsize", "0.01", "--steps", "30", "--workers", "2"]
    made = RUNNER.invoke(app, ["train", "my_methods.py:problem", *rules, *short])
    assert made.exit_code == 0, made.output
    config = json.loads(Path("runs/train-1/config.json").read_text())
    resume = ["resume", "runs/train-1", *NAMED, "--steps", "40", "--json"]
    resumed = RUNNER.invoke(app, [*resume, "--method", "my_methods.py:Patient"])
    assert resumed.exit_code == 0, resumed.output
    assert json.loads(resumed.stdout)["stats"]["steps"] == 40
    after = json.loads(Path("runs/train-1/config.json").read_text())
    assert after["method"]["stepsize"]["schedule"] == {"type": "CosineDecay", "steps": 90, "final": 0.0}
    assert (after["method"], after["update"]) == (config["method"], config["update"])
    assert after["update"]["beta1"] == 0.5
