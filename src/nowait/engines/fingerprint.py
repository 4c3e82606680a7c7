"""Fingerprints of problems, by which ``nw.resume`` detects that it was given another problem."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, final

import numpy as np

from nowait.core import sampler
from nowait.core.capabilities import Capabilities
from nowait.core.problem import initial_params
from nowait.core.types import norm
from nowait.problems.encoded import without_encoding

logger = logging.getLogger("nowait")

SAME_WITHIN = 1e-3
"""Relative difference of gradient norms that nondeterministic kernels may cause."""
OTHER_ABOVE = 1e-2
"""Relative difference of gradient norms above which problems are different; below it there is only a warning."""


class Match(Enum):
    """The result of comparing two fingerprints."""

    SAME = "same"
    UNSURE = "unsure"
    OTHER = "other"


@final
@dataclass(frozen=True)
class Fingerprint:
    """Size and dtype of params, and the norm of one gradient at ``problem.initial()`` (None if it is not finite)."""

    size: int
    dtype: str
    gradient_norm: float | None

    @classmethod
    def of(cls, problem: Any) -> Fingerprint:
        """Compute the fingerprint. This runs user code, so call it in a worker process.

        It does not depend on how vectors are sent.
        """
        problem = without_encoding(problem)
        point = initial_params(problem)
        point.flags.writeable = False
        size, dtype = point.size, str(point.dtype)
        gradient = np.asarray(problem.gradient(point, sampler(0).sample(0, 0)))
        del point  # it may be large, and the norm needs memory of its own
        length = float(norm(gradient)) if np.isfinite(gradient).all() else math.inf
        return cls(size, dtype, length if math.isfinite(length) else None)

    @classmethod
    def read(cls, entry: Any) -> Fingerprint | None:
        """Read the entry of ``config.json``; return None if no fingerprint was recorded."""
        if entry is None:
            return None
        try:
            (size, dtype), length = entry["params"], entry["gradient_norm"]
            return cls(int(size), str(dtype), None if length is None else float(length))
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"config.json was changed: its fingerprint is {entry!r}") from None

    def described(self, problem: Any) -> dict[str, Any]:
        """Return the entry for ``config.json``."""
        params = [self.size, self.dtype]
        return {"problem": repr(problem)[:200], "params": params, "gradient_norm": self.gradient_norm}

    def compare(self, other: Fingerprint, *, deterministic: bool) -> Match:
        """Compare with another fingerprint. If gradients are not deterministic, different norms prove nothing."""
        if (self.size, self.dtype) != (other.size, other.dtype):
            return Match.OTHER
        if self.gradient_norm is None or other.gradient_norm is None:
            return Match.UNSURE
        if math.isclose(self.gradient_norm, other.gradient_norm, rel_tol=SAME_WITHIN, abs_tol=1e-300):
            return Match.SAME
        close = math.isclose(self.gradient_norm, other.gradient_norm, rel_tol=OTHER_ABOVE)
        return Match.UNSURE if close or not deterministic else Match.OTHER

    def __str__(self) -> str:
        length = "that is not finite" if self.gradient_norm is None else f"of norm {self.gradient_norm:.9g}"
        return f"params {[self.size, self.dtype]} and a first gradient {length}"


@final
class Identification:
    """Records the fingerprint of a run's problem, or compares it with the recorded one.

    ``keep`` is called with an entry for ``config.json`` when a fingerprint is recorded.
    """

    def __init__(self, problem: Any, recorded: Any, folder: str, keep: Callable[[dict[str, Any]], None]) -> None:
        self._problem, self._entry, self._folder, self._keep = problem, recorded, folder, keep
        self._recorded = Fingerprint.read(recorded)
        self.compares = self._recorded is not None
        """True if there is a recorded fingerprint. Then no step may be made before the comparison."""

    def known(self, given: Fingerprint) -> None:
        """Record or compare the fingerprint that was computed. Raises ValueError if it is that of another problem."""
        if self._recorded is None:
            self._keep(given.described(self._problem))
            return
        match = self._recorded.compare(given, deterministic=Capabilities.of(self._problem).replayable)
        if match is Match.OTHER:
            raise other_problem(self._folder, self._entry, str(given))
        if match is Match.UNSURE:
            logger.warning(
                "the problem may not be the one of %s: that had %s; this one has %s",
                self._folder,
                self._recorded,
                given,
            )

    def unknown(self, cause: str) -> None:
        """Log that the fingerprint could not be computed; the run continues without it."""
        if self._recorded is None:
            logger.warning("the problem has no fingerprint, so nw.resume will not be able to compare it: %s", cause)
        else:
            logger.warning("the problem could not be compared with the one of %s: %s", self._folder, cause)


def other_problem(folder: object, recorded: dict[str, Any], given: str) -> ValueError:
    """Return the error for a run that is resumed with another problem."""
    was = Fingerprint.read(recorded)
    return ValueError(
        f"{folder} is a run of another problem: that was {recorded.get('problem')} with {was}; this one has {given}"
    )
