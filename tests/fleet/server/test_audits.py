"""Workers that compute wrongly are noticed: another worker computes some gradients again, a third decides."""

import logging

import numpy as np
import pytest

import nowait as nw
from faulty import Quadratic
from nowait.core import Ticket, sampler
from nowait.core.audit import Chosen, Summary, checked_audit, checksum_of
from nowait.core.capabilities import Capabilities
from nowait.fleet.server.audits import MOST_FAILURES, MOST_PENDING, Audits
from nowait.fleet.server.events import HOME
from nowait.fleet.server.patience import FIRST_DEADLINE
from nowait.fleet.server.workers import State, Worker
from nowait.testing import CATALOGUE, train_scripted
from nowait.testing.scripted import Die, Leave, LeaveWorker, Open, Report

ASYNCHRONOUS = nw.AsynchronousSGD(nw.DelayAdaptive(0.05))
WRONG = 1
"""The worker whose process computes wrongly."""
MANY = 10**4


class Wrong:
    """A quadratic; the process of one worker computes wrongly. ``me`` is the process, whoever's sample it computes."""

    def __init__(self, kind, dimension=8):
        self.kind, self.dimension = kind, dimension
        self.problem = Quadratic(dimension, 0.1)
        self.initial, self.loss = self.problem.initial, self.problem.loss
        self.calls = 0

    def gradient(self, point, sample):
        raise NotImplementedError  # replaced by ``in_process_of``

    def compute(self, point, sample, process):
        if process != WRONG or self.kind == "nothing":
            return self.problem.gradient(point, sample)
        self.calls += 1
        return getattr(self, self.kind)(point, sample)

    def other_seed(self, point, sample):
        return self.problem.gradient(point, sampler(99).sample(sample.worker, sample.job))

    def other_data(self, point, sample):
        return self.problem.gradient(point, sample) + 1.0

    def other_sign(self, point, sample):
        return -self.problem.gradient(point, sample)

    def through_float32(self, point, sample):
        return self.problem.gradient(point, sample).astype(np.float32).astype(np.float64)

    def one_bit_in_20(self, point, sample):
        gradient = self.problem.gradient(point, sample)
        if self.calls % 20 == 0:
            gradient.view(np.uint64)[3] ^= np.uint64(1 << 20)
        return gradient

    def noisy(self, point, sample):
        return self.problem.gradient(point, sample) + self.calls

    def not_finite(self, point, sample):
        return np.full_like(point, np.nan)

    def zeros(self, point, sample):
        return np.zeros_like(point)


def train(kind, workers=3, audit=None, script=(), **options):
    """Train with workers of which one is wrong; ``Computation`` is told in which process it computes."""
    problem = Wrong(kind)
    return train_scripted(
        problem,
        options.pop("method", ASYNCHRONOUS),
        workers=workers,
        steps=options.pop("steps", 400),
        audit=audit,
        script=script,
        **options,
    )


@pytest.fixture(autouse=True)
def processes(monkeypatch):
    """Let each imagined process compute with a problem that knows whose process it is."""
    from nowait.testing import scripted

    class InProcess:
        def __init__(self, problem, process):
            self._problem, self._process = problem, process
            self.dimension, self.initial, self.loss = problem.dimension, problem.initial, problem.loss

        def gradient(self, point, sample):
            return self._problem.compute(point, sample, self._process)

    original = scripted.Computation

    def computation(worker, problem, *others):
        return original(worker, InProcess(problem, worker) if hasattr(problem, "compute") else problem, *others)

    monkeypatch.setattr(scripted, "Computation", computation)


# Which guard notices which worker


@pytest.mark.parametrize("kind", ["other_seed", "other_data", "other_sign", "zeros"])
def test_the_first_gradient_of_a_process_notices_gross_errors(kind, caplog):
    with pytest.raises(nw.BadWorkerError, match=r"worker 1 computes wrongly: workers \d and \d computed") as caught:
        train(kind, audit=nw.Audit(0.0))
    assert caught.value.worker == WRONG


@pytest.mark.parametrize(("kind", "share"), [("through_float32", 0.05), ("one_bit_in_20", 1.0)])
def test_the_audit_of_a_share_notices_wrong_bits(kind, share, caplog):
    assert train(kind, audit=nw.Audit(0.0)).stats.steps == 400, "the first gradients are compared only roughly"
    with pytest.raises(nw.BadWorkerError, match="worker 1 computes wrongly: ") as caught:
        train(kind, audit=nw.Audit(share))
    assert caught.value.worker == WRONG
    assert "further computations decide who is wrong" in caplog.text


