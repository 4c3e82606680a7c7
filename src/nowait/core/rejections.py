"""Decides what bad gradients mean: a broken worker, or a run that diverged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import numpy as np

from nowait.core.errors import BadWorkerError
from nowait.core.memory import memory_of, namespace_of
from nowait.core.messages import Ticket
from nowait.core.types import Vector

MOST_IN_A_ROW = 5
"""After this many bad gradients in a row a decision is made, if other workers allow a comparison."""
MOST_ALONE = 50
"""After this many it is made even if no other worker delivers anything."""
MOST_OF_A_MACHINE = 10
"""After this many in a row a worker is blamed if workers on other machines have sent no bad ones meanwhile."""


class GradientRejected(Exception):  # noqa: N818 (a signal inside the server, never seen outside)
    """The gradient being handled is invalid. Raised out of ``on_arrival`` before it has had any effect."""


class Diverged(Exception):  # noqa: N818 (a signal inside the server, never seen outside)
    """Params would stop being finite."""


@final
class Rejections:
    """Distinguishes a broken worker from a run that diverged.

    When a run diverges, no worker's gradients are finite any more. A broken worker is the only one that sends bad
    gradients, while others deliver good ones at points as new as its own. The point itself may be the cause, so after
    five tries at one point a worker continues at the current params; it is reported only if it fails there too.

    ``machine_of`` says on which machine a worker is. If there are several, the bad gradients of all workers of one
    machine may have one cause, so they do not mean that the run diverged.
    """

    __slots__ = ("in_a_row", "machine_of", "newest_good", "streak", "went_on", "wrong_kind")

    def __init__(self) -> None:
        self.forget_machines()
        self.went_on = False
        """True in a replay before its last row: the run is known to have gone on after the gradient."""
        self.forget_all()

    def forget_machines(self) -> None:
        """Take all workers to be on one machine."""
        self.machine_of: Callable[[int], int] = lambda _: 0

    def forget_all(self) -> None:
        """Start anew, as after a resume."""
        self.in_a_row: dict[int, int] = {}
        """How many bad gradients in a row each worker has sent."""
        self.streak: list[int] = []
        """The senders of the bad gradients since the last good one of any worker."""
        self.newest_good = -1
        """The newest version at which a good gradient was computed, since the first bad one."""
        self.wrong_kind: set[int] = set()
        """The workers that sent something of the wrong size or type."""

    def good(self, worker: int, version: int) -> None:
        """Record a valid gradient of a worker."""
        self.newest_good = max(self.newest_good, version)
        self.forget(worker)

    def forget(self, worker: int) -> None:
        """Reset the counts of a worker, which sent a valid gradient or left."""
        self.in_a_row.pop(worker, None)
        self.wrong_kind.discard(worker)
        self.streak.clear()

    def tried_enough(self, worker: int) -> bool:
        """Returns True if the worker has used up its tries at one point."""
        return self.in_a_row[worker] % MOST_IN_A_ROW == 0

    def bad(self, ticket: Ticket, gradient: object, params: Vector, workers: Iterable[int]) -> str | None:
        """Record a bad gradient, while these workers live. Returns the reason if the run diverged, else None.

        Raises ``BadWorkerError`` if the worker is broken.
        """
        worker = ticket.worker
        self.in_a_row[worker] = self.in_a_row.get(worker, 0) + 1
        self.streak.append(worker)
        machines = {number: self.machine_of(number) for number in workers}
        try:
            return self._judge(ticket, gradient, params, machines)
        except BadWorkerError:
            if self.went_on:
                return None
            raise

    def _judge(self, ticket: Ticket, gradient: object, params: Vector, machines: Mapping[int, int]) -> str | None:
        if _kind(gradient, params) != _kind(params, params):
            self._wrong_kind(ticket.worker, gradient, params, machines)
            return None
        reason = self._not_finite(ticket, params, machines)
        return None if self.went_on else reason

    def _not_finite(self, ticket: Ticket, params: Vector, machines: Mapping[int, int]) -> str | None:
        senders, in_a_row = set(self.streak), self.in_a_row[ticket.worker]
        if _have_several_causes(senders, machines) and len(self.streak) >= MOST_IN_A_ROW:
            return f"the last {len(self.streak)} gradients, from {len(senders)} workers, are not finite"
        if in_a_row < MOST_IN_A_ROW:
            return None
        if in_a_row > MOST_IN_A_ROW and self.newest_good >= ticket.version:
            raise BadWorkerError(
                ticket.worker,
                f"sent {in_a_row} gradients in a row with NaN or infinity, while others deliver finite ones at points "
                f"of the same age: check its data and its machine, or remove it",
            )
        if _has_exploded(params):
            return f"the last {in_a_row} gradients of worker {ticket.worker} are not finite"
        if len(set(machines.values())) > 1 and in_a_row >= MOST_OF_A_MACHINE:
            raise BadWorkerError(
                ticket.worker,
                f"sent {in_a_row} gradients in a row with NaN or infinity, and workers on other machines sent none: "
                f"check its data and its machine, or remove it",
            )
        if len(machines) == 1 or in_a_row >= MOST_ALONE:
            return f"the last {in_a_row} gradients of worker {ticket.worker} are not finite"
        return None

    def _wrong_kind(self, worker: int, gradient: object, params: Vector, machines: Mapping[int, int]) -> None:
        self.wrong_kind.add(worker)
        if self.in_a_row[worker] >= MOST_IN_A_ROW or _have_several_causes(self.wrong_kind, machines):
            raise BadWorkerError(
                worker,
                f"sent {_kind(gradient, params)} for a gradient, but params are {_kind(params, params)}: "
                f"gradient(point, sample) must return one number per param",
            )


def _have_several_causes(workers: set[int], machines: Mapping[int, int]) -> bool:
    """Returns True if no single faulty worker, or machine where there are several, can be the cause."""
    if len(set(machines.values())) > 1:
        return len({machines[worker] for worker in workers if worker in machines}) > 1
    return len(workers) > 1


def _kind(value: Any, params: Vector) -> str:
    if isinstance(value, np.ndarray | memory_of(params).kind):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return type(value).__name__


def _has_exploded(params: Vector) -> bool:
    """Returns True if params are so large that arithmetic on them overflows; then the worker is not the cause."""
    functions = namespace_of(params)
    return bool(functions.abs(params).max() > functions.finfo(params.dtype).max ** 0.25)
