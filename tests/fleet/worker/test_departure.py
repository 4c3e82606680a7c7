"""SIGTERM to worker processes: they deliver what they compute, and nothing counts as a failure."""

import itertools
import logging
import os
import signal

import numpy as np
import pytest

import nowait as nw
from faulty import Faulty, train_until
from nowait.engines.signals import first_signals
from nowait.fleet.platform import portable

METHOD = nw.AsynchronousSGD(nw.Constant(0.05))


class Terminated(Faulty):
    """The process of worker 1 is sent SIGTERM once or twice while it computes its sixth gradient."""

    times = 1

    def gradient(self, point, sample):
        if (sample.worker, sample.job) == (1, 5):
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGTERM)
        return super().gradient(point, sample)


class TerminatedTwice(Terminated):
    times = 2


def events(run, kind):
    return [int(event["worker"]) for event in run.trace.events if event["kind"] == kind]


def train(problem, caplog):
    """Train until worker 1 was replaced and has delivered; returns the run and the jobs of worker 1."""
    caplog.set_level(logging.INFO, "nowait")
    joined = []

    class Joined(nw.Callback):
        def on_worker_join(self, control, worker):
            joined.append(worker)

    run = train_until(lambda jobs: bool(joined) and jobs[1] > 8, problem, METHOD, [Joined()], workers=2, max_failures=0)
    assert events(run, 0) == events(run, 1) == [1]
    assert [record.message for record in caplog.records if record.levelno > logging.INFO] == []
    assert np.array_equal(nw.replay(run.trace, Faulty(), METHOD).last, run.last)
    return run, run.trace.job[run.trace.worker == 1].tolist()


def test_a_worker_that_is_sent_sigterm_delivers_and_is_replaced(caplog):
    run, jobs = train(Terminated(), caplog)
    missing = set(range(jobs[-1])) - set(jobs)
    assert 5 in jobs, "the gradient that it was computing"
    assert len(missing) == run.stats.lost <= 1, "the ticket that nobody had begun"
    assert "worker 1 was told to leave" in caplog.text


def test_a_second_sigterm_ends_it_at_once_and_is_no_failure_either(caplog):
    run, jobs = train(TerminatedTwice(), caplog)
    assert 5 not in jobs
    assert run.stats.lost == 1
    assert "worker 1, which was leaving, was killed by signal 15" in caplog.text


class TerminatedAtBirth(Faulty):
    """The zygote's third process, that of worker 1, is sent SIGTERM before it has executed anything."""

    def prepare(self):
        fork, calls = os.fork, itertools.count(1)

        def forked():
            number, process = next(calls), fork()
            if process == 0 and number == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return process

        os.fork = forked


@pytest.mark.new_interpreter
@pytest.mark.skipif(portable(), reason="there workers are not forked")
def test_a_sigterm_that_comes_before_a_worker_is_ready_is_not_forgotten(caplog):
    """It must not pass for one that the zygote was sent either, with which it has much in common at first."""
    train(TerminatedAtBirth(), caplog)
    assert "worker 1 was told to leave" in caplog.text


class Forks(Faulty):
    """Starts a process and sends SIGTERM to it, as a data loader does."""

    def gradient(self, point, sample):
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        return super().gradient(point, sample)


def test_sigterm_ends_the_processes_that_a_problem_forks():
    run = nw.train(Forks(), METHOD, workers=2, steps=4)
    assert events(run, 1) == []


def test_the_first_sigterm_calls_and_the_second_does_what_it_did_before():
    called, before = [], []
    old = signal.signal(signal.SIGTERM, lambda *_: before.append(True))
    try:
        with first_signals(called.append, [signal.SIGTERM]):
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, old)
    assert (called, len(before)) == (["SIGTERM"], 3)