def test_a_replacement_is_checked_as_well(caplog):
    """The worker is wrong only after its process was replaced."""
    problem = Wrong("nothing")

    def break_it():
        problem.kind = "other_data"

    from nowait.testing.scripted import Call

    script = [*[Report()] * 30, Call(break_it), Die(WRONG)]
    with pytest.raises(nw.BadWorkerError, match="worker 1 computes wrongly"):
        train_scripted(problem, ASYNCHRONOUS, workers=3, steps=400, audit=nw.Audit(0.0), script=script)


def test_of_two_workers_neither_is_blamed_unless_it_contradicts_itself(caplog):
    with pytest.raises(
        nw.WorkerFailedError,
        match=r"workers [01] and [01] computed .* and each says the same again: .* pass audit=False",
    ):
        train("through_float32", workers=2, audit=nw.Audit(0.05))
    with pytest.raises(
        nw.BadWorkerError, match=r"worker 1 computes wrongly: .*, and worker 1 agrees with worker 0 the second time"
    ):
        train("one_bit_in_20", workers=2, audit=nw.Audit(1.0))


class OwnState(Quadratic):
    """A quadratic with an own generator of random numbers, which every process has a copy of."""

    def __init__(self, seed_of):
        super().__init__(8, 0.1)
        self.rngs = [np.random.default_rng(seed_of(process)) for process in range(4)]

    def compute(self, point, sample, process):
        return point + self.rngs[process].normal(size=8)


SEEDS_OF_PROCESSES = {"one seed": lambda process: 0, "other seeds": lambda process: process}


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("seeds", SEEDS_OF_PROCESSES)
def test_no_worker_is_blamed_for_a_problem_with_a_state_of_its_own(workers, seeds, caplog):
    """Processes with the same seed agree by chance; asked again, each contradicts itself."""
    problem = OwnState(SEEDS_OF_PROCESSES[seeds])
    script = [*[Report()] * 40, Die(0)]
    run = train_scripted(problem, ASYNCHRONOUS, workers=workers, steps=200, audit=nw.Audit(0.0), script=script)
    assert run.stats.steps == 200
    [message] = [message for message in caplog.messages if "contradicts itself" in message]
    assert "depend on more than the point and the sample" in message
    with pytest.raises(nw.WorkerFailedError, match=r"contradicts itself.*leave audit= out"):
        train_scripted(problem, ASYNCHRONOUS, workers=workers, steps=MANY, audit=nw.Audit(0.2))


@pytest.mark.parametrize(("again", "wrong"), [(0.0, 0), (0.02, None)])
def test_a_worker_that_repeats_itself_only_roughly_accuses_nobody(again, wrong):
    """Workers 1 and 2 agree by chance, within what is accepted between processors."""
    audits, hosts = Audits(nw.Audit(0.0), 0, "float64", on_host=True), dict.fromkeys(range(3), HOME)
    summaries = [Summary.of(np.array([1.0, entry])) for entry in (0.1, 0.0, 0.01, again)]
    number = audits.begin(Ticket(0, 0, 0, 0), HOME, summaries[0], alone=False).number
    for worker, summary in zip((1, 2, 1), summaries[1:], strict=True):
        assert audits.next_for(worker, hosts) is not None
        verdict = audits.answered(number, worker, HOME, summary)
    assert (verdict.finished, verdict.wrong, verdict.unrepeatable) == (True, wrong, wrong is None)


def test_of_two_workers_the_one_that_contradicts_itself_is_wrong(caplog):
    with pytest.raises(nw.BadWorkerError, match=r"worker 1 computes wrongly: .*, and it contradicts itself"):
        train("noisy", workers=2, audit=nw.Audit(0.0))


def test_a_wrong_worker_can_be_left_out(caplog):
    run = train("through_float32", audit=nw.Audit(0.05, on_difference="leave out"))
    assert (run.stats.steps, run.stats.diverged) == (400, False)
    assert set(run.trace.worker[-50:].tolist()) == {0, 2}
    [message] = [message for message in caplog.messages if "it is no longer replaced" in message]
    assert message.startswith("worker 1 computes wrongly: ")


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_a_worker_that_sends_nan_is_given_up_and_does_not_end_the_run(share, caplog):
    """The server rejects NaN, so it is never in params."""
    run = train("not_finite", audit=nw.Audit(share))
    assert (run.stats.steps, run.stats.diverged) == (400, False)
    [message] = [message for message in caplog.messages if "it is no longer replaced" in message]
    assert message.startswith("worker 1 ")


