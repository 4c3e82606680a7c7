"""Gradients and points that are rounded to what is sent between machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self, final

import numpy as np

from nowait.core import Sample, sampler
from nowait.core.capabilities import Capabilities
from nowait.core.types import Vector
from nowait.numerics.compiled import encoding_kernels as kernels
from nowait.problems.compressors import TopK
from nowait.problems.encodings import BLOCK, FORMATS, checked_encoding, codec_of, count_of
from nowait.problems.wrapper import COMPRESSION, Wrapper

WithMemory = Callable[[Vector, Sample, Vector, Vector], None]


@final
class Encoded(Wrapper):
    """Workers receive rounded points, and send gradients of fewer bytes.

    ``gradients`` is "float32", "float16", "bfloat16", "int8" (one scale for 4,096 entries) or "topk:0.01" (a share of
    the entries; "topk:1000" is their number), ``points`` one of the first three; None changes nothing. Numbers beyond
    the largest of the format become the largest. A worker adds what it did not send to its next gradient, as in
    ``Compressed``: it sends c, the rounded g + e, and keeps e ← g + e − c. Statistics, such as those of batch
    normalisation, are not rounded.

    A run on a cluster with ``wire=`` and ``points_wire=`` trains this problem. Use it in a simulation to see the effect
    of these settings.

    >>> import nowait as nw
    >>> problem = nw.problems.NoisyQuadratic(dimension=100, sigma=0.1)
    >>> encoded = nw.problems.Encoded(problem, gradients="int8", points="float16")
    >>> method = nw.AsynchronousSGD(nw.Constant(0.02))
    >>> speeds = nw.speeds.Exponential(1.0, workers=4)
    >>> run = nw.simulate(encoded, method, speeds, steps=2_000)
    >>> bool(run.history.loss[-1] < 0.01), run.stats.bytes_up // run.stats.gradients
    (True, 112)
    """

    passes_statistics_on = True

    def __init__(self, problem: Any, gradients: str | None = None, points: str | None = None) -> None:
        super().__init__(problem)
        self.gradients = checked_encoding(gradients, "gradients", points=False)
        self.points = checked_encoding(points, "points", points=True)
        inner = Capabilities.of(problem)
        if gradients is not None and (inner.gradient_with_memory or inner.gradient_encoding):
            raise ValueError(
                f"gradients of {type(problem).__name__} are compressed already: they cannot be sent as {gradients!r} "
                f"too"
            )
        if points is not None and inner.point_encoding is not None:
            raise ValueError(f"points are sent as {inner.point_encoding!r} already: they cannot be rounded twice")
        self._exact = inner.num_statistics
        self._fill = inner.fill_with_gradient()
        self._inner_with_memory = inner.gradient_with_memory
        self._rounded: Vector | None = None
        self._gradient: Vector | None = None

    def capabilities(self) -> Capabilities:
        """Return those of the wrapped problem, with other encodings."""
        inner = Capabilities.of(self.problem)
        needs_memory = self.gradients is not None or inner.gradient_with_memory is not None
        return replace(
            super().capabilities(),
            gradient_with_memory=self.gradient_with_memory if needs_memory else None,
            gradient_into=None if needs_memory else self.gradient_into,
            prepare=self.prepare,
            message_bytes=inner.message_bytes if self.gradients is None else self.message_bytes,
            gradient_encoding=self.gradients or inner.gradient_encoding,
            point_encoding=self.points or inner.point_encoding,
            encoded_gradient=None if self.gradients is None else self.encoded_gradient,
            num_statistics=inner.num_statistics,
            statistics_momentum=inner.statistics_momentum,
        )

    def prepare(self) -> Any:
        """Prepare the wrapped problem, and load the code that rounds."""
        result = Capabilities.of(self.problem).prepare()
        few = np.zeros(8 + self._exact, self.initial().dtype)
        self._at(few)
        if self.gradients is not None:
            _round_and_keep_rest(self.gradients, few[:8], few[:8].copy(), sampler(0).sample(0, 0))
        return result

    def message_bytes(self, params: Vector) -> int:
        """The number of bytes of an encoded gradient of params like these."""
        codec = codec_of(self.gradients, params.size, params.dtype, self._exact)
        return int(params.nbytes) if codec is None else codec.num_bytes

    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """Return what a worker sends whose memory is zero."""
        out = np.empty_like(point)
        self.gradient_with_memory(point, sample, np.zeros_like(point), out)
        return out

    def gradient_into(self, point: Vector, sample: Sample, out: Vector) -> None:
        """Write the gradient at the rounded point into ``out``."""
        self._fill(self._at(point), sample, out)

    def gradient_with_memory(self, point: Vector, sample: Sample, memory: Vector, out: Vector) -> None:
        """Write the rounded g + e into ``out`` and update e, ``memory``; if g + e is not finite, e does not change."""
        if self.gradients is None and self._inner_with_memory is not None:
            self._inner_with_memory(self._at(point), sample, memory, out)
            return
        self._fill(self._at(point), sample, out)
        if self.gradients is not None:
            end = out.size - self._exact
            _round_and_keep_rest(self.gradients, out[:end], memory[:end], sample)

    def encoded_gradient(self, point: Vector, sample: Sample, before: Vector, after: Vector, code: Any) -> None:
        """Write the code of the rounded g + e, where e is ``before``, and the next e to ``after``.

        The point was rounded already.
        """
        encoding, codec = self.gradients, codec_of(self.gradients, point.size, point.dtype, self._exact)
        assert encoding is not None
        assert codec is not None, "gradients that are sent as they are have no code"
        if self._gradient is None or self._gradient.shape != point.shape or self._gradient.dtype != point.dtype:
            self._gradient = np.empty_like(point)
        gradient = self._gradient
        self._fill(point, sample, gradient)
        finite = codec.encode_sum(gradient, before, after, code)
        if not finite:
            after[:] = before
        if finite is None:
            end = gradient.size - self._exact
            _round_and_keep_rest(encoding, gradient[:end], after[:end], sample)
            codec.encode(gradient, code)

    def _at(self, point: Vector) -> Vector:
        """Return the rounded point; always in the same memory."""
        if self.points is None or codec_of(self.points, point.size, point.dtype, self._exact) is None:
            return point
        rounded = self._rounded
        if rounded is None or rounded.shape != point.shape or rounded.dtype != point.dtype:
            rounded = self._rounded = np.empty_like(point)
        rounded.flags.writeable = True
        end = point.size - self._exact
        kernels().round_into(point[:end], rounded[:end], FORMATS[self.points].rounding)
        rounded[end:] = point[end:]
        rounded.flags.writeable = False
        return rounded

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_rounded": None, "_gradient": None}

    def _rewrapped(self, problem: Any) -> Self:
        return type(self)(problem, self.gradients, self.points)

    def __repr__(self) -> str:
        return f"Encoded({self.problem!r}, gradients={self.gradients!r}, points={self.points!r})"


def without_encoding(problem: Any) -> Any:
    """Return the wrapped problem of an ``Encoded`` one, else the problem itself."""
    return problem.problem if isinstance(problem, Encoded) else problem


def _round_and_keep_rest(encoding: str, vector: Vector, rest: Vector, sample: Sample) -> None:
    """Replace the vector v by what is sent of v + e, where e is the rest, and e by what is not."""
    if codec_of(encoding, vector.size, vector.dtype) is None or not kernels().sum_is_finite(vector, rest):
        vector += rest
    elif encoding == "int8":
        kernels().quantize_and_keep_rest(vector, rest, BLOCK, float(np.finfo(vector.dtype).tiny))
    elif encoding in FORMATS:
        kernels().round_and_keep_rest(vector, rest, FORMATS[encoding].rounding)
    else:
        vector += rest
        rest[:] = vector
        TopK(count_of(encoding, vector.size)).compress(vector, sample.part(COMPRESSION))
        rest -= vector
