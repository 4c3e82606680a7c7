"""``stats.not_compiled`` says why a simulation was not compiled, and a plan knows what the server knows."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

import nowait as nw
from nowait.core import Server
from nowait.engines.budget import Budget
from nowait.engines.progress import Progress
from nowait.engines.simulator import NotPlannable, cold
from nowait.engines.simulator.planner import Planner
from nowait.recording.files import sealed
from nowait.speeds import Faults

PLAIN, EXPLODING = nw.AsynchronousSGD(nw.Constant(0.05)), nw.AsynchronousSGD(nw.Constant(1e200))
PROBLEM = nw.problems.NoisyQuadratic(dimension=4, sigma=0.1)
CONSTANT = ("0 if server.diverged is None else 1", "server.trained(np.ones(3)).sum()")
SPEEDS = nw.speeds.Fixed([1.0, 1.5, 4.0])


@dataclass
class Reading(nw.Method):
    """Asynchronous SGD that evaluates an expression at every arrival."""

    expression: str
    stepsize = nw.Constant(0.05)

    def on_arrival(self, server, arrival):
        total = server.sum()
        total.add(arrival)
        eval(self.expression)
        server.apply(arrival, 0.05)
        server.assign(arrival.worker)


class OwnProblem:
    dimension = 4

    def initial(self):
        return np.ones(4)

    def gradient(self, point, sample):
        return point

    def loss(self, point):
        return float(point @ point)


@pytest.fixture(autouse=True)
def everything_is_compiled_already(monkeypatch):
    monkeypatch.setattr(cold, "PATIENCE", cold.Patience(0))


def reason(problem=PROBLEM, method=PLAIN, **options):
    return nw.simulate(problem, method, SPEEDS, steps=20, **options).stats.not_compiled


def test_a_compiled_run_has_no_reason():
    run = nw.simulate(PROBLEM, Reading("None"), SPEEDS, steps=20)
    assert (run.stats.engine, run.stats.not_compiled) == ("compiled", "")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("server.params", "the method reads params"),
        ("server.point(server.in_flight.oldest())", "the method reads points"),
        ("arrival.point", "the method reads points"),
        ("arrival.gradient", "the method reads gradients"),
        ("arrival.gradient_norm", "the method reads gradients"),
        ("total.vector", "the method reads a sum of gradients"),
        ("server.update", "the method reads server.update"),
        ("server.apply(arrival, 0.1, arrival.delay * np.ones(4))", "the method makes directions of its own"),
        ("server._versions", "the method raised AttributeError: 'Planner' object has no attribute '_versions'"),
    ],
)
def test_what_a_method_reads_is_the_reason(expression, expected):
    assert reason(method=Reading(expression)) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"update": nw.Momentum(0.5)}, "the update is not plain SGD"),
        ({"callbacks": [lambda control: None]}, "there are callbacks"),
        ({"problem": OwnProblem()}, "the problem has no compiled gradient"),
        ({"engine": "reference"}, "the reference simulation was asked for"),
        ({"method": EXPLODING, "evaluate_every": 20}, "params or gradients stopped being finite"),
    ],
    ids=["update", "callbacks", "problem", "reference", "diverged"],
)
def test_what_else_keeps_a_run_from_being_compiled(options, expected, caplog):
    assert reason(**options) == expected


def test_a_short_run_before_anything_is_compiled(monkeypatch):
    monkeypatch.setattr(cold, "PATIENCE", cold.Patience(1_000))
    monkeypatch.setattr(cold, "is_ready", lambda kernel: False)
    assert reason() == "the run is short, and its code is not compiled yet on this machine"


@pytest.mark.parametrize(
    "expression",
    [
        "server.steps",
        "server.now",
        "server.counts.gradients",
        "server.counts.cancelled",
        "server.stepped_at",
        "server.num_tickets",
        "server.num_workers",
        "len(server.workers)",
        "server.jobs_of(arrival.worker)",
        "server.in_flight.oldest().id if server.in_flight else -1",
        "server.in_flight.first_of(2).version if 2 in server.in_flight.running else -1",
        *CONSTANT,
        "arrival.compute_seconds",
        "arrival.started",
        "arrival.job",
        "server.random.uniform()",
    ],
)
def test_numbers_of_the_server_are_the_same_in_a_plan(expression):
    @dataclass
    class StepsizeOf(nw.Method):
        """Makes a stepsize of the expression, so that a wrong number changes the run."""

        stepsize = nw.Constant(0.05)

        def on_arrival(self, server, arrival):
            server.apply(arrival, 0.01 / (2.0 + eval(expression)))
            server.assign(arrival.worker)
            if arrival.job % 4 == 3:
                server.assign(arrival.worker)
                server.cancel(2)
                server.assign(2)

    faults = Faults([(3.0, "leave", 1), (9.0, "join", 1)])
    first = nw.simulate(PROBLEM, StepsizeOf(), SPEEDS, steps=30, faults=faults)
    second = nw.simulate(PROBLEM, StepsizeOf(), SPEEDS, steps=30, faults=faults, engine="reference")
    assert (first.stats.engine, first.stats.not_compiled) == ("compiled", "")
    assert np.array_equal(first.trace.stepsize, second.trace.stepsize)
    assert len(set(first.trace.stepsize)) > 1 or expression in CONSTANT


def test_every_public_attribute_of_the_server_has_a_value_in_a_plan_or_a_reason():
    method = nw.AsynchronousSGD(nw.Constant(0.1))
    server = Server(method, np.zeros(2), 3)
    planner = Planner(method, range(3), SPEEDS.clock(0), Faults([]), Budget(steps=1), seed=0, averaging=False)
    public = [name for name in dir(server) if not name.startswith("_")]
    assert {"params", "steps", "assign", "retain"} <= set(public)
    reasons = {name: reason_to_refuse(planner, name) for name in public}
    assert all(reason is None or reason.startswith("the method ") for reason in reasons.values())
    assert (reasons["params"], reasons["steps"]) == ("the method reads params", None)
    planner.plan(Progress("", shown=False))
    assert (planner.steps, planner.num_tickets, planner.stepped_at) == (1, 4, 1.0)


def reason_to_refuse(planner, name):
    try:
        getattr(planner, name)
    except NotPlannable as error:
        return error.reason
    return None


def test_the_reason_is_saved_and_older_runs_have_none(tmp_path):
    run = nw.simulate(PROBLEM, Reading("server.params"), SPEEDS, steps=5)
    folder = run.save(tmp_path / "run")
    assert nw.load(folder).stats.not_compiled == "the method reads params"
    values = json.loads((folder / "stats.json").read_text())
    del values["not_compiled"], values["checksum"]
    (folder / "stats.json").write_text(json.dumps(sealed(values)))
    assert nw.load(folder).stats.not_compiled == ""


class Hoarder(nw.Method):
    """Keeps an arrival for the next run, and reads it there."""

    def __init__(self):
        self.kept = None

    def on_arrival(self, server, arrival):
        if self.kept is not None:
            self.kept.gradient_norm  # noqa: B018
        self.kept = arrival
        server.apply(arrival, 0.01)
        server.assign(arrival.worker)
        if server.steps == 3:
            arrival.gradient_norm  # noqa: B018


def test_an_arrival_of_an_earlier_run_is_an_error_that_says_so():
    problem = nw.problems.LeastSquares.random(samples=30, dimension=3, noise=0.1, seed=0)
    with pytest.raises(RuntimeError, match=r"start\(\) must reset its state"):
        nw.simulate(problem, Hoarder(), nw.speeds.Fixed([1.0]), steps=9)


def test_a_sweep_says_why_its_runs_were_not_compiled_together():
    problem = nw.problems.LeastSquares.random(samples=30, dimension=3, noise=0.1, seed=0)
    sizes, speeds = [0.01, 0.02], nw.speeds.Fixed([1.0, 2.0])
    clipped = nw.sweep(problem, nw.ClippedASGD(0.1, 1.0), speeds, stepsizes=sizes, steps=20)
    assert (clipped.engine, clipped.not_compiled) == ("reference", "the method reads gradients")
    assert nw.sweep(problem, nw.AsynchronousSGD(0.1), speeds, stepsizes=sizes, steps=20).not_compiled == ""


def test_the_former_name_of_the_engine_still_works():
    problem = nw.problems.LeastSquares.random(samples=30, dimension=3, noise=0.1, seed=0)
    stats = nw.simulate(problem, nw.AsynchronousSGD(0.01), nw.speeds.Fixed([1.0]), steps=5).stats
    assert stats.way == stats.engine == "compiled"
