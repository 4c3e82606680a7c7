"""Lets workers compute gradients of others once more, and compares them: see ``Audits`` for the decisions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, final

from nowait.core import BadWorkerError, Server, Ticket
from nowait.core.audit import Audit, Summary, checksum_of
from nowait.core.errors import WorkerFailedError
from nowait.core.memory import HOST, to_host
from nowait.core.types import Vector
from nowait.core.versions import Version
from nowait.engines.session import Parts
from nowait.engines.workers.audits import CHANGED, MOST_FAILURES, MOST_LOSSES, Audits, Check, Verdict
from nowait.engines.workers.state import WorkerState
from nowait.engines.workers.workforce import Workforce
from nowait.fleet.wire.records import Instruction

logger = logging.getLogger("nowait")

DEPENDS = (
    "The gradients of this problem depend on more than the point and the sample, such as random numbers of a generator "
    "of its own (if that is meant, replayable = False says so)"
)


@final
class Auditor:
    """Chooses gradients when they arrive, sends them to other workers between their own tickets, and judges."""

    def __init__(self, audits: Audits, server: Server, workforce: Workforce, time: Callable[[], float | None]) -> None:
        """``time()`` is the time of an order that is sent now; None while no orders may be sent."""
        self._audits, self._server, self._workforce, self._time = audits, server, workforce, time
        self.chooses, self.waiting = audits.chooses, audits.waiting
        self.reported = audits.reported
        self.final: BadWorkerError | None = None
        """The error that ends the run."""
        self._off = False
        """True once it is known that computing a gradient again gives another one, whoever does it."""

    @classmethod
    def of(
        cls, parts: Parts, workforce: Workforce, audit: Audit | None, time: Callable[[], float | None]
    ) -> Auditor | None:
        """Return the auditor of a run; None without an audit, or if computing a gradient again gives another one."""
        can = parts.capabilities
        if audit is None or not can.auditable:
            return None
        dtype = str(to_host(parts.server.params[:1]).dtype)
        audits = Audits(audit, parts.server.seed, dtype, on_host=parts.server.memory is HOST)
        return cls(audits, parts.server, workforce, time)

    def begin(self, state: WorkerState, ticket: Ticket, version: Version, gradient: Vector) -> Check | None:
        """Choose a gradient that has arrived, if it is the first one of its process or in the share."""
        chosen = not state.checked or (self.chooses is not None and self.chooses(ticket[1], ticket[3]))
        if not chosen or self._off or not self._fits(gradient):
            return None
        state.checked = True
        alone = len(self._workforce.workers) < 2
        summary = self._summary(gradient)
        check = self._audits.begin(ticket, state.place, summary, alone=alone)
        has_statistics = len(self._server.trained(gradient)) < len(gradient)
        check.delivered = self._checksum_of_trained(gradient) if has_statistics else summary.checksum
        if check.number < 0:
            self._server.lend(check.number, version)
        return check

    def end(self, check: Check, gradient: Vector) -> None:
        """Look at a gradient again when the server has used it, and let workers that wait for nothing compute it.

        Raises ``BadWorkerError`` if it has changed since its worker delivered it.
        """
        if check.changed or self._checksum_of_trained(gradient) != check.delivered:
            raise self._error(check.worker, CHANGED)
        self._send_all()

    def send(self, state: WorkerState) -> bool:
        """Let a free worker compute a gradient of another one. Returns False if there is none for it."""
        now = self._time()
        if state.channel is None or now is None:
            return False
        places = {other.worker: other.place for other in self._workforce.states.values() if other.worker >= 0}
        check = self._audits.next_for(state.worker, places)
        if check is None:
            return False
        state.ticket, state.version, state.warned = check.ticket._replace(id=check.number), None, False
        state.sent, state.hurried = now, False
        slot = self._server.lent(check.number).slot
        state.channel.send(check.number, check.ticket.job, slot, Instruction.AUDIT + check.worker)
        return True

    def _send_all(self) -> None:
        for worker in self._workforce.workers if self.waiting else ():
            state = self._workforce.states[worker]
            if state.ticket is None:
                self.send(state)

    def audited(self, state: WorkerState, number: int, gradient: Vector) -> BadWorkerError | None:
        """Compare a gradient that was computed again. Returns the error of the worker that is wrong, if one is.

        Raises ``WorkerFailedError`` if nobody knows who is wrong.
        """
        if self._off:
            self.drop(number)
            return None
        verdict = self._audits.answered(number, state.worker, state.place, self._summary(gradient))
        if not verdict.finished:
            if verdict.reason:
                logger.warning("audit: %s; further computations decide who is wrong", verdict.reason)
            self._send_all()
            return None
        self._server.take_back(number)
        return self._judge(verdict)

    def _judge(self, verdict: Verdict) -> BadWorkerError | None:
        if verdict.wrong is not None:
            error = self._error(verdict.wrong, verdict.reason)
            if verdict.rejected:
                self.final = None  # a faulty worker or machine is given up, and the others go on
            has_moved = self._workforce.place_of(error.worker) != verdict.place
            if has_moved and self.final is None:
                logger.warning("audit: %s: it is gone from that machine already", error)
                return None
            return error
        if verdict.unrepeatable and self.chooses is None:
            self._off = True
            for number in list(self.waiting):
                self.drop(number)
            logger.warning("audit: %s. %s: no more are compared, and no replay is possible", verdict.reason, DEPENDS)
        elif verdict.unrepeatable:
            raise WorkerFailedError(f"audit: {verdict.reason}. {DEPENDS}: they cannot be audited, leave audit= out")
        elif verdict.reason:
            raise WorkerFailedError(f"audit: {verdict.reason}")
        return None

    def failed(self, state: WorkerState, text: str) -> None:
        """Go on if a worker cannot compute a gradient of another one."""
        ticket, state.ticket = state.ticket, None
        assert ticket is not None
        failures = self._audits.failed(ticket[1])
        if failures == MOST_FAILURES:
            text = f"{text.splitlines()[0]}. No more gradients of that worker are compared"
        if failures <= MOST_FAILURES:
            what = f"worker {state.worker} could not compute a gradient of worker {ticket[1]}"
            logger.warning("audit: %s:\n%s", what, text)
        self.drop(ticket[0])

    def drop(self, number: int) -> None:
        """Forget a check."""
        if number < 0:
            self._audits.drop(number)
            self._server.take_back(number)

    def lost(self, ticket: Ticket | None) -> None:
        """Let another worker compute a check, if a worker that is gone was computing it; but not again and again."""
        if ticket is None or ticket[0] >= 0 or self._audits.lost(ticket[0]):
            return
        logger.warning(
            "audit: %d workers were lost while they computed a gradient of worker %d: it is not compared. Their memory "
            "may be too small for its batches",
            MOST_LOSSES,
            ticket[1],
        )
        self.drop(ticket[0])

    def say(self) -> None:
        """Say at the end of the run how many gradients were compared, and which were not."""
        audits = self._audits
        if audits.disputed and not self._off:
            logger.warning("audit: %s; the run ended before one more computation could decide", audits.disputed)
        if audits.close_calls:
            logger.warning(
                "first gradients of %d worker processes differ by more than other processors cause when another worker "
                "computes them again: see the page on failures",
                audits.close_calls,
            )
        if self.chooses is not None:
            logger.info("audit: %d gradients were computed twice, %d were left out", audits.compared, audits.left_out)

    def _error(self, worker: int, reason: str) -> BadWorkerError:
        error = BadWorkerError(worker, reason)
        self.final = error if self._audits.ends_the_run else None
        return error

    def _summary(self, gradient: Vector) -> Summary:
        whole = to_host(gradient)
        return Summary.of(self._server.trained(whole), whole if self._audits.takes_bits else None)

    def _checksum_of_trained(self, gradient: Vector) -> int | None:
        """Return a checksum without the statistics, which the server changes; None if bits are not compared."""
        return checksum_of(self._server.trained(to_host(gradient))) if self._audits.takes_bits else None

    def _fits(self, gradient: Any) -> bool:
        """Return False for a gradient that the server rejects."""
        params, memory = self._server.params, self._server.memory
        return type(gradient) is type(params) and gradient.shape == params.shape and memory.is_finite(gradient)
