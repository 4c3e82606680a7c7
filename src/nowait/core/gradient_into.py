"""Checks of a user's ``gradient_into``: that it writes into ``out``, and that it computes what ``gradient`` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np

from nowait.core.memory import to_host
from nowait.core.randomness import Sample
from nowait.core.types import Vector, norm

SAME_WITHIN = 1e-3
"""The largest difference of two gradients, relative to their norm, that rounding on any device may explain."""


@final
class CheckedGradientInto:
    """Calls ``gradient_into`` of a class named ``kind``. The first gradient is compared with that of ``gradient``.

    ``gradient`` is None for problems whose gradients are not the same twice.
    """

    def __init__(
        self,
        gradient_into: Callable[[Vector, Sample, Vector], Any],
        gradient: Callable[[Vector, Sample], Any] | None,
        kind: str,
    ) -> None:
        self._write, self._kind = gradient_into, kind
        self._other = gradient
        """``gradient``, until its value was compared once."""

    def __call__(self, point: Vector, sample: Sample, out: Vector) -> None:
        """Write the gradient into ``out``, or raise a TypeError or ValueError."""
        expected = None if self._other is None else self._other(point, sample)
        returned = self._write(point, sample, out)
        if returned is not None and returned is not out:
            raise TypeError(
                f"{self._kind}.gradient_into(point, sample, out) returned {type(returned).__name__}: it must write the "
                f"gradient into out, as in out[:] = ..., and return nothing, because only out is used"
            )
        if expected is not None:
            self._compare(_as_array(expected), to_host(out))
            self._other = None

    def _compare(self, expected: Vector, out: Vector) -> None:
        if not np.isfinite(expected).all() or not np.isfinite(out).all():
            return  # the server has rules for gradients that are not finite
        if expected.shape == out.shape:
            largest = max(norm(expected), norm(out))
            if norm(expected.astype(out.dtype) - out) <= SAME_WITHIN * largest:
                return
        raise ValueError(
            f"{self._kind}.gradient_into(point, sample, out) and gradient(point, sample) compute different gradients: "
            f"norm {norm(out):.6g} and {norm(expected):.6g}. Runs use gradient_into, comparisons of problems use "
            f"gradient: let gradient call gradient_into, as the guide to your own problem shows. If gradients are "
            f"random, set replayable = False in the class"
        )


def is_of_the_library(function: Any) -> bool:
    """Whether this library defines a function: its own need no checks."""
    return str(getattr(function, "__module__", "")).startswith("nowait.")


def _as_array(gradient: Any) -> Vector:
    """Return what ``gradient`` returned, an array, a tensor or a list, as an array."""
    on_host = np.asarray(gradient) if isinstance(gradient, (list, tuple, float)) else to_host(gradient)
    return np.asarray(on_host)
