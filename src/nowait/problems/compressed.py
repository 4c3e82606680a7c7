"""Gradient compression by the workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self, final

import numpy as np

from nowait.core import Sample, checks
from nowait.core.capabilities import Capabilities
from nowait.core.types import Vector
from nowait.problems.compressors import Compressor
from nowait.problems.wrapper import COMPRESSION, Wrapper


@final
class Compressed(Wrapper):
    """Workers send compressed gradients of the problem. Works with any method; ``run.stats.bytes_up`` counts the bytes.

    With error feedback a worker adds what it did not send to its next gradient: it sends C(g + e) and keeps e ← g + e −
    C(g + e), so that every part of a gradient is sent sooner or later (Seide et al., 2014; Stich, Cordonnier and
    Jaggi, 2018). This is the published rule for a constant stepsize: what was held back gets the stepsize of the step
    in which it arrives. ``error_feedback`` None turns it on if the compressor needs it. Each worker has its own
    memory e, which is zero when the worker joins; cancelled tickets do not change it.

    >>> import nowait as nw
    >>> problem = nw.problems.Compressed(
    ...     nw.problems.NoisyQuadratic(dimension=100, sigma=0.1), nw.problems.TopK(5)
    ... )
    >>> method = nw.AsynchronousSGD(nw.Constant(0.02))
    >>> speeds = nw.speeds.Exponential(1.0, workers=4)
    >>> run = nw.simulate(problem, method, speeds, steps=2_000)
    >>> (
    ...     bool(run.history.loss[-1] < 0.01),
    ...     run.stats.bytes_up / (run.stats.gradients * 100 * 8),
    ... )
    (True, 0.075)
    """

    def __init__(self, problem: Any, compressor: Compressor, error_feedback: bool | None = None) -> None:
        super().__init__(problem)
        if Capabilities.of(problem).gradient_with_memory is not None:
            raise TypeError("Compressed cannot wrap a problem whose workers have a memory already: compress it once")
        self.compressor = checks.instance(compressor, Compressor, "compressor", "nw.problems.TopK(100)")
        wanted = compressor.loses if error_feedback is None else error_feedback
        self.error_feedback = checks.flag(wanted, "error_feedback")
        if self.error_feedback and not compressor.loses:
            raise ValueError(
                f"{compressor} is unbiased and may make a gradient longer: error feedback would grow without bound, "
                f"and is not needed"
            )
        self._fill = Capabilities.of(problem).fill_with_gradient()

    def capabilities(self) -> Capabilities:
        """Return those of the wrapped problem, with a memory and another message size."""
        return replace(
            super().capabilities(),
            gradient_with_memory=self.gradient_with_memory,
            message_bytes=self.message_bytes,
            gradient_encoding=self.compressor.encoding,
        )

    def message_bytes(self, params: Vector) -> int:
        """The number of bytes of a compressed gradient of params like these."""
        return self.compressor.message_bytes(params.size, params.itemsize)

    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """Return C(g): what a worker sends whose memory is zero."""
        out = np.empty_like(point)
        self.gradient_with_memory(point, sample, np.zeros_like(point), out)
        return out

    def gradient_with_memory(self, point: Vector, sample: Sample, memory: Vector, out: Vector) -> None:
        """Write C(g + e) into ``out`` and update e, which is ``memory``; if g + e is not finite, e does not change."""
        self._fill(point, sample, out)
        if self.error_feedback:
            out += memory
        if not np.isfinite(out).all():
            return
        if self.error_feedback:
            memory[:] = out
        self.compressor.compress(out, sample.part(COMPRESSION))
        if self.error_feedback:
            memory -= out

    def _rewrapped(self, problem: Any) -> Self:
        return type(self)(problem, self.compressor, self.error_feedback)

    def __repr__(self) -> str:
        return f"Compressed({self.problem!r}, {self.compressor}, error_feedback={self.error_feedback})"
