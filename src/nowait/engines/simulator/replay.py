"""Replay: pass the events of a trace to a server again and recompute the gradients, for the same iterates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from nowait.core import GradientArrived, Outcome, Resumed, Server, Ticket, WorkerLost
from nowait.core.memory import HOST, namespace_of, to_host
from nowait.core.notes import Note
from nowait.core.types import norm
from nowait.engines.hooks import FixedWorkers
from nowait.engines.progress import Progress
from nowait.engines.session import Parts, Session
from nowait.engines.simulator.simulator import virtual_worker
from nowait.recording import Run, Trace
from nowait.recording.files import vector_checksum
from nowait.recording.rows import OUTCOMES, STEP_COLUMNS, OtherEvent, Row

NORM_TOLERANCE = 1e-9
NOTE_TOLERANCE = 1e-6
REFUSAL = "the trace is of another problem, seed, method, update or initial params"
CAUSES = (
    "another processor, library, GPU or number of threads does this; if all are the same, a bit was flipped, or a "
    "gradient depends on more than point and sample"
)
ON_HOST = "; or params were in host memory (on a cluster, say): replay it with TorchProblem(..., params_on='host')"


def replay(parts: Parts, trace: Trace, seed: int, progress: bool | None) -> Run:
    """Repeat the run of a trace, and compare every row."""
    player = _Player(parts, trace, seed)
    with player.session.calling_on_end():
        with np.errstate(over="ignore", invalid="ignore"), Progress("replaying", progress) as bar:
            player.play(bar)
        return player.session.result(trace.seconds, "replay")


@final
class _Player:
    def __init__(self, parts: Parts, trace: Trace, seed: int) -> None:
        self.session = Session(parts, parts.server, parts.recorder, FixedWorkers("a replay follows its trace"))
        self._server: Server = parts.server
        self._recorder = parts.recorder
        self._trace = trace
        self._worker = virtual_worker(parts, seed, self.session.training_losses)
        self._checksums = dict(trace.checksums)
        """The checksums of the run that were not compared yet."""
        self._same_at = 0
        """The latest step after which the params had the same bits."""
        self._other_at: int | None = None
        """The first step with a checksum after which they had not."""
        self._other_norm: int | None = None
        """The first row whose gradient norm has other bits."""

    def play(self, bar: Progress) -> None:
        self.session.begin()
        self.session.start()
        total = max(1, len(self._trace))
        for row, event in self._trace.in_order():
            if self.session.finished:
                break
            if not isinstance(event, OtherEvent):
                self._play_arrival(row, Row._make(event))
            else:
                if isinstance(event, WorkerLost):
                    self._worker.forget(event.worker)
                elif isinstance(event, Resumed):
                    self._worker.forget_all()
                self.session.handle(event)
            self._compare_params()
            if bar.shown:
                bar.tick(lambda row=row: row / total)  # type: ignore[misc]
        self._compare_end()

    def _play_arrival(self, number: int, recorded: Row) -> None:
        ticket = Ticket(recorded.ticket, recorded.worker, recorded.version, recorded.job, recorded.started)
        gradient: Any = None
        if OUTCOMES[recorded.outcome] is not Outcome.LATE:
            ticket = self._in_flight(number, ticket)
            gradient = self._gradient(recorded, ticket)
        event = GradientArrived(ticket, gradient, recorded.time, recorded.started, recorded.compute_seconds)
        self._server.rejections.went_on = number + 1 < len(self._trace)
        self.session.handle(event)
        self._compare(number, recorded)

    def _in_flight(self, number: int, recorded: Ticket) -> Ticket:
        """Return the ticket of the replay with the same id; the trace does not record when a ticket was issued."""
        ticket = self._server.in_flight.get(recorded.id)
        if ticket is None or ticket._replace(time=recorded.time) != recorded:
            raise ValueError(f"row {number} of the trace has {recorded}, the replay has {ticket}: {REFUSAL}")
        return ticket

    def _gradient(self, recorded: Row, ticket: Ticket) -> Any:
        if math.isnan(recorded.gradient_norm):
            return namespace_of(self._server.params).full_like(self._server.params, math.nan)
        return self._worker.gradient(ticket, self._server.point(ticket))

    def _compare(self, number: int, recorded: Row) -> None:
        replayed = self._recorder.row(number)
        before, after = recorded.gradient_norm, replayed.gradient_norm
        if before != after and self._other_norm is None and not math.isnan(before):
            self._other_norm = number
        same_norm = math.isclose(before, after, rel_tol=NORM_TOLERANCE, abs_tol=1e-300)
        if not same_norm and not (math.isnan(before) and math.isnan(after)):
            raise ValueError(
                f"row {number} of the trace has gradient norm {before:.9g}, the replay {after:.9g}: {REFUSAL}"
                f"{'' if self._server.memory is HOST else ON_HOST}"
            )
        if recorded.delay != replayed.delay or recorded.outcome != replayed.outcome:
            raise ValueError(
                f"row {number} of the trace has delay {recorded.delay} and was {OUTCOMES[recorded.outcome]}, "
                f"in the replay delay {replayed.delay} and {OUTCOMES[replayed.outcome]}: {REFUSAL}"
            )

    def _compare_params(self) -> None:
        """Compare the bits of params after a step of which the trace has the checksum."""
        step = self._server.steps
        recorded = self._checksums.pop(step, None)
        if recorded is None:
            return
        if recorded == vector_checksum(to_host(self._server.params)):
            self._same_at = step
        elif self._other_at is None:
            self._other_at = step

    def _say_if_bits_differ(self) -> None:
        """Log that params have other bits than those of the run, if they do, and put it into the stats."""
        if self._other_at is None:
            return
        norms = "" if self._other_norm is None else f", and gradient norms before row {self._other_norm}"
        self.session.stop(
            f"the replay is not the run bit for bit: params after step {self._other_at} have other bits (those after "
            f"step {self._same_at} are equal{norms}), though norms agree to 1e-9: {CAUSES}"
        )

    def _compare_end(self) -> None:
        """Compare the steps of held gradients, which were made after their rows, and the norm of the last params."""
        first, replayed_trace = 0, self._recorder.trace()
        for recorded, replayed in _same_parts(self._trace, replayed_trace):
            _compare_steps(first, recorded, replayed)
            first += len(recorded)
        _compare_notes(self._trace.notes, replayed_trace.notes)
        recorded_norm, replayed_norm = self._trace.last_norm, norm(to_host(self._server.params))
        if not math.isclose(recorded_norm, replayed_norm, rel_tol=1e-6, abs_tol=1e-300):
            raise ValueError(
                f"the trace ends at params of norm {recorded_norm}, the replay at norm {replayed_norm}: {REFUSAL}"
            )
        self._say_if_bits_differ()


def _same_parts(trace: Trace, other: Trace) -> Iterator[tuple[NDArray[np.void], NDArray[np.void]]]:
    """Yield the rows of two traces in blocks of equal length, up to the end of the shorter one."""
    blocks = other.blocks()
    there = next(blocks, None)
    for here in trace.blocks():
        while there is not None and len(here):
            size = min(len(here), len(there))
            yield here[:size], there[:size]
            here, there = here[size:], there[size:]  # noqa: PLW2901
            if not len(there):
                there = next(blocks, None)


def _compare_notes(recorded: Sequence[Note], replayed: Sequence[Note]) -> None:
    """Raise if the replay noted something else. A trace without notes may come from before the method made any."""
    if not recorded:
        return
    for number, (here, there) in enumerate(zip_longest(recorded, replayed)):
        if here is None or there is None or not _is_same_note(here, there):
            raise ValueError(f"note {number} of the trace is {_shown(here)}, in the replay {_shown(there)}: {REFUSAL}")


def _is_same_note(here: Note, there: Note) -> bool:
    """Whether notes agree; their numbers may be computed from norms, which may differ in their last bits."""
    same = here[:3] == there[:3] and here.numbers.keys() == there.numbers.keys()
    return same and all(
        math.isclose(value, there.numbers[name], rel_tol=NOTE_TOLERANCE, abs_tol=1e-300)
        for name, value in here.numbers.items()
    )


def _shown(note: Note | None) -> str:
    return "missing" if note is None else f"{note.kind!r} {note.numbers} after {note.after} arrivals"


def _compare_steps(first: int, recorded: NDArray[np.void], replayed: NDArray[np.void]) -> None:
    for column in STEP_COLUMNS:
        differs = np.flatnonzero(~np.isclose(recorded[column], replayed[column], rtol=NORM_TOLERANCE, atol=0))
        if len(differs):
            row = int(differs[0])
            raise ValueError(
                f"row {first + row} of the trace has {column} {recorded[column][row]}, "
                f"the replay {replayed[column][row]}: {REFUSAL}"
            )
