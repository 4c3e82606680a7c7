"""How vectors are written as fewer bytes, without loss, when they are sent between machines.

A *codec* is for vectors of one length and dtype. A *representable* vector is decoded with the same bits: for "float16",
one whose entries are all numbers that float16 has. Floating-point encodings take other vectors as well, and round them.
A vector that is not finite stays so, and the server rejects it as it would have.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from nowait.core import checks
from nowait.core.capabilities import Capabilities
from nowait.core.types import Vector
from nowait.numerics.compiled import encoding_kernels as kernels
from nowait.recording.sent import Sent

FLOATS = ("float32", "float16", "bfloat16")
"""The encodings of each entry by itself, as a floating-point number."""
ENCODINGS = (*FLOATS, "int8", "topk:COUNT", "sign")
BLOCK = 4096
"""How many entries of "int8" have a scale of their own."""
ALIGNMENT = 8
MOST_ENTRIES = 1 << 32
"""Indices have 4 bytes."""

BYTE = "|u1"
Bytes = NDArray[np.uint8]


class FloatFormat(NamedTuple):
    """A floating-point format, for conversions from and to float64."""

    mantissa: int
    """How many bits of the mantissa are stored."""
    bias: int
    """What is added to exponents before they are stored."""

    @property
    def rounding(self) -> tuple[float, ...]:
        """The constants of the kernels that round."""
        return 2.0**self._dropped, self._smallest, (2.0 - 2.0**-self.mantissa) * 2.0**self.bias

    @property
    def to_words(self) -> tuple[float, ...]:
        """The constants of the kernels that write words."""
        infinity, offset = 2.0 ** (self.bias + 1), 1024 - self.bias << self.mantissa
        return *self.rounding, float(self._dropped), float(offset), infinity, 1.5 * infinity

    @property
    def from_words(self) -> tuple[float, ...]:
        """The constants of the kernel that reads words."""
        return float(self._dropped), 1023.0 - self.bias, self._smallest, 2.0 ** (self.bias + 1)

    @property
    def _dropped(self) -> int:
        """How many bits of the mantissa of float64 the format does not have."""
        return 52 - self.mantissa

    @property
    def _smallest(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)


FORMATS = {"float32": FloatFormat(23, 127), "float16": FloatFormat(10, 15), "bfloat16": FloatFormat(7, 127)}


class Codec(ABC):
    """Encodes vectors of one length and dtype as a fixed number of bytes."""

    num_bytes: int
    """A multiple of 8, so that the codes of several vectors can follow each other."""

    @abstractmethod
    def encode(self, vector: Vector, out: Bytes) -> None:
        """Write the code of a representable vector. Raises ValueError for some of the others."""

    @abstractmethod
    def decode(self, code: Bytes, out: Vector) -> None:
        """Write the vector of a code. Raises ValueError if no vector has this code."""

    def encode_sum(self, vector: Vector, before: Vector, after: Vector, out: Bytes) -> bool | None:
        """Write the code of v + e, rounded, and what is lost to ``after``, where e is ``before``, in one pass.

        Returns False if v + e is not finite; then ``after`` means nothing. Returns None if this codec cannot do it.
        """
        return None


@final
class Plain(Codec):
    """The bytes of the vector."""

    def __init__(self, length: int, dtype: Any) -> None:
        self._size = length * np.dtype(dtype).itemsize
        self.num_bytes = _padded(self._size)

    def encode(self, vector: Vector, out: Bytes) -> None:
        """Copy the bytes of the vector."""
        out[: self._size] = vector.view(np.uint8)

    def decode(self, code: Bytes, out: Vector) -> None:
        """Copy the bytes of the vector."""
        out[:] = code[: self._size].view(out.dtype)


@final
class Single(Codec):
    """Entries of float64, as float32."""

    def __init__(self, length: int, dtype: Any) -> None:
        self._size, self._rounding = 4 * length, FORMATS["float32"].rounding
        self.num_bytes = _padded(self._size)

    def encode(self, vector: Vector, out: Bytes) -> None:
        """Write the nearest float32 numbers."""
        kernels().round_into(vector, out[: self._size].view(np.float32), self._rounding)

    def encode_sum(self, vector: Vector, before: Vector, after: Vector, out: Bytes) -> bool:
        """Write the float32 numbers nearest to v + e."""
        numbers = out[: self._size].view(np.float32)
        return bool(kernels().to_numbers_and_rest(vector, before, after, numbers, self._rounding))

    def decode(self, code: Bytes, out: Vector) -> None:
        """Read float32 numbers."""
        out[:] = code[: self._size].view(np.float32)


@final
class Words(Codec):
    """Entries as numbers of a 16-bit format."""

    def __init__(self, name: str, length: int, dtype: Any) -> None:
        self._to_words, self._from_words = FORMATS[name].to_words, FORMATS[name].from_words
        self._size = 2 * length
        self.num_bytes = _padded(self._size)

    def encode(self, vector: Vector, out: Bytes) -> None:
        """Write the words of the nearest numbers."""
        kernels().to_words(vector, out[: self._size].view(np.uint16), self._to_words)

    def encode_sum(self, vector: Vector, before: Vector, after: Vector, out: Bytes) -> bool:
        """Write the words of the numbers nearest to v + e."""
        words = out[: self._size].view(np.uint16)
        return bool(kernels().to_words_and_rest(vector, before, after, words, self._to_words))

    def decode(self, code: Bytes, out: Vector) -> None:
        """Read 16-bit words."""
        kernels().from_words(code[: self._size].view(np.uint16), out, self._from_words)


@final
class Integers8(Codec):
    """Multiples of a scale between -127 and 127; each block of entries has its own scale."""

    def __init__(self, length: int, dtype: Any) -> None:
        self._dtype, self._length = np.dtype(dtype), length
        self._scale_bytes = _padded(-(-length // BLOCK) * self._dtype.itemsize)
        self.num_bytes = self._scale_bytes + _padded(length)
        self._least = float(np.finfo(self._dtype).tiny)

    def _parts(self, code: Bytes) -> tuple[Any, Any]:
        scales = code[: self._scale_bytes].view(self._dtype)
        return code[self._scale_bytes : self._scale_bytes + self._length].view(np.int8), scales

    def encode(self, vector: Vector, out: Bytes) -> None:
        """Write scales and integers."""
        kernels().to_codes(vector, *self._parts(out), BLOCK, self._least)

    def encode_sum(self, vector: Vector, before: Vector, after: Vector, out: Bytes) -> bool:
        """Write scales and integers of v + e."""
        return bool(kernels().to_codes_and_rest(vector, before, after, *self._parts(out), BLOCK, self._least))

    def decode(self, code: Bytes, out: Vector) -> None:
        """Read scales and integers."""
        kernels().from_codes(*self._parts(code), out, BLOCK)


@final
class Entries(Codec):
    """At most ``count`` entries that are not zero, with their indices."""

    def __init__(self, count: int, length: int, dtype: Any) -> None:
        if length > MOST_ENTRIES:
            raise ValueError(f"vectors of {length:,} entries cannot be sent by index: indices have 4 bytes")
        self._dtype, self._count = np.dtype(dtype), count
        self._value_bytes = _padded(count * self._dtype.itemsize)
        self.num_bytes = self._value_bytes + _padded(4 * count)

    def _parts(self, code: Bytes) -> tuple[Any, Any]:
        values = code[: self._count * self._dtype.itemsize].view(self._dtype)
        return values, code[self._value_bytes : self._value_bytes + 4 * self._count].view(np.uint32)

    def encode(self, vector: Vector, out: Bytes) -> None:
        """Write entries and indices; a vector that does not fit, and is not finite, as NaN."""
        words = np.dtype(f"u{self._dtype.itemsize}")
        values, indices = self._parts(out)
        if kernels().to_entries(vector, words.type(0), vector.view(words), values, indices) < 0:
            if np.isfinite(vector).all():
                raise ValueError(f"a gradient has more than the {self._count} entries that are sent")
            values[:], indices[:] = np.nan, 0

    def decode(self, code: Bytes, out: Vector) -> None:
        """Read entries and indices."""
        if not kernels().from_entries(*self._parts(code), out):
            raise ValueError(f"an index is beyond the {out.size} entries of the vector")


@final
class Signs(Codec):
    """Entries of one magnitude."""

    def __init__(self, length: int, dtype: Any) -> None:
        self._dtype, self._length = np.dtype(dtype), length
        self._num_bits = -(-length // 8)
        self.num_bytes = _padded(self._dtype.itemsize) + _padded(self._num_bits)

    def encode(self, vector: Vector, out: Bytes) -> None:
        """Write the magnitude and a bit for each entry."""
        size = np.abs(vector[0]) if np.isfinite(vector).all() else np.nan
        out[: self._dtype.itemsize].view(self._dtype)[0] = size
        out[ALIGNMENT : ALIGNMENT + self._num_bits] = np.packbits(np.signbit(vector))

    def decode(self, code: Bytes, out: Vector) -> None:
        """Read the magnitude and a bit for each entry."""
        size = code[: self._dtype.itemsize].view(self._dtype)[0]
        negative = np.unpackbits(code[ALIGNMENT : ALIGNMENT + self._num_bits], count=self._length)
        out[:] = size
        np.negative(out, out=out, where=negative.view(np.bool_))


@final
class WithTail(Codec):
    """A codec for all but the last entries, which are sent as they are."""

    def __init__(self, head: Codec, tail: int, dtype: Any) -> None:
        self._head, self._tail = head, tail
        self._size = tail * np.dtype(dtype).itemsize
        self.num_bytes = head.num_bytes + _padded(self._size)

    def encode(self, vector: Vector, out: Bytes) -> None:
        """Write the code of the first entries, and the bytes of the last ones."""
        start = self._head.num_bytes
        self._head.encode(vector[: -self._tail], out[:start])
        out[start : start + self._size] = vector[-self._tail :].view(np.uint8)

    def encode_sum(self, vector: Vector, before: Vector, after: Vector, out: Bytes) -> bool | None:
        """Write the code of the sum of the first entries, and the bytes of the last ones."""
        head, start = slice(-self._tail), self._head.num_bytes
        out[start : start + self._size] = vector[-self._tail :].view(np.uint8)
        return self._head.encode_sum(vector[head], before[head], after[head], out[:start])

    def decode(self, code: Bytes, out: Vector) -> None:
        """Read the first entries, and the bytes of the last ones."""
        start = self._head.num_bytes
        self._head.decode(code[:start], out[: -self._tail])
        out[-self._tail :] = code[start : start + self._size].view(out.dtype)


@final
@dataclass(frozen=True)
class Encodings:
    """How gradients and points are sent between machines. None: as they are."""

    gradients: str | None = None
    points: str | None = None
    exact: int = 0
    """How many of the last entries are sent as they are."""

    @classmethod
    def of(cls, problem: Any) -> Encodings:
        """Return the encodings of a problem."""
        found = Capabilities.of(problem)
        return cls(found.gradient_encoding, found.point_encoding, found.num_statistics)

    def codecs(self, length: int, dtype: Any) -> Codecs:
        """Return the codecs for vectors of this length and dtype."""
        return Codecs(
            codec_of(self.points, length, dtype, self.exact), codec_of(self.gradients, length, dtype, self.exact)
        )


AS_THEY_ARE = Encodings()


class Codecs(NamedTuple):
    """The codecs of points and gradients. None: they are sent as they are."""

    points: Codec | None = None
    gradients: Codec | None = None

    def shapes(self, length: int, dtype: Any) -> tuple[tuple[int, str], tuple[int, str]]:
        """Return length and dtype of points and gradients, as they are sent: codes are vectors of bytes."""
        as_they_are = (length, np.dtype(dtype).str)
        shapes = [as_they_are if codec is None else (codec.num_bytes, BYTE) for codec in self]
        return shapes[0], shapes[1]

    def warm_up(self, length: int, dtype: Any) -> None:
        """Load or compile what they need."""
        for codec in self:
            if codec is not None:
                vector, code = np.zeros(length, dtype), np.zeros(codec.num_bytes, np.uint8)
                codec.encode(vector, code)
                codec.decode(code, vector)


def sent_vectors(encodings: Encodings, length: int, dtype: Any, wire: str | None, points_wire: str | None) -> Sent:
    """Return how vectors are sent, for the trace."""
    codecs, whole = encodings.codecs(length, dtype), length * np.dtype(dtype).itemsize
    names = (encodings.gradients, codecs.gradients), (encodings.points, codecs.points)
    gradients, points = (str(np.dtype(dtype)) if codec is None else str(name) for name, codec in names)
    gradient_bytes, point_bytes = (whole if codec is None else codec.num_bytes for _, codec in names)
    return Sent(gradients, points, gradient_bytes, point_bytes, wire, points_wire)


@lru_cache(maxsize=64)
def codec_of(encoding: str | None, length: int, dtype: Any, exact: int = 0) -> Codec | None:
    """Return the codec of an encoding, which leaves the last ``exact`` entries as they are.

    None if vectors are sent as they are, because that takes no more bytes.
    """
    if encoding is None or exact >= length:
        return None
    head = _codec(encoding, length - exact, np.dtype(dtype))
    codec = WithTail(head, exact, dtype) if exact else head
    return codec if codec.num_bytes < length * np.dtype(dtype).itemsize else None


def _codec(encoding: str, length: int, dtype: np.dtype[Any]) -> Codec:
    if encoding == "float32":
        return Plain(length, dtype) if dtype.itemsize <= 4 else Single(length, dtype)
    if encoding in FORMATS:
        return Words(encoding, length, dtype)
    if encoding == "int8":
        return Integers8(length, dtype)
    if encoding == "sign":
        return Signs(length, dtype)
    return Entries(min(count_of(encoding, length), length), length, dtype)


def count_of(encoding: str, length: int) -> int:
    """Return how many entries of a vector "topk:COUNT" or "topk:SHARE" sends: at least 1.

    >>> count_of("topk:100", 5_000), count_of("topk:0.01", 5_000), count_of("topk:0.01", 5)
    (100, 50, 1)
    """
    kind, _, amount = encoding.partition(":")
    try:
        if kind == "topk":
            share = float(amount)
            if amount.isascii() and amount.isdigit() and share >= 1:
                return int(amount)
            if 0 < share < 1:
                return max(1, math.floor(share * length))
    except ValueError:
        pass
    raise ValueError(f"{encoding!r} is not an encoding: there are {', '.join(map(repr, ENCODINGS))}")


def checked_encoding(value: Any, name: str, *, points: bool) -> str | None:
    """Return an encoding that loses something and that runs can be given; raise for any other value but None."""
    if value is None or (isinstance(value, str) and value in (FLOATS if points else (*FLOATS, "int8"))):
        return value
    near = checks.did_you_mean(value, FLOATS if points else (*FLOATS, "int8"))
    if points:
        raise ValueError(f"{name} must be None, 'float32', 'float16' or 'bfloat16', got {value!r}{near}")
    try:
        if isinstance(value, str) and value.startswith("topk:"):
            count_of(value, 1)
            return value
    except ValueError:
        pass
    raise ValueError(
        f"{name} must be None, 'float32', 'float16', 'bfloat16', 'int8', or 'topk:' with a share or a number of "
        f"entries, such as 'topk:0.01' or 'topk:1000', got {value!r}{near}"
    )


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
