"""Ctrl-C at any moment ends everything: an interrupted call returns no result, and a loop around it ends."""

import ctypes
import dataclasses
import json
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import nowait as nw
from nowait.cli import app
from nowait.studies import Cluster, longest_delay
from nowait.studies import rule_pays as study_of_the_rule
from nowait.studies.sources import Source
from nowait.theory.lemmas import Replayed

PROBLEM = nw.problems.LeastSquares.random(samples=60, dimension=4, noise=0.01, seed=0)
QUADRATIC = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1)
SPEEDS = nw.speeds.Fixed([1.0, 1.0, 4.0])
METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(0.1))
POINTS = 14
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Python drops exceptions that a signal handler raises in a finalizer: the tests check that the signal is not lost."""


@pytest.fixture(autouse=True)
def default_handlers(caplog):
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


LIBRARY = str(Path(nw.__file__).parent)


class CallCounter:
    """Counts the calls of functions of this library, and sends SIGINT at one of them."""

    def __init__(self, press_at=None):
        self.calls = 0
        self.press_at = press_at

    def __call__(self, frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(LIBRARY):
            self.calls += 1
            if self.calls == self.press_at:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    def run(self, work):
        sys.setprofile(self)
        try:
            return work()
        finally:
            sys.setprofile(None)


def places_to_press(work):
    work()  # so that everything is imported and compiled
    counter = CallCounter()
    counter.run(work)
    last = int(0.98 * counter.calls)  # with threads the number of calls varies a little
    return np.unique(np.linspace(1, last, POINTS).astype(int)).tolist()


def simulate_many():
    for seed in range(4):
        nw.simulate(PROBLEM, METHOD, SPEEDS, steps=40, seed=seed, progress=False)


def simulate_many_the_reference_way():
    for seed in range(3):
        nw.simulate(PROBLEM, METHOD, SPEEDS, steps=15, seed=seed, progress=False, engine="reference")


def simulate_what_falls_back():
    """Clipping reads gradients, so that the run cannot be planned."""
    method = nw.ClippedASGD(nw.Constant(0.1), max_norm=1.0)
    nw.simulate(PROBLEM, method, SPEEDS, steps=15, progress=False)


def simulate_what_diverges():
    nw.simulate(PROBLEM, nw.AsynchronousSGD(nw.Constant(1e200)), SPEEDS, steps=15, progress=False)


def sweep():
    return nw.sweep(PROBLEM, METHOD, SPEEDS, stepsizes=[0.05, 0.1, 0.2], seeds=range(3), steps=60, threads=2)


def sweep_one_by_one():
    method = nw.ClippedASGD(nw.Constant(0.1), max_norm=1.0)
    return nw.sweep(PROBLEM, method, SPEEDS, stepsizes=[0.05, 0.1], seeds=range(2), steps=10)


def race():
    return nw.race(QUADRATIC, engine="simulate", speeds=SPEEDS, gradients=60, tuning_sizes=3, progress=False)


def plan():
    return nw.plan(QUADRATIC, seconds_per_gradient=[1.0, 4.0], gradients=100, seeds=1, progress=False)


def certify():
    return nw.certify(settings=["convex"], patterns=["straggler"], steps=40, seeds=2, progress=False)


def rule_pays():
    options = {"noises": [0.3], "clusters": [Cluster(0.0)], "batches": [], "steps": 20, "progress": False}
    return study_of_the_rule(workers=2, seeds=1, **options)


def tolerance():
    options = {"delays": [1, 2], "patterns": ["constant"], "trials": 2, "seeds": 1, "retune": True}
    return nw.tolerance(QUADRATIC, {"adam": nw.Adam()}, steps=10, **options, progress=False)


def replay():
    return nw.replay(TRACE, PROBLEM, METHOD)


TRACE = nw.simulate(PROBLEM, METHOD, SPEEDS, steps=30).trace
WORK = [
    simulate_many,
    simulate_many_the_reference_way,
    simulate_what_falls_back,
    simulate_what_diverges,
    sweep,
    sweep_one_by_one,
    race,
    plan,
    certify,
    longest_delay,
    rule_pays,
    tolerance,
    replay,
]


@pytest.fixture
def short_studies(monkeypatch):
    monkeypatch.setattr(sys.modules["nowait.studies.certify"], "STEPS_OF_BIAS", 1)
    module = sys.modules["nowait.studies.longest_delay"]
    monkeypatch.setattr(module, "STEPS", 60)
    monkeypatch.setattr(module, "FACTORS", (1, 3))
    module = sys.modules["nowait.studies.rule_pays.study"]
    monkeypatch.setattr(module, "PROBLEMS", ["quadratic"])
    monkeypatch.setattr(module, "FACTORS", (1.0, 3.0))
    monkeypatch.setattr(sys.modules["nowait.studies.plan"], "_seconds_per_gradient", lambda *_: 0.01)
    monkeypatch.setattr(sys.modules["nowait.studies.plan"], "LEAST_ROUNDS", 2)


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_ctrl_c_at_any_moment_ends_the_work(work, short_studies):
    for place in places_to_press(work):
        counter = CallCounter(place)
        with pytest.raises(KeyboardInterrupt):
            counter.run(work)
        assert counter.calls == place, "Ctrl-C was pressed"


def test_ctrl_c_in_the_compilers_callbacks_is_not_lost(monkeypatch):
    """Python drops exceptions that a signal handler raises there."""
    press = ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))
    module = sys.modules["nowait.studies.certified"]
    original = module.interval

    def interval(errors):
        press()
        return original(errors)

    monkeypatch.setattr(module, "interval", interval)
    with pytest.raises(KeyboardInterrupt):
        certify()


@dataclasses.dataclass
class PressingMethod(nw.Method):
    """Asynchronous SGD that sends SIGINT at an arrival."""

    stepsize: nw.Stepsize
    press_at: int
    arrivals: int = 0

    def on_arrival(self, server, arrival):
        self.arrivals += 1
        if self.arrivals == self.press_at:
            signal.raise_signal(signal.SIGINT)
        server.apply(arrival, arrival.gradient_norm * 0 + self.stepsize.gamma)
        server.assign(arrival.worker)


def test_an_interrupted_race_has_what_was_run():
    methods = {"first": PressingMethod(nw.Constant(0.1), 37), "second": METHOD}
    with pytest.raises(nw.Interrupted) as caught:
        nw.race(QUADRATIC, methods, engine="simulate", speeds=SPEEDS, seconds=200.0)
    race = caught.value.race
    assert race.interrupted
    assert list(race.runs) == ["first"]
    assert race.findings[0] == "Interrupted: not every method had its time."
    (run,) = race.runs["first"]
    assert run.history.step[-1] == run.stats.steps
    assert (
        race.findings[1] == f"first was stopped after {run.stats.steps} steps, at a loss of {run.history.loss[-1]:.4g}."
    )


def a_run_that_sigterm_ended():
    run = nw.simulate(QUADRATIC, METHOD, SPEEDS, steps=30)
    ended = dataclasses.replace(run.stats, interrupted=True, advice="SIGTERM ended the run after 30 steps")
    return dataclasses.replace(run, stats=ended)


def test_a_race_of_real_workers_stops_when_one_of_its_runs_was_interrupted(monkeypatch):
    """``nw.train`` returns such a run."""
    monkeypatch.setattr(Source, "of_probe", lambda *_, **__: Source.of_seconds([1.0, 2.0]))
    monkeypatch.setattr(sys.modules["nowait.studies.race_setup"], "train", lambda *_, **__: a_run_that_sigterm_ended())
    with pytest.raises(nw.Interrupted) as caught:
        nw.race(QUADRATIC, {"first": METHOD, "second": METHOD}, workers=2, seconds=10.0, seeds=[0, 1])
    assert caught.value.signal == "SIGTERM"
    assert {name: len(runs) for name, runs in caught.value.race.runs.items()} == {"first": 1}


@pytest.mark.parametrize("study", [nw.race, nw.plan])
def test_a_probe_that_was_interrupted_ends_the_study(study, monkeypatch):
    monkeypatch.setattr("nowait.studies.sources.train", lambda *_, **__: a_run_that_sigterm_ended())
    with pytest.raises(nw.Interrupted, match="SIGTERM ended the probe"):
        study(QUADRATIC, workers=2, probe_seconds=0.1)


RUNNER = CliRunner()


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
@pytest.mark.parametrize("place", [1, 3, 6, 9])
def test_an_interrupted_certificate_is_none(name, status, place, monkeypatch, short_studies):
    original, calls = Replayed.checks, []

    def checks(*arguments, **options):
        calls.append(1)
        if len(calls) == place:
            signal.raise_signal(signal.Signals[name])
        return original(*arguments, **options)

    monkeypatch.setattr(Replayed, "checks", checks)
    options = ["--setting", "convex", "--steps", "30", "--seeds", "2", "--pattern", "straggler", "--pattern", "equal"]
    result = RUNNER.invoke(app, ["certify", *options, "--json"])
    pressed = len(calls) >= place
    assert (result.exit_code, "holds" in result.stdout) == ((status, False) if pressed else (0, True))
    assert pressed == (place <= 8)


def test_a_run_that_was_interrupted_inside_is_no_evidence(monkeypatch, short_studies):
    """The signal arrives during a run that handles it itself and ends cleanly."""
    from nowait.engines.simulator.execution import Execution

    original, calls = Execution.run_to, []

    def run_to(self, end):
        calls.append(end)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        original(self, end)

    monkeypatch.setattr(Execution, "run_to", run_to)
    result = RUNNER.invoke(app, ["certify", "--setting", "convex", "--steps", "30", "--seeds", "2", "--json"])
    assert (result.exit_code, result.stdout) == (130, "")
    assert "SIGINT ended the run after" in result.stderr


MINE = """
import signal
import nowait as nw

