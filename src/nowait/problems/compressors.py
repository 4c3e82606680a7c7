"""Compressors: how workers reduce the size of the gradients they send."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from nowait.core import Sample, checks
from nowait.core.types import Vector
from nowait.core.types import norm as length
from nowait.numerics.compiled import encoding_kernels, kernels

INDEX_BYTES = 4


class Compressor(ABC):
    """Replaces a vector by an approximation that takes fewer bytes."""

    @property
    @abstractmethod
    def loses(self) -> bool:
        """True if the compressor is biased, so that it needs error feedback; otherwise its mean is the vector."""

    @abstractmethod
    def compress(self, vector: Vector, sample: Sample) -> None:
        """Overwrite the vector by its compressed version, as the server will receive it."""

    @abstractmethod
    def message_bytes(self, dimension: int, itemsize: int) -> int:
        """Return the size of a message in bytes."""

    @property
    def encoding(self) -> str | None:
        """How compressed vectors are sent between machines (``nowait.problems.encodings``); None: as they are."""
        return None


@final
@dataclass(frozen=True)
class TopK(Compressor):
    """Keeps the ``count`` entries of largest magnitude; the others become 0.

    With error feedback: Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory" (NeurIPS 2018). A message is
    ``count`` values and as many 4-byte indices.
    """

    count: int
    loses = True

    def __post_init__(self) -> None:
        checks.store(self, count=checks.at_least(1, self.count, "count", "nothing would be sent"))

    def compress(self, vector: Vector, sample: Sample) -> None:
        """Set all but the largest entries to zero."""
        if self.count < vector.size:
            encoding_kernels().keep_largest(vector, self.count)

    def message_bytes(self, dimension: int, itemsize: int) -> int:
        """Return the size of the values and indices, or of all values if that is less."""
        return min(self.count * (itemsize + INDEX_BYTES), dimension * itemsize)

    @property
    def encoding(self) -> str:
        """Values and indices."""
        return f"topk:{self.count}"


@final
@dataclass(frozen=True)
class RandomK(Compressor):
    """Keeps ``count`` random entries; the others become 0.

    By default entries are not scaled, for error feedback (Stich, Cordonnier and Jaggi, 2018); with ``unbiased=True``
    they are scaled by dimension/count, and error feedback is not needed. A message is ``count`` values: the server
    knows their indices, which are a function of the ticket's sample.
    """

    count: int
    unbiased: bool = False

    def __post_init__(self) -> None:
        checks.store(self, count=checks.at_least(1, self.count, "count", "nothing would be sent"))
        checks.instance(self.unbiased, bool, "unbiased", "True")

    @property
    def loses(self) -> bool:
        """True unless entries are scaled to make it unbiased."""
        return not self.unbiased

    def compress(self, vector: Vector, sample: Sample) -> None:
        """Set all but ``count`` random entries to zero."""
        rest = vector.size - self.count
        if rest <= 0:
            return
        if self.unbiased:
            vector *= vector.dtype.type(vector.size / self.count)
        vector[~_largest(sample.uniforms(vector.size), self.count)] = 0

    def message_bytes(self, dimension: int, itemsize: int) -> int:
        """Return the size of the values; indices are not sent."""
        return min(self.count, dimension) * itemsize

    @property
    def encoding(self) -> str:
        """Values and indices: between machines, indices are sent."""
        return f"topk:{self.count}"


@final
@dataclass(frozen=True)
class QSGD(Compressor):
    """Rounds every entry at random to a multiple of ‖v‖/levels; unbiased.

    Alistarh, Grubic, Li, Tomioka and Vojnović, "QSGD: Communication-Efficient SGD via Gradient Quantization and
    Encoding" (NIPS 2017): the variance grows by at most min(d/s², √d/s)·‖v‖² with s levels. A message is the norm and
    1 + ⌈log₂(levels + 1)⌉ bits per entry; their entropy coding, which saves more, is not counted.
    """

    levels: int = 15
    loses = False

    def __post_init__(self) -> None:
        checks.store(self, levels=checks.at_least(1, self.levels, "levels", "entries are rounded to multiples of them"))

    def compress(self, vector: Vector, sample: Sample) -> None:
        """Round every entry up or down at random, so that the mean is the vector."""
        norm = length(vector)
        if norm == 0.0:
            return
        scaled = np.abs(vector) * (self.levels / norm)
        rounded = np.floor(scaled + sample.uniforms(vector.size))
        np.copysign(rounded * (norm / self.levels), vector, out=vector, casting="same_kind")

    def message_bytes(self, dimension: int, itemsize: int) -> int:
        """Return the size of the norm, the signs and the levels."""
        bits = dimension * (1 + math.ceil(math.log2(self.levels + 1)))
        return itemsize + math.ceil(bits / 8)


@final
@dataclass(frozen=True)
class Sign(Compressor):
    """Sends the signs of the entries, scaled by the mean of their magnitudes.

    Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems" (ICML 2018), scaled as in Karimireddy,
    Rebjock, Stich and Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes" (ICML 2019). A
    message is one bit per entry and the scale.
    """

    loses = True

    def compress(self, vector: Vector, sample: Sample) -> None:
        """Replace every entry by plus or minus the mean magnitude."""
        scale = kernels().sum_of(np.abs(vector)) / vector.size
        np.copysign(vector.dtype.type(scale), vector, out=vector)

    def message_bytes(self, dimension: int, itemsize: int) -> int:
        """Return the size of the scale and the signs."""
        return itemsize + math.ceil(dimension / 8)

    @property
    def encoding(self) -> str:
        """The scale and the signs."""
        return "sign"


def _largest(values: Vector, count: int) -> NDArray[np.bool_]:
    """Return a mask of the ``count`` largest entries; among equal entries the first ones are taken.

    Which of several equal entries ``np.argpartition`` takes depends on the processor.
    """
    least = np.partition(values, len(values) - count)[len(values) - count]
    chosen: NDArray[np.bool_] = values > least
    equal = np.flatnonzero(values == least)
    chosen[equal[: count - np.count_nonzero(chosen)]] = True
    return chosen
