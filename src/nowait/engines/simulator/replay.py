"""Replay: feed a trace to a server again, recompute the gradients, and arrive at the same iterates."""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np

from nowait.core import GradientArrived, Outcome, Resumed, Server, Ticket, WorkerLost
from nowait.core.types import norm
from nowait.engines.progress import Progress
from nowait.engines.session import Parts, Session
from nowait.engines.simulator.simulator import VirtualWorker
from nowait.recording import Run, Trace
from nowait.recording.trace import OUTCOMES

NORM_TOLERANCE = 1e-9
REFUSAL = "the trace is of another problem, seed, method, update or initial params"


def replay(parts: Parts, trace: Trace, seed: int, progress: bool | None) -> Run:
    """The run of the trace once more, checked row by row."""
    player = _Player(parts, trace, seed)
    with np.errstate(over="ignore", invalid="ignore"), Progress("replaying", progress) as bar:
        player.play(bar)
    return player.session.result(trace.seconds, "replay")


@final
class _NoWorkforce:
    def add_worker(self) -> None:
        raise RuntimeError("a replay follows its trace: workers cannot be added")

    def remove_worker(self, worker: int) -> None:
        raise RuntimeError(f"a replay follows its trace: worker {worker} cannot be removed")


@final
class _Player:
    def __init__(self, parts: Parts, trace: Trace, seed: int) -> None:
        self.session = Session(parts, _NoWorkforce())
        self._server: Server = parts.server
        self._recorder = parts.recorder
        self._trace = trace
        self._rows: list[tuple[Any, ...]] = trace.arrivals.tolist()
        self._worker = VirtualWorker(parts.problem, seed, like=parts.server.params)

    def play(self, bar: Progress) -> None:
        self.session.start()
        for row, event in self._trace.in_order():
            if self.session.finished:
                break
            if event is None:
                self._play_arrival(row)
            else:
                if isinstance(event, WorkerLost):
                    self._worker.forget(event.worker)
                elif isinstance(event, Resumed):
                    self._worker.forget_all()
                self.session.handle(event)
            if bar.shown:
                bar.tick(lambda row=row: row / len(self._rows))  # type: ignore[misc]
        self._compare_end()

    def _play_arrival(self, row: int) -> None:
        ticket_id, worker, job, version, _, time, started, compute_seconds = self._rows[row][:8]
        ticket = Ticket(ticket_id, worker, version, job, started)
        outcome = OUTCOMES[self._rows[row][10]]
        gradient: Any = None
        if outcome is not Outcome.LATE:
            ticket = self._in_flight(row, ticket)
            gradient = self._gradient(row, ticket)
        self.session.handle(GradientArrived(ticket, gradient, time, started, compute_seconds))
        self._compare(row)

    def _in_flight(self, row: int, recorded: Ticket) -> Ticket:
        ticket = self._server.in_flight.get(recorded.id)
        if ticket is None or ticket[:4] != recorded[:4]:
            raise ValueError(
                f"row {row} of the trace has {recorded[:4]}, the replay has {ticket and ticket[:4]}: {REFUSAL}"
            )
        return ticket

    def _gradient(self, row: int, ticket: Ticket) -> Any:
        if math.isnan(self._rows[row][9]):
            return np.full_like(self._server.params, math.nan)
        return self._worker.gradient(ticket, self._server.point(ticket))

    def _compare(self, row: int) -> None:
        recorded, replayed = self._rows[row], self._recorder.row(row).tolist()[0]
        same_norm = math.isclose(recorded[9], replayed[9], rel_tol=NORM_TOLERANCE, abs_tol=1e-300) or (
            math.isnan(recorded[9]) and math.isnan(replayed[9])
        )
        if not same_norm:
            raise ValueError(
                f"row {row} of the trace has gradient norm {recorded[9]:.9g}, the replay {replayed[9]:.9g}: {REFUSAL}"
            )
        if recorded[4] != replayed[4] or recorded[10] != replayed[10]:
            raise ValueError(
                f"row {row} of the trace has delay {recorded[4]} and was {OUTCOMES[recorded[10]]}, "
                f"in the replay delay {replayed[4]} and {OUTCOMES[replayed[10]]}: {REFUSAL}"
            )

    def _compare_end(self) -> None:
        """Held gradients got their steps after their rows were compared; and the last params tell of the update."""
        replayed = self._recorder.trace().arrivals
        for column in ("step", "weight", "stepsize"):
            recorded = self._trace.arrivals[column][: len(replayed)]
            differs = np.flatnonzero(~np.isclose(recorded, replayed[column], rtol=NORM_TOLERANCE, atol=0))
            if len(differs):
                row = int(differs[0])
                raise ValueError(
                    f"row {row} of the trace has {column} {recorded[row]}, "
                    f"the replay {replayed[column][row]}: {REFUSAL}"
                )
        recorded_norm, replayed_norm = self._trace.last_norm, norm(self._server.params)
        if not math.isclose(recorded_norm, replayed_norm, rel_tol=1e-6, abs_tol=1e-300):
            raise ValueError(
                f"the trace ends at params of norm {recorded_norm}, the replay at norm {replayed_norm}: {REFUSAL}"
            )
