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
from nowait.core.audit import LOW_PRECISION, OTHER_PROCESSORS
from nowait.core.capabilities import Capabilities
from nowait.core.problem import initial_params
from nowait.core.randomness import Stream, children
from nowait.core.types import Floats, Vector, norm
from nowait.numerics.splitmix import GOLDEN, MASK
from nowait.problems.encoded import without_encoding
from nowait.recording.errors import ANYWAY, OtherSettingsError

logger = logging.getLogger("nowait")

NUM_PRODUCTS = 8
BLOCK = 1 << 16
"""Entries of a gradient that are multiplied at a time; a multiple of 8."""
RANDOM = ". (A problem whose gradients are random has to say replayable = False)"
WEIGHTS = Stream(0, "fingerprint").own_key
"""The key of the weights of all fingerprints."""


class Match(Enum):
    """The result of comparing two fingerprints."""

    SAME = "same"
    UNSURE = "unsure"
    OTHER = "other"


@final
@dataclass(frozen=True)
class Fingerprint:
    """Size and dtype of params, and norm and direction of one gradient at ``problem.initial()``.

    The running statistics of a model are left out of the gradient: they hardly depend on the problem, and are often
    much larger than the rest.
    """

    size: int
    dtype: str
    gradient_norm: float | None
    """None if the gradient is not finite."""
    direction: tuple[float, ...] = ()
    """``products_of`` the gradient divided by its norm; empty if the gradient is zero or not finite."""

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
        trained = gradient[: len(gradient) - Capabilities.of(problem).num_statistics]
        length = float(norm(trained)) if np.isfinite(trained).all() else math.inf
        if not math.isfinite(length):
            return cls(size, dtype, None)
        return cls(size, dtype, length, tuple(products_of(trained, length).tolist()) if length else ())

    @classmethod
    def read(cls, entry: Any) -> Fingerprint | None:
        """Read the entry of ``config.json``; return None if no fingerprint was recorded."""
        if entry is None:
            return None
        try:
            (size, dtype), length = entry["params"], entry["gradient_norm"]
            direction = tuple(map(float, entry["gradient_direction"]))
            return cls(int(size), str(dtype), None if length is None else float(length), direction)
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"config.json was changed: its fingerprint is {entry!r}") from None

    def described(self, problem: Any) -> dict[str, Any]:
        """Return the entry for ``config.json``."""
        return {
            "problem": repr(problem)[:200],
            "params": [self.size, self.dtype],
            "gradient_norm": self.gradient_norm,
            "gradient_direction": list(self.direction),
        }

    def compare(self, other: Fingerprint, *, deterministic: bool) -> Match:
        """Compare with another fingerprint. If gradients are not deterministic, different ones prove nothing."""
        if (self.size, self.dtype) != (other.size, other.dtype):
            return Match.OTHER
        distance = self.distance(other)
        if distance is None:
            return Match.UNSURE
        if distance <= OTHER_PROCESSORS.get(self.dtype, 0.0):
            return Match.SAME
        return Match.OTHER if distance > LOW_PRECISION.get(self.dtype, 0.0) and deterministic else Match.UNSURE

    def distance(self, other: Fingerprint) -> float | None:
        """Estimate the distance between the two gradients, as a share of the longer one.

        It is at least the difference of the norms, which are exact. None if a gradient is not finite or both are zero:
        then there is nothing to compare.
        """
        one, two = self.gradient_norm, other.gradient_norm
        if one is None or two is None or not (largest := max(one, two)):
            return None
        if not self.direction or not other.direction:
            return 1.0  # one of the gradients is zero
        difference = one / largest * np.array(self.direction) - two / largest * np.array(other.direction)
        return max(math.sqrt(float(difference @ difference)), abs(one - two) / largest)

    def differs_by(self, other: Fingerprint) -> str:
        """Return in words what was compared and how much it differs."""
        if (self.size, self.dtype) != (other.size, other.dtype):
            return "the number or the dtype of params differs"
        distance = self.distance(other)
        if distance is not None:
            return f"the first gradients differ by {distance:.2g} of their norm"
        return "first gradients that are zero or not finite cannot be compared"

    def __str__(self) -> str:
        length = "that is not finite" if self.gradient_norm is None else f"of norm {self.gradient_norm:.9g}"
        return f"params {[self.size, self.dtype]} and a first gradient {length}"


def products_of(gradient: Vector, length: float) -> Floats:
    """Return ``NUM_PRODUCTS`` inner products of ``gradient / length`` with fixed vectors.

    Every entry is in one of the vectors, drawn at random, with weight 1 or -1. So the distance between the products of
    two gradients estimates the distance between the gradients, within about 25 %, and very small gradients are in it
    almost entry by entry (a count sketch: Charikar, Chen and Farach-Colton, 2002).
    """
    sums = np.zeros(2 * NUM_PRODUCTS)
    for start in range(0, len(gradient), BLOCK):
        block = gradient[start : start + BLOCK].astype(np.float64) / length
        bits = children((WEIGHTS + start // 8 * GOLDEN) & MASK, -(-len(block) // 8))
        drawn = bits.astype("<u8").view(np.uint8)[: len(block)] % len(sums)  # a byte of random bits for each entry
        sums += np.bincount(drawn, weights=block, minlength=len(sums))
    return sums[:NUM_PRODUCTS] - sums[NUM_PRODUCTS:]


@final
class Identification:
    """Records the fingerprint of a run's problem, or compares it with the recorded one.

    ``keep`` is called with an entry for ``config.json`` when a fingerprint is recorded. ``strict`` refuses a difference
    that another processor or precision could cause: both are those of the run.
    """

    def __init__(
        self, problem: Any, recorded: Any, folder: str, keep: Callable[[dict[str, Any]], None], *, strict: bool = False
    ) -> None:
        self._problem, self._entry, self._folder, self._keep = problem, recorded, folder, keep
        self._strict = strict
        self._recorded = Fingerprint.read(recorded)
        self.compares = self._recorded is not None
        """True if there is a recorded fingerprint. Then no step may be made before the comparison."""

    def known(self, given: Fingerprint) -> None:
        """Record or compare the fingerprint that was computed. Raises ValueError if it is that of another problem."""
        if self._recorded is None:
            self._keep(given.described(self._problem))
            return
        deterministic = Capabilities.of(self._problem).replayable
        match = self._recorded.compare(given, deterministic=deterministic)
        if match is Match.OTHER:
            raise other_problem(self._folder, self._entry, f"{given}: {self._recorded.differs_by(given)}{RANDOM}")
        if match is Match.UNSURE and self._strict and deterministic and self._recorded.distance(given) is not None:
            cause = (
                f"{given}: {self._recorded.differs_by(given)}, although machine, versions and settings are the same. "
                f"Other data or another model does this, and in deep networks another number of threads"
            )
            refusal = other_problem(self._folder, self._entry, cause)
            raise OtherSettingsError(f"{refusal}; {ANYWAY} goes on all the same")
        if match is Match.UNSURE:
            logger.warning(
                "the problem may not be the one of %s: that had %s; this one has %s: %s%s",
                self._folder,
                self._recorded,
                given,
                self._recorded.differs_by(given),
                ""
                if deterministic
                else ", which proves nothing, because its gradients are random (replayable = False)",
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
