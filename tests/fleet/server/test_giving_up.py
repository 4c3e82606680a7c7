"""One faulty host or worker does not end the run: the worker is given up, then its host; the run ends if all fail."""

import numpy as np
import pytest

import nowait as nw
from faulty import Faulty
from nowait.fleet.server.patience import FIRST_DEADLINE
from nowait.testing import train_scripted
from nowait.testing.scripted import IgnoreKill, Open, Report

ASYNCHRONOUS = nw.AsynchronousSGD(nw.DelayAdaptive(0.05))
FAULTY_HOST, GOOD_HOST = 1, 2
JOB = 4
"""The first job at which workers of the faulty host fail."""


class FaultyHost:
    """A quadratic whose workers fail if they run on the faulty host, from some job on."""

    dimension = 3

    def __init__(self, fault, first=JOB):
        self.fault, self.first, self.faulty = fault, first, {0, 1}

    def initial(self):
        return np.zeros(3)

    def loss(self, point):
        return float(((point - 1.0) ** 2).sum())

    def gradient(self, point, sample):
        gradient = point - 1.0 + 0.1 * sample.normals(3)
        if sample.worker in self.faulty and sample.job >= self.first:
            if self.fault == "error":
                raise ValueError("no such file")
            return np.full(3, np.nan) if self.fault == "nan" else np.zeros(4)
        return gradient


def two_hosts(fault, first=JOB, reports=60):
    """Workers 0 and 1 on a faulty host that reports quickly, worker 2 on a good one that reports later."""
    opened = [Open(FAULTY_HOST, 2, "bad"), Open(GOOD_HOST, 1, "good")]
    if first > 0:
        opened += [Report(worker) for worker in (0, 1, 2) * first]
    return [*opened, *[Report(worker) for _ in range(reports) for worker in (0, 1)]]


def events(run, kind):
    return [int(event["worker"]) for event in run.trace.events if event["kind"] == kind]


@pytest.mark.parametrize("first", [JOB, 0], ids=["later", "from the start"])
@pytest.mark.parametrize("fault", ["nan", "misfit", "error"])
def test_one_faulty_host_is_given_up_and_the_others_go_on(fault, first, caplog):
    """All faults come within a second, while the good host has sent nothing."""
    problem, parts = FaultyHost(fault, first), []
    script = two_hosts(fault, first)
    run = train_scripted(
        problem, ASYNCHRONOUS, workers=3, steps=40, script=script, seats=0, minimum=3, look=parts.append
    )
    assert (run.stats.steps, run.stats.diverged) == (40, False)
    assert parts[0].hosts.ended == [FAULTY_HOST]
    given_up = [message for message in caplog.messages if "is given up" in message]
    assert len(given_up) == 1
    assert given_up[0].startswith("the host bad is given up, because worker")
    assert run.trace.worker[-10:].tolist() == [2] * 10
    again = nw.replay(run.trace, problem, ASYNCHRONOUS)
    assert np.array_equal(again.last, run.last)
    assert (again.stats.lost, again.stats.rejected) == (run.stats.lost, run.stats.rejected)


@pytest.mark.parametrize("fault", ["nan", "misfit", "error"])
def test_the_run_ends_if_all_hosts_fail(fault, caplog):
    problem = FaultyHost(fault, 0)
    problem.faulty = {0, 1, 2}
    error = nw.WorkerFailedError if fault == "error" else nw.BadWorkerError
    script = two_hosts(fault, 0)

    def train():
        return train_scripted(problem, ASYNCHRONOUS, workers=3, steps=40, script=script, seats=0, minimum=3)

    if fault == "nan":  # of several machines: so the run diverged
        assert train().stats.diverged
        return
    with pytest.raises(error, match="no such file" if fault == "error" else "sent float64 of shape"):
        train()


@pytest.mark.parametrize("fault", ["nan", "misfit", "fail"])
def test_on_one_machine_a_faulty_worker_is_given_up_and_the_others_go_on(fault, caplog):
    faults = {(1, job): fault for job in range(5, 10_000)}
    run = train_scripted(Faulty(faults), ASYNCHRONOUS, workers=2, steps=60)
    assert run.stats.steps == 60
    assert events(run, 1)[-1] == 1
    assert run.trace.worker[-10:].tolist() == [0] * 10
    [message] = [message for message in caplog.messages if "no longer replaced" in message]
    assert message.startswith("worker 1 ")


@pytest.mark.parametrize("fault", ["misfit", "fail"])
def test_if_all_workers_of_this_machine_fail_the_run_ends_with_the_error_of_the_last(fault, caplog):
    faults = {(worker, job): fault for worker in range(2) for job in range(5, 10_000)}
    with pytest.raises((nw.BadWorkerError, nw.WorkerFailedError), match="worker"):
        train_scripted(Faulty(faults), ASYNCHRONOUS, workers=2, steps=60)


# Workers that cannot be killed


def test_a_host_that_does_not_kill_a_hanging_worker_is_given_up(caplog):
    parts = []
    script = [Open(FAULTY_HOST, 2, "bad"), Open(GOOD_HOST, 2, "good"), *[Report()] * 20, IgnoreKill(0)]
    run = train_scripted(
        Faulty(),
        ASYNCHRONOUS,
        workers=3,
        seconds=FIRST_DEADLINE + 60.0,
        script=script,
        seats=0,
        minimum=3,
        replace_hung=True,
        evaluate_every=10**9,
        look=parts.append,
    )
    assert parts[0].hosts.ended == [FAULTY_HOST]
    assert parts[0].hosts.started.count((0, GOOD_HOST)) == 1
    assert (
        "the host bad is given up, because worker 0 was killed, but its process did not end within 10 s; its workers "
        "[0, 1] are replaced"
    ) in caplog.messages
    assert 0 in run.trace.worker[-10:]
