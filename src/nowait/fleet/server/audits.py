"""Compares gradients that were computed twice, and decides which worker is wrong. No clock, no input or output."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from nowait.core import Ticket
from nowait.core.audit import LOW_PRECISION, OTHER_PROCESSORS, STOP, Audit, Chosen, Summary
from nowait.fleet.server.events import HOME
from nowait.fleet.wire.records import check_number

MOST_PENDING = 64
"""So many gradients at most wait for their second computation; more are not audited."""
MOST_LOSSES = 2
"""After so many workers were lost while they computed a gradient again, it is not computed again any more."""
MOST_FAILURES = 2
"""After so many gradients of a worker in a row that no other could compute, no more of it are compared."""
CHANGED = (
    "changed its gradient after it had delivered it: a thread or an operation of its own still writes to the array of "
    "the gradient"
)
ASK = (
    "gradients must depend on the point and the sample only; if they do, check data and memory of these machines; if "
    "they are meant to depend on the process or on chance, pass audit=False, or let the problem have replayable = False"
)


Answer = tuple[int, int, Summary]
"""Worker, host and summary of one computation of a gradient."""


@final
@dataclass(frozen=True)
class Accusation:
    """A worker seems to be wrong, because the answer of another one agrees with that of a third computation."""

    wrong: Answer
    right: Answer
    reason: str


@final
@dataclass
class Check:
    """One gradient that is computed again. ``number`` is below 0 and stands for its ticket in orders and reports.

    It is 0 if nobody computes the gradient again, because there is only one worker or many others wait.
    """

    number: int
    ticket: Ticket
    exact: bool
    """True if it belongs to the share whose bits are compared where that is possible."""
    changed: bool = False
    """True if the gradient was changed after its worker had delivered it."""
    delivered: int | None = None
    """The checksum of what must be the same after the server has used the gradient; None if bits are not compared."""
    reason: str = ""
    """How two computations differ, if a third one has to decide."""
    accused: Accusation | None = None
    """Who seems to be wrong. A last computation has to confirm it."""
    losses: int = 0
    """How many workers were lost while they computed it."""
    next_host: int | None = None
    """A worker on this host computes it next, if one there has not computed it yet."""
    next_workers: tuple[int, ...] = ()
    """One of these workers computes it next, if any is there; empty: a worker that has not computed it yet."""
    answers: list[Answer] = field(default_factory=list)
    """All computations; the first is that of the ticket's own worker."""

    @property
    def worker(self) -> int:
        """The worker of the ticket."""
        return self.ticket.worker


@final
@dataclass(frozen=True)
class Verdict:
    """What became of a check."""

    finished: bool = True
    """False if one more computation has to decide."""
    wrong: int | None = None
    """The worker that computed wrongly; None if there is none, or nobody knows which."""
    reason: str = ""
    """What is wrong, to be put after the worker's name, or about all workers; empty if there is nothing to say."""
    host: int = HOME
    """Where that worker computed."""
    rejected: bool = False
    """True if the wrong gradient contains NaN or infinity: the server never uses such gradients."""
    unrepeatable: bool = False
    """True if workers contradict themselves, so that nobody is at fault: gradients depend on something else as well."""


def _verdict(wrong: Answer, reason: str) -> Verdict:
    return Verdict(wrong=wrong[0], reason=reason, host=wrong[1], rejected=math.isnan(wrong[2].length))