def test_nan_agrees_only_with_nan():
    good, bad = Summary.of(np.ones(3)), Summary.of(np.array([1.0, np.nan, 1.0]))
    assert (good.distance(bad), bad.distance(good), bad.distance(bad)) == (np.inf, np.inf, 0.0)


def test_a_tolerance_accepts_what_is_smaller(caplog):
    assert train("through_float32", audit=nw.Audit(0.2, tolerance=1e-6)).stats.steps == 400


def test_on_different_machines_what_other_processors_cause_is_accepted(caplog):
    script = [Open(1, 2, "one"), Open(2, 1, "two")]
    assert train("through_float32", audit=nw.Audit(0.2), script=script, seats=0, minimum=3).stats.steps == 400
    with pytest.raises(nw.BadWorkerError, match="worker 1 computes wrongly"):
        train("other_data", audit=nw.Audit(0.0), script=script, seats=0, minimum=3)


def test_of_two_machines_that_contradict_each_other_none_is_blamed(caplog):
    """Workers 0 and 1 are on one machine, 2 and 3 on one with other data; later only worker 2 has those."""
    problem = Wrong("other_data")
    machine = {0: 0, 1: 0, 2: WRONG, 3: WRONG}
    problem.compute = lambda point, sample, process: Wrong.compute(problem, point, sample, machine[process])
    script = [Open(1, 2, "one"), Open(2, 2, "two")]
    with pytest.raises(nw.WorkerFailedError, match="each agrees with another worker of its machine"):
        train_scripted(
            problem, ASYNCHRONOUS, workers=4, steps=MANY, audit=nw.Audit(0.0), script=script, seats=0, minimum=4
        )
    machine[3] = 0
    with pytest.raises(nw.BadWorkerError, match="worker 2 computes wrongly"):
        train_scripted(
            problem, ASYNCHRONOUS, workers=4, steps=MANY, audit=nw.Audit(0.0), script=script, seats=0, minimum=4
        )


class Writing(nw.Method):
    """While the server uses a gradient of a worker, that worker writes to its slot: job ``job`` of worker 1."""

    def __init__(self, method):
        self.method = method
        self.start, self.on_join, self.on_leave = method.start, method.on_join, method.on_leave
        self.on_timer, self.on_reissue, self.pending_stepsize = (
            method.on_timer,
            method.on_reissue,
            method.pending_stepsize,
        )

    def on_arrival(self, server, arrival):
        self.method.on_arrival(server, arrival)
        if arrival.worker == WRONG:
            arrival.gradient.base[0] = 1e9


def test_a_late_write_to_a_gradient_is_noticed(caplog):
    with pytest.raises(nw.BadWorkerError, match="worker 1 changed its gradient after it had delivered it"):
        train("nothing", method=Writing(ASYNCHRONOUS), audit=nw.Audit(0.1))
    assert train("nothing", method=Writing(ASYNCHRONOUS), audit=nw.Audit(0.0)).stats.steps == 400


def test_a_write_between_the_checksum_and_the_arrival_is_noticed():
    audits = Audits(nw.Audit(1.0), 0, "float64", on_host=True)
    gradient = np.arange(4.0)
    audits.reported(1, 7, checksum_of(gradient))
    gradient[2] = 5.0
    check = audits.begin(Ticket(7, 1, 0, 0), HOME, Summary.of(gradient, gradient), alone=False)
    assert check.changed
    audits.reported(1, 8, checksum_of(gradient))
    check = audits.begin(Ticket(8, 1, 0, 1), HOME, Summary.of(gradient, gradient), alone=False)
    assert not check.changed


class WithStatistics(Quadratic):
    """A quadratic whose last entry but one is a statistic: the server makes its change longer in place."""

    num_statistics, statistics_momentum = 2, 0.1

    def initial(self):
        return np.append(np.zeros(self.dimension - 1), 1.0)

    def gradient(self, point, sample):
        return np.append(super().gradient(point, sample)[:-2], [0.9 * point[-2] + 0.1, 1.0])


