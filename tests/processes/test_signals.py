"""Signals: what counts as the first, what as the second; and a terminal that is closed."""

import os
import signal

import numpy as np
import pytest

import nowait as nw
from faulty import Faulty
from nowait.engines.budget import Budget
from nowait.engines.live import LiveView
from nowait.engines.screens import TerminalScreen
from nowait.engines.signals import Interruption
from nowait.fleet.server.loop import Loop
from nowait.recording import TraceRecorder
from nowait.testing import ScriptedWorkers

METHOD = nw.AsynchronousSGD(nw.Constant(0.05))


def send(*numbers):
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.fixture
def hangup_is_not_ignored():
    """As it would be if the tests are run under ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup_is_not_ignored")
def test_a_closed_terminal_asks_once_and_is_never_the_second_signal():
    """The shell and the kernel may both send SIGHUP."""
    asked = []
    with Interruption(asked.append, hangup=True):
        send(signal.SIGHUP, signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGTERM)
    assert asked == ["SIGHUP"]
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


@pytest.mark.parametrize("hangup", [True, False])
def test_an_ignored_hangup_stays_ignored(hangup):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        asked = []
        with Interruption(asked.append, hangup=hangup):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            send(signal.SIGHUP)
        assert asked == []
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup_is_not_ignored")
def test_a_hangup_ends_a_run_with_a_checkpoint(tmp_path, caplog):
    def interrupt(control):
        if control.steps == 50:
            send(signal.SIGHUP, signal.SIGHUP)

    run = nw.train(Faulty(), METHOD, workers=2, steps=10**9, callbacks=[interrupt], folder=tmp_path / "run")
    assert "SIGHUP ended the run" in run.stats.advice
    assert (tmp_path / "run" / "checkpoints" / f"step_{run.stats.steps}").is_dir()


def test_a_second_signal_while_processes_end_does_not_lose_the_last_checkpoint(tmp_path, monkeypatch):
    end = Loop._close_source

    def interrupted(loop):
        monkeypatch.setattr(Loop, "_close_source", end)
        raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "_close_source", interrupted)
    with pytest.raises(KeyboardInterrupt):
        nw.train(Faulty(), METHOD, workers=2, steps=30, folder=tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "step_30").is_dir()


class ClosedTerminal:
    def update(self, drawn, refresh):
        raise OSError(5, "Input/output error")

    def stop(self):
        raise OSError(5, "Input/output error")


def test_a_live_view_whose_terminal_was_closed_is_not_drawn_any_more():
    recorder = TraceRecorder([0])
    server = ScriptedWorkers(METHOD, num_workers=1, log=recorder).server
    view = LiveView("AsynchronousSGD", Budget(steps=4), recorder, shown=True)
    view._screen = screen = TerminalScreen()
    screen._live.stop()
    screen._live = ClosedTerminal()
    view.update(server, None, [], now=0.0)
    assert not view.shown
    view.__exit__(None, None, None)


def test_the_loss_of_an_interrupted_run_is_that_of_its_last_step():
    def interrupt(control):
        if control.steps == 50:
            send(signal.SIGINT)

    run = nw.train(Faulty(), METHOD, workers=2, steps=10**9, callbacks=[interrupt], evaluate_every=10**8)
    assert run.stats.steps >= 50
    assert run.stats.interrupted
    assert run.history.step[-1] == run.stats.steps
    assert repr(run).endswith(f"loss {run.history.loss[-1]:.6g})")


class SlowToEvaluate(Faulty):
    """Sends the second signal while the loss of the last params is computed."""

    def loss(self, point):
        if np.any(point != self.initial()):
            send(signal.SIGINT)
        return super().loss(point)


def test_a_second_signal_skips_the_last_loss():
    def interrupt(control):
        if control.steps == 50:
            send(signal.SIGINT)

    run = nw.train(SlowToEvaluate(), METHOD, workers=2, steps=10**9, callbacks=[interrupt], evaluate_every=10**8)
    assert run.stats.interrupted
    assert run.history.step.tolist() == [0]
    assert f"loss {run.history.loss[-1]:.6g} at step 0)" in repr(run)


def test_a_run_that_ended_well_has_the_loss_of_its_last_step():
    run = nw.simulate(Faulty(), METHOD, nw.speeds.Fixed([1.0]), steps=5)
    assert repr(run).endswith(f"loss {run.history.loss[-1]:.6g})")
