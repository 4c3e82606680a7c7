"""What to think of gradients that cannot be used: a broken worker, or a run that diverged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from nowait.core.errors import BadWorkerError
from nowait.core.types import Vector

MOST_IN_A_ROW = 5
"""So many bad gradients in a row from one worker settle the question."""


class GradientRejected(Exception):  # noqa: N818 (a signal inside the server, never seen outside)
    """The gradient being handled cannot be used. Ends ``on_arrival`` before it has had any effect."""


class Diverged(Exception):  # noqa: N818 (a signal inside the server, never seen outside)
    """Params would stop being finite."""


@final
@dataclass(slots=True)
class Counts:
    """How many gradients and tickets came to which end."""

    gradients: int = 0
    dropped: int = 0
    rejected: int = 0
    late: int = 0
    lost: int = 0
    cancelled: int = 0


@final
class Rejections:
    """Remembers which workers' latest gradients were bad, and the bad ones since the last good one of anybody."""

    __slots__ = ("in_a_row", "streak")

    def __init__(self) -> None:
        self.in_a_row: dict[int, int] = {}
        """How many bad gradients in a row each worker has sent."""
        self.streak: list[int] = []
        """The senders of the bad gradients since anybody sent a good one."""

    def good(self, worker: int) -> None:
        """A usable gradient arrived (or the worker left)."""
        self.in_a_row.pop(worker, None)
        self.streak.clear()

    def bad(self, worker: int, gradient: object, params: Vector, num_workers: int) -> str | None:
        """A bad gradient: None to go on, a reason to call the run diverged, or an error naming the worker."""
        self.in_a_row[worker] = self.in_a_row.get(worker, 0) + 1
        self.streak.append(worker)
        if _kind(gradient) != _kind(params):
            self._wrong_kind(worker, gradient, params)
            return None
        return self._not_finite(worker, params, num_workers)

    def _not_finite(self, worker: int, params: Vector, num_workers: int) -> str | None:
        """When a run diverges nobody's gradients are finite any more; a broken worker is alone with it."""
        if len(self.streak) >= MOST_IN_A_ROW and len(set(self.streak)) > 1:
            return f"the last {len(self.streak)} gradients, from {len(set(self.streak))} workers, are not finite"
        if self.in_a_row[worker] < MOST_IN_A_ROW:
            return None
        if num_workers == 1 or _has_exploded(params):
            return f"the last {MOST_IN_A_ROW} gradients of worker {worker} are not finite"
        raise BadWorkerError(
            worker,
            f"sent {MOST_IN_A_ROW} gradients in a row with NaN or infinity, while the gradients of others are finite "
            f"and params are: look at its data and its machine, or remove it",
        )

    def _wrong_kind(self, worker: int, gradient: object, params: Vector) -> None:
        if self.in_a_row[worker] >= MOST_IN_A_ROW or len(set(self.streak)) > 1:
            raise BadWorkerError(
                worker,
                f"sent {_kind(gradient)} for a gradient, but params are {_kind(params)}: "
                f"gradient(point, sample) must return one number per param",
            )


def _kind(value: object) -> str:
    return f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def _has_exploded(params: Vector) -> bool:
    """Are params so large that arithmetic on them overflows? Then it is not the worker's fault."""
    return bool(np.abs(params).max() > np.finfo(params.dtype).max ** 0.25)
