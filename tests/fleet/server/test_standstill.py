"""Methods that make no progress: one warning with the cause, and simulations end."""

import logging
import re

import pytest

import nowait as nw
from faulty import Faulty
from nowait.core import standstill
from nowait.core.standstill import HOPELESS, LATE, LATE_PER_WORKER, PATIENCE_PER_WORKER
from nowait.testing import train_scripted
from nowait.testing.scripted import Report, Wait

PROBLEM = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1)
SPEEDS = nw.speeds.Fixed([1.0, 2.0])
PATIENCE = 300
PATIENT = PATIENCE + 2 * PATIENCE_PER_WORKER
TOO_SHORT = nw.MindFlayerSGD(0.1, timeout_seconds=0.5, trials=3)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """The tests need fewer events than a user's run."""
    monkeypatch.setattr(standstill, "PATIENCE", PATIENCE)


class Drops(nw.Method):
    """Uses no gradient from ``first`` on."""

    def __init__(self, first=0):
        self.first = first

    def on_arrival(self, server, arrival):
        if server.steps < self.first:
            server.apply(arrival, 0.1)
        server.assign(arrival.worker)


class OnlyTimers(nw.Method):
    """Gives no worker a ticket."""

    def start(self, server):
        server.wake(1.0)

    def on_arrival(self, server, arrival):
        raise AssertionError

    def on_timer(self, server):
        server.wake(server.now + 1.0)


class AtOnce(OnlyTimers):
    """Sets timers at the present time only, although a gradient will arrive."""

    def start(self, server):
        server.wake(0.5)
        server.assign(0)

    def on_timer(self, server):
        server.wake(server.now)


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if "makes no progress" in record.getMessage()]


@pytest.mark.parametrize("engine", [None, "reference"])
@pytest.mark.parametrize(
    ("method", "budget", "reason"),
    [
        (TOO_SHORT, {"steps": 5}, r"MindFlayerSGD .* no gradient arrived in time. Every attempt took longer than"),
        (TOO_SHORT, {"gradients": 5}, "Every attempt took longer than timeout_seconds=0.5: give a longer timeout"),
        (OnlyTimers(), {"steps": 5}, r"its last [\d,]+ timers expired, and no gradient arrived in time$"),
        (AtOnce(), {"steps": 5}, r"its last [\d,]+ timers expired, and no gradient arrived in time$"),
        (Drops(), {"steps": 5}, r"Drops makes no progress and has made no step yet: it dropped the last [\d,]+ grad"),
        (Drops(3), {"steps": 5}, r"Drops makes no progress since step 3: it dropped the last [\d,]+ gradients$"),
    ],
    ids=["timeout, steps", "timeout, gradients", "only timers", "timers at once", "drops all", "drops from step 3 on"],
)
def test_a_simulation_that_would_never_end_is_ended(method, budget, reason, engine, caplog):
    run = nw.simulate(PROBLEM, method, SPEEDS, progress=False, engine=engine, **budget)
    assert run.stats.advice.startswith("the run was ended, because it would never end: ")
    first, last = warnings(caplog)
    assert last == run.stats.advice
    assert re.search(reason, first)
    assert re.search(reason, last)
    assert run.stats.gradients <= (HOPELESS + 2) * PATIENT


@pytest.mark.parametrize("limit", ["seconds", "gradients"])
def test_a_budget_that_ends_the_run_is_used_up_and_there_is_one_warning(limit, caplog):
    method, amount = (TOO_SHORT, PATIENT) if limit == "seconds" else (Drops(), 3 * PATIENT)
    run = nw.simulate(PROBLEM, method, SPEEDS, progress=False, engine="reference", **{limit: amount})
    assert getattr(run.stats, limit) == amount
    cause = f". {TOO_SHORT.why_no_step()}" if limit == "seconds" else ""
    assert run.stats.advice == f"no step was made: the budget ended before the method had the gradients for one{cause}"
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize(
    ("method", "speeds", "steps"),
    [
        (nw.RennalaSGD(0.1, batch=2 * PATIENT), SPEEDS, 2),
        (nw.MindFlayerSGD(0.1, timeout_seconds=0.5, trials=3), nw.speeds.Pareto([0.4, 0.45], shape=3.0), 50),
        (nw.AsynchronousSGD(0.1), nw.speeds.Fixed([1e-3, 1e9]), 1000),
    ],
    ids=["huge batch", "short timeout", "slow worker"],
)
@pytest.mark.parametrize("engine", [None, "reference"])
def test_a_slow_start_is_no_standstill(method, speeds, steps, engine, caplog):
    run = nw.simulate(PROBLEM, method, speeds, steps=steps, engine=engine, progress=False)
    assert run.stats.steps == steps
    assert warnings(caplog) == []


def late_reports(count):
    """Both workers report in turn, a second after each other."""
    for number in range(count):
        yield Wait(1.0)
        yield Report(number % 2)


def test_real_workers_that_are_always_late_are_a_warning(caplog):
    count = LATE + 2 * LATE_PER_WORKER
    train_scripted(Faulty(), TOO_SHORT, workers=2, seconds=count + 10.0, script=late_reports(count + 5))
    [text] = warnings(caplog)
    assert f"the last {count} gradients arrived after their tickets were cancelled. Every attempt took" in text


def test_real_workers_whose_gradients_are_dropped_are_a_warning(caplog):
    with caplog.at_level(logging.WARNING, logger="nowait"):
        run = train_scripted(Faulty(), Drops(), workers=2, gradients=PATIENT)
    assert run.stats.gradients == PATIENT
    [text] = warnings(caplog)
    assert f"it dropped the last {PATIENT:,} gradients" in text