def test_that_the_server_changes_statistics_is_no_late_write(caplog):
    run = train_scripted(WithStatistics(5, 0.1), ASYNCHRONOUS, workers=3, steps=60, audit=nw.Audit(0.5))
    assert (run.stats.steps, caplog.messages) == (60, [])
    with pytest.raises(nw.BadWorkerError, match="worker 1 changed its gradient after it had delivered it"):
        train_scripted(WithStatistics(5, 0.1), Writing(ASYNCHRONOUS), workers=3, steps=60, audit=nw.Audit(0.5))


# An audit changes nothing


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_audited_run_of_every_method_replays_to_the_same_bits(name, caplog):
    problem = Quadratic(5, 0.1)
    script = [*[Report()] * 40, Die(1), *[Report()] * 20, LeaveWorker(0)]
    run = train_scripted(problem, CATALOGUE[name], workers=4, steps=40, audit=nw.Audit(0.3), script=script, seed=3)
    assert run.stats.steps == 40
    again = nw.replay(run.trace, problem, CATALOGUE[name], seed=3)
    assert np.array_equal(again.last, run.last)
    jobs = [run.trace.job[run.trace.worker == worker] for worker in range(4)]
    assert all(len(set(job.tolist())) == len(job) for job in jobs), "no ticket of an audit is in the trace"


def test_the_same_arrivals_make_the_same_run_with_an_audit(caplog):
    """Workers report in the same order; the audits come in between."""
    problem = Quadratic(5, 0.1)
    audited = train_scripted(problem, ASYNCHRONOUS, workers=2, steps=30, audit=nw.Audit(0.5))
    order = iter([Report(worker) for worker in audited.trace.worker.tolist()])
    plain = train_scripted(problem, ASYNCHRONOUS, workers=2, steps=30, script=order)
    assert np.array_equal(plain.last, audited.last)
    for column in ["ticket", "worker", "job", "version", "delay", "outcome", "step", "weight", "stepsize"]:
        assert np.array_equal(plain.trace.arrivals[column], audited.trace.arrivals[column]), column


def test_the_audit_computes_the_share_that_was_asked_for(caplog):
    caplog.set_level(logging.INFO, logger="nowait")
    run = train_scripted(Quadratic(5, 0.1), ASYNCHRONOUS, workers=3, steps=3_000, audit=nw.Audit(0.1))
    [message] = [message for message in caplog.messages if message.startswith("audit: ")]
    count = int(message.split()[1])
    chosen = Chosen(0, 0.1)
    expected = sum(chosen(worker, job) for worker, job in zip(run.trace.worker, run.trace.job, strict=True))
    assert abs(count - expected) <= 5, "the first gradients, and those of the end of the run"
    assert 250 < expected < 350


def test_no_process_or_check_is_left_when_workers_die_leave_or_fail_while_they_audit(caplog):
    parts = []
    problem = Quadratic(5, 0.1)
    script = [
        Report(0),
        Report(1),
        Die(1),
        *[Report()] * 9,
        LeaveWorker(2),
        *[Report()] * 9,
        Die(0),
        Open(5, 2),
        Leave(5),
    ]
    run = train_scripted(
        problem, ASYNCHRONOUS, workers=4, steps=100, audit=nw.Audit(1.0), script=script, look=parts.append
    )
    assert run.stats.steps == 100


class FailsElsewhere:
    """A quadratic whose gradients only the worker of the sample can compute."""

    def __init__(self):
        self.problem, self.dimension = Quadratic(5, 0.1), 5
        self.initial, self.loss = self.problem.initial, self.problem.loss
        self.asked = []

    def gradient(self, point, sample):
        if (sample.worker, sample.job) in self.asked:
            raise OSError("no such file")
        self.asked.append((sample.worker, sample.job))
        return self.problem.gradient(point, sample)


def test_a_worker_that_cannot_compute_a_gradient_of_another_one_is_said(caplog):
    run = train_scripted(FailsElsewhere(), ASYNCHRONOUS, workers=2, steps=20, audit=nw.Audit(0.0))
    assert (run.stats.steps, run.stats.lost) == (20, 0)
    assert "audit: worker 1 could not compute a gradient of worker 0:\nOSError" in caplog.text


