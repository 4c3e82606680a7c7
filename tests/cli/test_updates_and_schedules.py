"""``--update`` and ``--schedule``: what they make, which defaults go with them, and that runs keep them."""

import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import nowait as nw
from nowait.cli import app
from nowait.cli.methods import known_methods, scheduled
from nowait.cli.problems import load_problem
from nowait.cli.schedules import parse_schedule
from nowait.cli.stepping import stepping_of
from nowait.cli.updates import parse_one_update, parse_update
from nowait.core import ScheduleProduct
from nowait.core.schedules import CosineDecay, LinearDecay, Warmup
from nowait.pytorch import TorchProblem

RUNNER = CliRunner()
FILE = """
import torch
import nowait as nw
from nowait.pytorch import TorchOptimizer, TorchProblem

class Heavy(nw.problems.NoisyQuadratic):
    def usual_update(self):
        return nw.Momentum(0.5)

def heavy():
    return Heavy(dimension=3, sigma=0.1)

def model():
    data = torch.utils.data.TensorDataset(torch.arange(8.0).reshape(8, 1), torch.arange(8.0).reshape(8, 1))
    update = TorchOptimizer(torch.optim.AdamW, weight_decay=0.1)
    build = lambda: torch.nn.Linear(1, 1)
    return TorchProblem(build, torch.nn.functional.mse_loss, data, batch_size=2, update=update)
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A user's file in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_problems.py").write_text(FILE)
    yield "my_problems.py"
    sys.modules.pop("my_problems", None)


# What the options make


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        (None, None),
        ("constant", None),
        ("cosine", CosineDecay(90)),
        ("Linear:final=0.5", LinearDecay(90, 0.5)),
        ("cosine:steps=7,final=0.1", CosineDecay(7, 0.1)),
        ("warmup:steps=10,cosine:final=0.1", ScheduleProduct(Warmup(10), CosineDecay(90, 0.1))),
        ("constant,warmup:steps=3", Warmup(3)),
    ],
)
def test_schedules(text, schedule):
    assert parse_schedule(text, steps=90) == schedule


@pytest.mark.parametrize(
    ("text", "update"),
    [
        ("sgd", "Sgd()"),
        ("momentum:beta=0.5", "Momentum(beta=0.5)"),
        ("adamw:weight_decay=0.1", "TorchOptimizer(AdamW, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.1)"),
        ("torch.RAdam:betas=0.9+0.95,weight_decay=0.1", "TorchOptimizer(RAdam, betas=(0.9, 0.95), weight_decay=0.1)"),
        ("TORCH.sgd:momentum=0.5,nesterov=true", "TorchOptimizer(SGD, momentum=0.5, nesterov=True)"),
        ("torch.Adam:scale=gradient", "ScaleGradient(update=TorchOptimizer(Adam))"),
    ],
)
def test_updates(text, update):
    assert repr(parse_one_update(text)) == update


@pytest.mark.parametrize("name", ["RAdm", "Optimizer"])
def test_an_optimiser_that_pytorch_does_not_have_is_refused(name):
    with pytest.raises(ValueError, match=f"there is no optimiser of torch.optim '{name}'"):
        parse_update(f"torch.{name}")


NEEDS = {"batch": 4, "m": 2, "every": 3, "quorum": 2, "timeout_seconds": 1.5, "trials": 2, "group": 2}
NEEDS |= {"max_norm": 1.0, "radius": 1.0, "max_delay": 8, "slack": 2, "buffer": 2}


@pytest.mark.parametrize("name", known_methods())
def test_every_method_takes_a_schedule(name):
    from nowait.cli.methods import parameters

    kind = known_methods()[name]
    method = kind(stepsize=nw.Constant(0.5), **{one: NEEDS[one] for one in parameters(kind) if one in NEEDS})
    assert scheduled(method, Warmup(4)).stepsize == nw.Scheduled(nw.Constant(0.5), Warmup(4))


def test_a_method_without_a_stepsize_rule_takes_no_schedule():
    with pytest.raises(ValueError, match="--schedule multiplies a stepsize rule, which PIAG has not"):
        scheduled(nw.PIAG(1.5), Warmup(4))


# Defaults


@pytest.mark.parametrize(
    ("update", "size", "words"),
    [
        (None, 0.125, "half of 1/(ML)."),
        ("momentum:beta=0.5", 0.0625, "half of 1/(ML), times 1 − 0.5 because of the momentum."),
        ("torch.SGD:momentum=0.5", 0.0625, "half of 1/(ML), times 1 − 0.5 because of the momentum."),
    ],
)
def test_momentum_makes_the_default_stepsize_smaller(update, size, words, capsys):
    stepping = stepping_of("asynchronous", update, None, None)
    problem = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1)
    assert stepping.method(None, problem, workers=4)[1] == pytest.approx(size)
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("update", ["adam", "adamw", "muon", "lmo", "torch.RAdam", "adam:scale=gradient", "heloco"])
@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["simulate", "--steps", "3"], "--stepsize"),
        (["train", "--steps", "3"], "--stepsize"),
        (["tune", "--steps", "3"], "--stepsize, the first to try,"),
        (["sweep"], "--stepsizes"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_an_update_with_steps_of_another_kind_needs_a_stepsize(command, option, update, file):
    problem = ["--problem", "my_problems.py:heavy"] if command == ["sweep"] else ["my_problems.py:heavy"]
    result = RUNNER.invoke(app, [*command, *problem, "--update", update])
    assert result.exit_code == 2
    assert f"nowait: {option} is needed with " in result.stderr
    assert "the default, half of 1/L or less, suits SGD and momentum only" in result.stderr


def simulated(problem, *options):
    result = RUNNER.invoke(app, ["simulate", problem, "--speeds", "1,3", "--steps", "20", *options])
    return " ".join(result.stderr.split()), result.exit_code


@pytest.mark.parametrize(
    ("problem", "method", "words"),
    [
        ("heavy", "asynchronous", "No --update given: using Momentum(beta=0.5), the default of the problem."),
        (
            "model",
            "asynchronous",
            "No --update given: using TorchOptimizer(AdamW, weight_decay=0.1), the default of the problem.",
        ),
        ("heavy", "ringmasterlmo", "No --update given: using LMO(ball='spectral', beta=None"),
        ("heavy", "orderedmomentum:beta=0.5", "No --update given: OrderedMomentum makes its own."),
        ("model", "auto", "No --update given: using TorchOptimizer(AdamW, weight_decay=0.1), the default of the"),
        ("model", "auto:momentum=0.8", "No --update given: Auto makes its own, with momentum 0.8."),
    ],
)
def test_the_default_update_is_printed_and_recorded(problem, method, words, file):
    printed, code = simulated(f"{file}:{problem}", "--method", method, "--stepsize", "0.01")
    assert code == 0
    assert words in printed


def test_the_default_update_of_a_problem_is_what_trains_it(file):
    simulated(f"{file}:model", "--stepsize", "0.01")
    simulated(f"{file}:model", "--stepsize", "0.01", "--update", "adamw:weight_decay=0.1")
    first, second = (nw.load(f"runs/simulate-{number}") for number in (1, 2))
    assert first.config["update"]["optimizer"] == "AdamW"
    assert first.history.loss.tolist() == second.history.loss.tolist()
    simulated(f"{file}:model", "--stepsize", "0.01", "--update", "torch.SGD")
    assert nw.load("runs/simulate-3").history.loss.tolist() != first.history.loss.tolist()


def test_a_problem_with_adamw_needs_a_stepsize(file):
    printed, code = simulated(f"{file}:model")
    assert "--stepsize is needed with TorchOptimizer(AdamW, weight_decay=0.1)" in printed
    assert code == 2


# Runs


def test_a_run_has_its_update_and_schedule_and_replays(file):
    options = ["--update", "momentum:beta=0.3", "--schedule", "warmup:steps=5,linear"]
    assert simulated(f"{file}:heavy", *options, "--stepsize", "0.1")[1] == 0
    run = nw.load("runs/simulate-1")
    rule = nw.Scheduled(nw.DelayAdaptive(0.1), nw.schedules.warmup(5) * nw.schedules.linear(20))
    problem, speeds = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1), nw.speeds.Fixed([1.0, 3.0])
    same = nw.simulate(problem, nw.AsynchronousSGD(rule), speeds, steps=20, update=nw.Momentum(0.3))
    assert run.last.tolist() == same.last.tolist()
    command = run.config["labels"]["command"]
    assert (command["update"], command["schedule"]) == ("momentum:beta=0.3", "warmup:steps=5,linear")
    replayed = RUNNER.invoke(app, ["replay", "runs/simulate-1", "--problem", f"{file}:heavy"])
    assert "the same params, bit for bit" in replayed.output


def passed_on(monkeypatch, name, *arguments):
    """Return the method and the update that a command passes to a function of the library."""
    calls = []

    def call(_, method, *__, **options):
        calls.append((method if isinstance(method, nw.Method) else method(0.5), options["update"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(name, call)
    result = RUNNER.invoke(app, arguments)
    assert calls, result.output
    return calls[0]


@pytest.mark.parametrize("command", ["simulate", "train", "serve", "tune", "sweep"])
def test_every_command_passes_them_on(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    name = "nowait.train" if command == "serve" else f"nowait.{command}"
    more = {"serve": ["--key-file", "key", "--steps", "9"], "sweep": ["--stepsizes", "0.5"]}.get(
        command, ["--steps", "9"]
    )
    size = [] if command == "sweep" else ["--stepsize", "0.5"]
    rules = ["--update", "adam:beta1=0.5", "--schedule", "cosine:steps=9"]
    method, update = passed_on(monkeypatch, name, command, *more, *size, *rules)
    assert method == nw.AsynchronousSGD(nw.Scheduled(nw.DelayAdaptive(0.5), CosineDecay(9)))
    assert update == nw.Adam(0.5)


def test_a_file_of_options_has_lists_of_schedules(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text('update = "nesterov"\nschedule = ["warmup:steps=3", "linear"]\n[simulate]\nsteps = 9')
    method, update = passed_on(monkeypatch, "nowait.simulate", "simulate", "--config", "mine.toml", "--stepsize", "0.5")
    assert method.stepsize.schedule == ScheduleProduct(Warmup(3), LinearDecay(9))
    assert update == nw.Nesterov()


def test_a_run_that_goes_on_beyond_its_schedule_says_that_its_steps_are_0(caplog):
    problem, speeds = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1), nw.speeds.Fixed([1.0])
    method = nw.AsynchronousSGD(nw.Scheduled(nw.Constant(0.1), nw.schedules.linear(20)))
    nw.simulate(problem, method, speeds, steps=20)
    assert not caplog.messages
    nw.simulate(problem, method, speeds, steps=30)
    (words,) = caplog.messages
    assert "LinearDecay(steps=20, final=0.0), is 0 before step 30, where the run ends" in words


def test_the_sweep_of_a_problem_with_an_update_of_its_own_uses_it(file):
    heavy = partial(load_problem, f"{file}:heavy", "least-squares", 1)
    method, speeds = nw.AsynchronousSGD(nw.Constant(0.1)), nw.speeds.Fixed([1.0, 3.0])
    found = nw.sweep(heavy(), method, speeds, stepsizes=[0.1], steps=20, progress=False)
    run = nw.simulate(heavy(), method, speeds, steps=20)
    assert run.config["update"]["type"] == found.config["update"]["type"] == "Momentum"
    assert found.final[0, 0] == run.history.loss[-1]


# The update of a TorchProblem


def test_the_update_of_a_torch_problem_is_new_for_every_run(file):
    problem = load_problem(f"{file}:model", "least-squares", 1)
    first, second = problem.usual_update(), problem.usual_update()
    assert repr(first) == repr(second) == "TorchOptimizer(AdamW, weight_decay=0.1)"
    assert first is not second
    assert repr(problem.split(2).usual_update()) == repr(first)


def test_what_is_no_update_is_refused_by_a_torch_problem():
    data = torch.utils.data.TensorDataset(torch.zeros(4, 1), torch.zeros(4, 1))
    with pytest.raises(TypeError, match="update must be a nowait Update"):
        TorchProblem(lambda: torch.nn.Linear(1, 1), torch.nn.functional.mse_loss, data, update=torch.optim.AdamW)


def test_the_json_of_a_run_has_the_missed_target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["simulate", "--speeds", "1,3", "--steps", "20", "--stepsize", "0.1", "--json"]
    missed = json.loads(RUNNER.invoke(app, [*options, "--target-loss", "1e-9"]).stdout)
    assert missed["missed_target"] == "loss <= 1e-09"
    assert json.loads(RUNNER.invoke(app, [*options, "--target-loss", "1e9"]).stdout)["missed_target"] == ""


def test_a_missed_target_is_in_the_last_lines_of_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["simulate", "--speeds", "1,3", "--steps", "20", "--stepsize", "0.1", "--target", "loss<=1e-9"]
    *_, words, folder = RUNNER.invoke(app, options, env={"COLUMNS": "200"}).stdout.splitlines()
    assert words.startswith("The target loss <= 1e-09 was missed: at step 20 the run had loss 0.")
    assert folder == "Run: runs/simulate-1"
