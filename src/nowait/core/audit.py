"""Which gradients of a run are computed again by another worker, and how two computations are compared.

No clock, no input or output: the choice is a function of the seed and of the ticket's worker and job.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.core import checks
from nowait.core.randomness import Stream, children
from nowait.core.types import Floats, Vector, norm

STOP, LEAVE_OUT = "stop", "leave out"
OTHER_PROCESSORS = {"float64": 1e-6, "float32": 2e-3}
"""Relative distance of two gradients that other processors may cause, by the dtype of params.

Measured in float32, a GPU against a processor: 3e-7 (perceptron, transformer) to 1.1e-3 (41 layers with BatchNorm).
"""
LOW_PRECISION = {"float64": 0.05, "float32": 0.25}
"""Relative distance that even low precision does not cause in usual models.

Measured on the same four models: TF32 moves the first gradient by 0.6 % to 4 %, bfloat16 by 2 % to 15 %; other data of
the same kind move it by 61 % to 141 %, GELU for ReLU by 24 % to 64 %. In a network of 41 random layers with BatchNorm
other kernels of the same processor moved it by 11 %.
"""
MOST_ENTRIES = 4096
"""How many entries of two gradients are compared, besides their norms and checksums."""
JOBS_AT_ONCE = 1024


@final
@dataclass(frozen=True)
class Audit:
    """Which share of the gradients of ``nw.train`` a second worker computes again, and what happens if they differ.

    ``share=0.001`` is one gradient in a thousand. In any case it includes the first gradient of every worker process.
    ``tolerance`` is the largest distance between two gradients that is accepted, relative to the longer one. By default
    it is 0, bit for bit, if both workers are on one machine and params in host memory, and otherwise what other
    processors may cause: 1e-6 in float64, 2e-3 in float32. First gradients outside of the share are only compared
    roughly: up to 0.05 and 0.25 are accepted.

    If two gradients differ, a third worker decides who is wrong. ``on_difference="stop"`` ends the run with
    ``BadWorkerError``; ``"leave out"`` goes on without that worker.

    >>> import nowait as nw
    >>> problem = nw.problems.NoisyQuadratic(dimension=10, sigma=0.1)
    >>> method = nw.AsynchronousSGD(nw.DelayAdaptive(0.1))
    >>> audit = nw.Audit(share=0.01, on_difference="leave out")
    >>> nw.train(problem, method, workers=2, steps=500, audit=audit).stats.steps
    500
    """

    share: float = 0.001
    tolerance: float | None = None
    on_difference: str = STOP

    def __post_init__(self) -> None:
        share = checks.not_negative(self.share, "the share of an audit", "it is a share of all gradients")
        if share > 1:
            raise ValueError(f"the share of an audit must be at most 1, got {share:g}: 0.001 is one gradient in 1000")
        if self.tolerance is not None:
            why = "it is compared with a relative distance"
            object.__setattr__(self, "tolerance", checks.not_negative(self.tolerance, "tolerance", why))
        object.__setattr__(self, "share", share)
        if not isinstance(self.on_difference, str) or self.on_difference not in (STOP, LEAVE_OUT):
            raise ValueError(
                f'on_difference must be "{STOP}", which ends the run with BadWorkerError, or "{LEAVE_OUT}", which goes '
                f"on without the worker, got {checks.shown(self.on_difference)}"
            )


def checked_audit(audit: Any) -> Audit | None:
    """Return the audit for an argument or an entry of ``config.json``: a share, True, False, or its fields."""
    if isinstance(audit, Audit):
        return audit
    if isinstance(audit, dict):
        return Audit(**{name: value for name, value in audit.items() if name != "type"})
    if isinstance(audit, bool) or audit is None:
        return Audit(share=0.0) if audit else None
    try:
        return Audit(share=audit)
    except TypeError:
        raise TypeError(
            f"audit must be the share of gradients that are computed twice, such as 0.001, True for the first gradient "
            f"of every worker process only, False, or nw.Audit(...), got {audit!r}"
        ) from None


@final
class Chosen:
    """``chosen(worker, job)`` is True if the gradient of a ticket is computed twice. A pure function of the seed."""

    def __init__(self, seed: int, share: float) -> None:
        self._stream, self._limit = Stream(seed, "audit"), share * 2.0**64
        self._jobs: dict[int, tuple[int, frozenset[int]]] = {}

    def __call__(self, worker: int, job: int) -> bool:
        """Return True for the share of all tickets. The choice is made for many jobs at a time."""
        block = self._jobs.get(worker)
        if block is None or block[0] != job // JOBS_AT_ONCE:
            block = self._jobs[worker] = (job // JOBS_AT_ONCE, self._block(worker, job // JOBS_AT_ONCE))
        return job in block[1]

    def _block(self, worker: int, number: int) -> frozenset[int]:
        draws = children(self._stream.key(worker, number), JOBS_AT_ONCE)
        return frozenset((number * JOBS_AT_ONCE + np.flatnonzero(draws < self._limit)).tolist())


@final
@dataclass(frozen=True)
class Summary:
    """What is kept of a gradient to compare it with another computation of it."""

    length: float
    """Its norm; NaN if it is not finite."""
    entries: Floats
    """At most ``MOST_ENTRIES`` of its entries, evenly spread."""
    checksum: int | None = None
    """Of all its bytes; None if bits are not compared."""

    @classmethod
    def of(cls, gradient: Vector, bits_of: Vector | None = None) -> Summary:
        """Summarise a NumPy array; ``bits_of`` is what to take a checksum of."""
        entries = gradient[:: max(1, -(-len(gradient) // MOST_ENTRIES))].astype(np.float64)
        length = float(norm(gradient)) if np.isfinite(gradient).all() else math.nan
        return cls(length, entries, None if bits_of is None else checksum_of(bits_of))

    def distance(self, other: Summary) -> float:
        """Estimate the distance of the gradients relative to the longer one; infinite if just one is not finite.

        Of gradients with the same checksum it is 0, and of those with different checksums more than 0.
        """
        if self.checksum is not None and self.checksum == other.checksum:
            return 0.0
        if math.isnan(self.length) or math.isnan(other.length):
            return 0.0 if math.isnan(self.length) and math.isnan(other.length) else math.inf
        least = math.ulp(0.0) if self.checksum is not None and other.checksum is not None else 0.0
        of_norms = _relative(abs(self.length - other.length), self.length, other.length)
        lengths = (float(np.linalg.norm(entries)) for entries in (self.entries, other.entries))
        of_entries = _relative(float(np.linalg.norm(self.entries - other.entries)), *lengths)
        return max(least, of_norms, of_entries)


def _relative(difference: float, one: float, two: float) -> float:
    return difference / max(one, two) if difference else 0.0


def checksum_of(vector: Vector) -> int:
    """Return 32 bits that differ if the bytes of a NumPy array do, nearly always."""
    return zlib.crc32(np.ascontiguousarray(vector).view(np.uint8).data)