def test_gradients_of_a_worker_that_others_cannot_compute_are_soon_left_alone(caplog):
    run = train_scripted(FailsElsewhere(), ASYNCHRONOUS, workers=2, steps=300, audit=nw.Audit(1.0))
    assert (run.stats.steps, run.stats.lost) == (300, 0)
    assert len([message for message in caplog.messages if "could not compute" in message]) == 2 * MOST_FAILURES
    assert caplog.text.count("No more gradients of that worker are compared") == 2


def test_an_audit_that_kills_its_workers_is_not_tried_for_ever(caplog):
    """Worker 0 delivers its first gradient; whoever computes it again runs out of memory and dies."""
    script = [Report(0), Report(1), Die(1), Die(1), *[Report()] * 30]
    run = train_scripted(Quadratic(5, 0.1), ASYNCHRONOUS, workers=3, steps=20, audit=nw.Audit(0.0), script=script)
    assert (run.stats.steps, run.stats.lost) == (20, 2)
    assert "2 workers were lost while they computed a gradient of worker 0: it is not compared" in caplog.text


def test_a_gradient_of_a_worker_with_large_batches_may_take_long_in_an_audit():
    worker = Worker(1, State.COMPUTING)
    worker.durations.add(0.1)
    worker.ticket = Ticket(7, 1, 0, 0)
    assert not worker.hangs(at=4.0)
    assert worker.hangs(at=6.0)
    worker.ticket, worker.task = None, Ticket(-8, 0, 0, 0)
    assert not worker.hangs(at=FIRST_DEADLINE - 1.0)
    assert worker.hangs(at=FIRST_DEADLINE + 1.0)


def test_a_disagreement_at_the_end_of_a_run_is_said(caplog):
    script = [Report(0), Report(1), Report(1), Report(2)]
    train("other_data", steps=3, audit=nw.Audit(0.0), script=script)
    assert "the run ended before one more computation could decide" in caplog.text


def test_only_so_many_gradients_wait():
    audits = Audits(nw.Audit(1.0), 0, "float64", on_host=True)
    summary = Summary.of(np.ones(3))
    for job in range(MOST_PENDING + 3):
        audits.begin(Ticket(job, 0, 0, job), HOME, summary, alone=False)
    assert (len(audits.waiting), audits.left_out) == (MOST_PENDING, 3)


# Settings


@pytest.mark.parametrize(
    ("audit", "expected"),
    [(True, nw.Audit(0.0)), (False, None), (None, None), (0.25, nw.Audit(0.25)), (nw.Audit(1), nw.Audit(1.0))],
)
def test_an_audit_is_a_share_or_true_or_false(audit, expected):
    assert checked_audit(audit) == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"share": 1.5}, "must be at most 1, got 1.5"),
        ({"share": -0.1}, "the share of an audit must be a finite number of at least 0"),
        ({"tolerance": -1.0}, "tolerance must be a finite number of at least 0"),
        ({"on_difference": "warn"}, 'on_difference must be "stop"'),
    ],
)
def test_wrong_settings_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        nw.Audit(**arguments)


def test_a_wrong_type_is_refused():
    with pytest.raises((TypeError, ValueError), match="share"):
        checked_audit("often")


def test_what_is_audited_is_a_function_of_seed_worker_and_job():
    shares = [Chosen(seed, 0.01) for seed in (3, 3, 4)]
    chosen = [[(worker, job) for job in range(5_000) for worker in (0, 7) if share(worker, job)] for share in shares]
    assert chosen[0] == chosen[1] != chosen[2]
    assert 60 < len(chosen[0]) < 150
    again = Chosen(3, 0.01)
    assert [(w, j) for w, j in reversed(chosen[0]) if again(w, j)] == chosen[0][::-1], "in any order"


class WithShares(Quadratic):
    """A quadratic whose processes may have different data."""

    def take_share(self, share, num_shares):
        pass


class WithSharesOfAll(WithShares):
    repeatable = True


def test_problems_whose_processes_differ_are_not_audited(caplog):
    with pytest.raises(ValueError, match=r"audit=0.1: gradients of this WithShares depend on the data of each process"):
        nw.train(WithShares(5, 0.1), ASYNCHRONOUS, workers=2, steps=20, audit=0.1)
    assert not Capabilities.of(WithShares(5, 0.1)).auditable
    assert Capabilities.of(WithSharesOfAll(5, 0.1)).auditable
    assert not Capabilities.of(nw.problems.Compressed(Quadratic(5, 0.1), nw.problems.TopK(1))).auditable