@final
class Audits:
    """The checks of one run that wait for a computation or are being computed."""

    def __init__(self, audit: Audit, seed: int, dtype: str, *, on_host: bool) -> None:
        self._audit, self._on_host, self._dtype = audit, on_host, dtype
        self.chooses: Callable[[int, int], bool] | None = Chosen(seed, audit.share) if audit.share > 0 else None
        """Returns True for the share of all tickets, by worker and job; None if the share is 0."""
        self.takes_bits = on_host and audit.share > 0 and audit.tolerance is None
        """True if checksums of gradients are compared."""
        self.ends_the_run = audit.on_difference == STOP
        """True if the run ends when a worker is found to be wrong."""
        self._largest_of_one_worker = LOW_PRECISION.get(dtype, 1.0) / 10
        """The largest distance of two computations of one worker that may still be due to low precision."""
        self.waiting: dict[int, Check] = {}
        """The checks that no worker computes now, by number; the oldest first."""
        self._computed: dict[int, Check] = {}
        self._checksums: dict[int, tuple[int, int]] = {}
        self._failures: Counter[int] = Counter()
        """How many gradients of a worker in a row no other worker could compute."""
        self.compared = self.left_out = 0
        """How many gradients were computed again and compared, and how many were not because too many waited."""
        self.close_calls = 0
        """How many first gradients differed by more than other processors may cause, but not clearly."""

    def begin(self, ticket: Ticket, host: int, summary: Summary, *, alone: bool) -> Check:
        """Begin the check of a gradient that has arrived. ``alone``: there is no other worker."""
        exact = self.chooses is not None and self.chooses(ticket.worker, ticket.job)
        check = Check(0, ticket, exact, self._was_changed(ticket, summary), answers=[(ticket.worker, host, summary)])
        is_full = len(self.waiting) + len(self._computed) >= MOST_PENDING
        if alone or is_full or self._failures[ticket.worker] >= MOST_FAILURES:
            self.left_out += 1
            return check
        check.number = check_number(ticket.id)
        self.waiting[check.number] = check
        return check

    def next_for(self, worker: int, hosts: dict[int, int]) -> Check | None:
        """Take a check that this worker may compute; ``hosts`` has the host of every worker."""
        for number, check in self.waiting.items():
            if self._may_compute(worker, check, hosts):
                del self.waiting[number]
                self._computed[number] = check
                return check
        return None

    def _may_compute(self, worker: int, check: Check, hosts: dict[int, int]) -> bool:
        """Return True for a worker that has to compute it next, or another one, on another machine if there is one."""
        before = [answer[0] for answer in check.answers]
        others, own_host = [other for other in hosts if other not in before], check.answers[0][1]
        neighbours = [other for other in others if hosts[other] == check.next_host]
        if neighbours:
            return worker in neighbours
        if any(other in hosts for other in check.next_workers):
            return worker in check.next_workers
        if worker in before:
            return not others and len(before) > 1 and worker == check.worker
        return hosts[worker] != own_host or all(hosts[other] == own_host for other in others)

    def lost(self, number: int) -> bool:
        """Let another worker compute a check, whose worker is gone; returns False if that has happened too often."""
        check = self._computed.pop(number, None)
        if check is None:
            return True
        check.losses += 1
        if check.losses < MOST_LOSSES:
            self.waiting[number] = check
            return True
        self._failures[check.worker] += 1
        return False

    def failed(self, worker: int) -> int:
        """Count that another worker could not compute a gradient of this one; returns how many there were in a row."""
        self._failures[worker] += 1
        return self._failures[worker]

    def drop(self, number: int) -> None:
        """Forget a check."""
        self._computed.pop(number, None)
        self.waiting.pop(number, None)

    def answered(self, number: int, worker: int, host: int, summary: Summary) -> Verdict:
        """Compare one more computation with those before."""
        check = self._computed.pop(number)
        del self._failures[check.worker]
        check.answers.append((worker, host, summary))
        own, other = check.answers[:2]
        if len(check.answers) == 2:
            self.compared += 1
            if self._agree(check, own, other):
                return Verdict()
            check.reason = self._difference(check, own, other)
            return self._ask(check, (), check.reason)
        return self._decide(check)

    def _ask(self, check: Check, workers: tuple[int, ...], reason: str = "") -> Verdict:
        """Let one of these workers compute it next; of none, a worker that has not computed it yet."""
        check.next_workers = workers
        self.waiting[check.number] = check
        return Verdict(finished=False, reason=reason)

    def _decide(self, check: Check) -> Verdict:
        """Decide by further computations who of two workers was wrong.

        A worker is wrong if a third one agrees with the other; of two, if one agrees later with the other. One more
        computation confirms it: a problem with a state of its own may give two workers the same gradient by chance.
        """
        own, other, *_, last = check.answers
        if check.accused is not None:
            return self._confirm(check, check.accused, last)
        for wrong, right in ((own, other), (other, own)):
            if right[0] != last[0] and self._agree(check, right, last):
                later = " the second time" if last[0] == wrong[0] else ""
                reason = f"computes wrongly: {check.reason}, and worker {last[0]} agrees with worker {right[0]}{later}"
                check.accused = Accusation(wrong, right, reason)
                if right[1] == last[1] != wrong[1]:  # two workers of one machine may have the same fault
                    check.next_host = wrong[1]
                return self._ask(check, tuple({right[0], last[0]} - {wrong[0]}))
        if len(check.answers) == 3:
            return self._ask(check, (other[0] if last[0] == own[0] else own[0],))
        return self._without_majority(check)

    def _confirm(self, check: Check, accused: Accusation, last: Answer) -> Verdict:
        """Decide by a computation of another worker on the accused one's machine, or by one of its accusers."""
        if last[0] in check.next_workers:
            first = next(answer for answer in check.answers if answer[0] == last[0])
            is_steady = self._agree(check, first, last) and not first[2].distance(last[2]) > self._largest_of_one_worker
            return _verdict(accused.wrong, accused.reason) if is_steady else self._unrepeatable(check, last[0])
        if self._agree(check, accused.right, last):
            return _verdict(accused.wrong, accused.reason)
        if self._agree(check, accused.wrong, last):
            return Verdict(reason=f"{check.reason}, and each agrees with another worker of its machine: {ASK}")
        check.next_host = None
        return self._ask(check, check.next_workers)

    def _without_majority(self, check: Check) -> Verdict:
        """Decide by which workers contradict themselves, where no two agree."""
        firsts = {answer[0]: answer for answer in reversed(check.answers)}
        again = [answer for answer in check.answers if answer is not firsts[answer[0]]]
        fickle = [answer for answer in again if not self._agree(check, firsts[answer[0]], answer)]
        if fickle and len(fickle) == len(again):
            return self._unrepeatable(check, fickle[0][0])
        if fickle:
            return _verdict(fickle[0], f"computes wrongly: {check.reason}, and it contradicts itself")
        third = check.answers[2][0]
        how = "each says the same again" if len(firsts) == 2 else f"worker {third} agrees with neither"
        return Verdict(reason=f"{check.reason}, and {how}: {ASK}")

    def _unrepeatable(self, check: Check, worker: int) -> Verdict:
        return Verdict(reason=f"{check.reason}, and worker {worker} contradicts itself", unrepeatable=True)

    @property
    def disputed(self) -> str:
        """How two workers differ that wait for a third one; empty if none do."""
        checks = [*self.waiting.values(), *self._computed.values()]
        return next((check.reason for check in checks if check.reason), "")

    def _difference(self, check: Check, first: Answer, second: Answer) -> str:
        distance = first[2].distance(second[2])
        how = f"by {distance:.2g} of their norm" if distance > math.ulp(0.0) else "in some bits"
        if distance == math.inf:
            how = "because one of them contains NaN or infinity"
        what = f"gradients of job {check.ticket.job} of worker {check.worker}"
        return f"workers {first[0]} and {second[0]} computed {what} that differ {how}"

    def _agree(self, check: Check, first: Answer, second: Answer) -> bool:
        distance, usual = first[2].distance(second[2]), OTHER_PROCESSORS.get(self._dtype, 0.0)
        if not check.exact:
            self.close_calls += usual < distance <= LOW_PRECISION.get(self._dtype, 1.0)
            return not distance > LOW_PRECISION.get(self._dtype, 1.0)
        if self._audit.tolerance is not None:
            return not distance > self._audit.tolerance
        return not distance > (0.0 if self._on_host and first[1] == second[1] else usual)

    # Writes to a gradient after it was delivered

    def reported(self, worker: int, ticket: int, checksum: int) -> None:
        """Note the checksum that a worker has taken of its gradient."""
        self._checksums[worker] = (ticket, checksum)

    def _was_changed(self, ticket: Ticket, summary: Summary) -> bool:
        """Return True if a gradient is not the one that its worker has taken a checksum of."""
        number, checksum = self._checksums.pop(ticket.worker, (None, None))
        return number == ticket.id and summary.checksum is not None and summary.checksum != checksum