class Pressing:
    dimension = 2
    evaluated = 0

    def __init__(self): self.inner = nw.problems.NoisyQuadratic(2)
    def initial(self): return self.inner.initial()
    def gradient(self, point, sample): return self.inner.gradient(point, sample)
    def loss(self, point):
        self.evaluated += 1
        if self.evaluated == 4:
            signal.raise_signal(signal.SIGTERM)
        return self.inner.loss(point)

def make(): return Pressing()
"""


def test_an_interrupted_simulation_of_the_command_line_is_saved_and_names_the_step_of_its_loss(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "pressing_problem.py").write_text(MINE)
    options = ["--steps", "400", "--stepsize", "0.1", "--evaluate-every", "100", "--folder", "run"]
    result = RUNNER.invoke(app, ["simulate", "pressing_problem.py:make", *options])
    sys.modules.pop("pressing_problem", None)
    assert result.exit_code == 143
    run = nw.load(tmp_path / "run")
    assert run.stats.interrupted
    assert f"SIGTERM ended the run after {run.stats.steps} steps" in result.output


def test_an_interrupted_sweep_of_the_command_line_goes_on(tmp_path, monkeypatch):
    from nowait.engines.simulator import sweep, sweep_plans

    data = str(Path(__file__).parents[1] / "small.libsvm")
    options = [
        "sweep",
        "--problem",
        data,
        "--workers",
        "3",
        "--gradients",
        "60",
        "--seeds",
        "3",
        "--stepsizes",
        "0.01,0.1",
    ]
    arguments = [*options, "--folder", str(tmp_path / "sweep"), "--json"]
    original, pressed = sweep_plans.evaluation_events, []
    kept = tmp_path / "sweep" / "runs.jsonl"

    def evaluation_events(*parts):
        if kept.exists() and not pressed:
            pressed.append(len(kept.read_text().splitlines()))
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return original(*parts)

    monkeypatch.setattr(sweep_plans, "evaluation_events", evaluation_events)
    monkeypatch.setattr(sweep, "num_cores", lambda: 1)
    monkeypatch.setattr(sweep, "RUNS_TOGETHER", 2)
    first = RUNNER.invoke(app, arguments)
    assert (first.exit_code, first.stdout) == (130, "")
    assert "The complete runs are kept" in first.stderr.replace("\n", " ")
    before = kept.read_text()
    second = RUNNER.invoke(app, arguments)
    assert second.exit_code == 0, second.output
    assert kept.read_text().startswith(before)
    assert len(kept.read_text().splitlines()) == 6
    assert len(json.loads(second.stdout)["final"]) == 2
