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
    """Remembers which workers' latest gradients were bad, and for how long."""

    __slots__ = ("in_a_row",)

    def __init__(self) -> None:
        self.in_a_row: dict[int, int] = {}

    def good(self, worker: int) -> None:
        """A usable gradient (or the loss of the worker) clears its record."""
        self.in_a_row.pop(worker, None)

    def bad(self, worker: int, gradient: object, params: Vector, num_workers: int) -> str | None:
        """A bad gradient: None to go on, a reason to call the run diverged, or an error naming the worker."""
        in_a_row = self.in_a_row[worker] = self.in_a_row.get(worker, 0) + 1
        if _kind(gradient) != _kind(params):
            self._wrong_kind(worker, gradient, params)
            return None
        return self._not_finite(worker, in_a_row, params, num_workers)

    def _not_finite(self, worker: int, in_a_row: int, params: Vector, num_workers: int) -> str | None:
        num_bad = len(self.in_a_row)
        if num_bad >= max(2, (num_workers + 1) // 2):
            return f"the gradients of {num_bad} workers are not finite"
        if in_a_row < MOST_IN_A_ROW:
            return None
        if num_bad >= 2 or num_workers == 1 or _has_exploded(params):
            return f"gradients are not finite, {in_a_row} in a row from worker {worker}"
        raise BadWorkerError(
            worker,
            f"sent {in_a_row} gradients in a row with NaN or infinity, while the gradients of others are finite "
            f"and params are: look at its data and its machine, or remove it",
        )

    def _wrong_kind(self, worker: int, gradient: object, params: Vector) -> None:
        if self.in_a_row[worker] >= MOST_IN_A_ROW or len(self.in_a_row) >= 2:
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
