"""Replay: feed a trace to a server again, recompute the gradients, and arrive at the same iterates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from nowait.core import GradientArrived, Outcome, Resumed, Server, Ticket, WorkerLost
from nowait.core.types import norm
from nowait.engines.progress import Progress
from nowait.engines.session import Parts, Session
from nowait.engines.simulator.simulator import VirtualWorker
from nowait.recording import Run, Trace
from nowait.recording.rows import COLUMNS, OUTCOMES, OtherEvent

NORM_TOLERANCE = 1e-9
DELAY, NORM, OUTCOME = (COLUMNS.index(name) for name in ("delay", "gradient_norm", "outcome"))
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
        self._worker = VirtualWorker(parts.capabilities, seed, like=parts.server.params)

    def play(self, bar: Progress) -> None:
        self.session.start()
        total = max(1, len(self._trace))
        for row, event in self._trace.in_order():
            if self.session.finished:
                break
            if not isinstance(event, OtherEvent):
                self._play_arrival(row, event)
            else:
                if isinstance(event, WorkerLost):
                    self._worker.forget(event.worker)
                elif isinstance(event, Resumed):
                    self._worker.forget_all()
                self.session.handle(event)
            if bar.shown:
                bar.tick(lambda row=row: row / total)  # type: ignore[misc]
        self._compare_end()

    def _play_arrival(self, row: int, recorded: tuple[Any, ...]) -> None:
        ticket_id, worker, job, version, _, time, started, compute_seconds = recorded[:8]
        ticket = Ticket(ticket_id, worker, version, job, started)
        outcome = OUTCOMES[recorded[OUTCOME]]
        gradient: Any = None
        if outcome is not Outcome.LATE:
            ticket = self._in_flight(row, ticket)
            gradient = self._gradient(recorded, ticket)
        self.session.handle(GradientArrived(ticket, gradient, time, started, compute_seconds))
        self._compare(row, recorded)

    def _in_flight(self, row: int, recorded: Ticket) -> Ticket:
        ticket = self._server.in_flight.get(recorded.id)
        if ticket is None or ticket[:4] != recorded[:4]:
            raise ValueError(
                f"row {row} of the trace has {recorded[:4]}, the replay has {ticket and ticket[:4]}: {REFUSAL}"
            )
        return ticket

    def _gradient(self, recorded: tuple[Any, ...], ticket: Ticket) -> Any:
        if math.isnan(recorded[NORM]):
            return np.full_like(self._server.params, math.nan)
        return self._worker.gradient(ticket, self._server.point(ticket))

    def _compare(self, row: int, recorded: tuple[Any, ...]) -> None:
        replayed = self._recorder.row(row).tolist()[0]
        same_norm = math.isclose(recorded[NORM], replayed[NORM], rel_tol=NORM_TOLERANCE, abs_tol=1e-300) or (
            math.isnan(recorded[NORM]) and math.isnan(replayed[NORM])
        )
        if not same_norm:
            raise ValueError(
                f"row {row} of the trace has gradient norm {recorded[NORM]:.9g}, "
                f"the replay {replayed[NORM]:.9g}: {REFUSAL}"
            )
        if recorded[DELAY] != replayed[DELAY] or recorded[OUTCOME] != replayed[OUTCOME]:
            raise ValueError(
                f"row {row} of the trace has delay {recorded[DELAY]} and was {OUTCOMES[recorded[OUTCOME]]}, "
                f"in the replay delay {replayed[DELAY]} and {OUTCOMES[replayed[OUTCOME]]}: {REFUSAL}"
            )

    def _compare_end(self) -> None:
        """Held gradients got their steps after their rows were compared; and the last params tell of the update."""
        first = 0
        for recorded, replayed in _same_parts(self._trace, self._recorder.trace()):
            _compare_steps(first, recorded, replayed)
            first += len(recorded)
        recorded_norm, replayed_norm = self._trace.last_norm, norm(self._server.params)
        if not math.isclose(recorded_norm, replayed_norm, rel_tol=1e-6, abs_tol=1e-300):
            raise ValueError(
                f"the trace ends at params of norm {recorded_norm}, the replay at norm {replayed_norm}: {REFUSAL}"
            )


def _same_parts(trace: Trace, other: Trace) -> Iterator[tuple[NDArray[np.void], NDArray[np.void]]]:
    """The rows of two traces, a part at a time, up to the end of the shorter one."""
    blocks = other.blocks()
    there = next(blocks, None)
    for here in trace.blocks():
        while there is not None and len(here):
            size = min(len(here), len(there))
            yield here[:size], there[:size]
            here, there = here[size:], there[size:]  # noqa: PLW2901
            if not len(there):
                there = next(blocks, None)


def _compare_steps(first: int, recorded: NDArray[np.void], replayed: NDArray[np.void]) -> None:
    for column in ("step", "weight", "stepsize"):
        differs = np.flatnonzero(~np.isclose(recorded[column], replayed[column], rtol=NORM_TOLERANCE, atol=0))
        if len(differs):
            row = int(differs[0])
            raise ValueError(
                f"row {first + row} of the trace has {column} {recorded[column][row]}, "
                f"the replay {replayed[column][row]}: {REFUSAL}"
            )
