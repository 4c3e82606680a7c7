# mypy: disable-error-code="call-arg"
"""Compiled conversions of vectors to smaller numbers, one pass over memory each. Imports numba.

All arithmetic is in float64 and rounded to nearest, ties to even, so results are bit-identical on every processor.
Loops have no branches, so that they can be vectorised. Vectors have float32 or float64 entries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from nowait.numerics.compiled import compiled, divides_like_numpy, inlined

SIGN = np.uint64(1 << 63)
MAGNITUDE = np.uint64((1 << 63) - 1)
INFINITY = np.uint64(0x7FF << 52)
MANTISSA = np.uint64(52)
"""How many bits of a float64 are its mantissa."""
WORD_MAGNITUDE = np.uint64(0x7FFF)
SIGN_SHIFT = np.uint64(48)
"""Between the sign bits of float64 and of a 16-bit word."""
SCALE_BITS = np.uint64(~((1 << 37) - 1) & ((1 << 64) - 1))
"""Keeps 16 significant bits, so that a scale times an integer of 7 bits is exact in float32 and float64."""
LARGEST_CODE = 127.0
ROUNDER = 1.5 * 2.0**52
"""Adding it to a number moves the integer nearest to that into the low bits."""


@intrinsic
def bits_of(typing: Any, number: Any) -> Any:
    """Return the bits of a float64 as an unsigned integer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.uint64(types.float64), generate


@intrinsic
def from_bits(typing: Any, bits: Any) -> Any:
    """Return the float64 with these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.uint64), generate


# Floating-point formats. The mantissa of a format has k bits fewer than that of float64. Its ``constants`` are 2^k, its
# smallest normal number and its largest number, and more for 16-bit words: Python floats, which numba takes quickly


@inlined
def _power_below(size: Any, smallest: Any) -> Any:
    """Return the largest power of two that is not above ``size``, or ``smallest`` if that is larger."""
    power: Any = from_bits(bits_of(size) & INFINITY)
    return power if power > smallest else smallest


@inlined
def rounded(x: Any, constants: Any) -> Any:
    """Return the number of a smaller format that is nearest to x; the largest one if x is finite and beyond it.

    If p is the largest power of two below x, the numbers of the format near x are as far apart as those of float64
    near 2^k·p. So adding 2^k·p rounds to nearest, ties to even, and subtracting it is exact.
    """
    factor, smallest, largest = constants[0], constants[1], constants[2]
    bits: Any = bits_of(x)
    size = from_bits(bits & MAGNITUDE)
    bounded = size if size < largest else largest
    aligned = _power_below(bounded, smallest) * factor
    result = (bounded + aligned) - aligned
    result = result if size < np.inf else size
    return from_bits(bits_of(result) | (bits & SIGN))


@compiled
def round_into(vector: Any, out: Any, constants: Any) -> None:
    """Write the nearest numbers of a smaller format into ``out``; NaN and infinities stay as they are."""
    for i in range(vector.size):
        out[i] = rounded(np.float64(vector[i]), constants)


@compiled
def round_and_keep_rest(vector: Any, rest: Any, constants: Any) -> None:
    """Round v + e to a smaller format, where v is the vector and e the rest, which becomes what was lost."""
    for i in range(vector.size):
        whole = vector[i] + rest[i]
        vector[i] = rounded(np.float64(whole), constants)
        rest[i] = whole - vector[i]


@compiled
def to_numbers_and_rest(vector: Any, before: Any, after: Any, out: Any, constants: Any) -> bool:
    """Write v + e as numbers of a smaller format, and what is lost to ``after``. v is the vector and e is ``before``.

    Returns False if v + e is not finite; then ``after`` means nothing.
    """
    bad = 0
    for i in range(vector.size):
        whole = vector[i] + before[i]
        bad += whole - whole != 0
        near = rounded(np.float64(whole), constants)
        out[i] = near
        after[i] = whole - near
    return bad == 0


@inlined
def _word_of(x: Any, constants: Any) -> Any:
    """Return the 16-bit word of the number of a smaller format that is nearest to x, as ``rounded`` returns it.

    The last bits of x + 2^k·p are the mantissa of the word, with its leading 1; the exponent of p is added, less a
    constant. The constants are also k, that constant, and the numbers that infinity and NaN are replaced by. These
    have the exponent after the largest one, as the words of infinity and NaN have.
    """
    factor, smallest, largest, dropped, offset, infinity, nan = constants
    bits: Any = bits_of(x)
    size: Any = from_bits(bits & MAGNITUDE)
    bounded = size if size < largest else largest
    bounded = bounded if size < np.inf else infinity
    bounded = nan if np.isnan(size) else bounded
    power = _power_below(bounded, smallest)
    word = bits_of(bounded + power * factor) + (bits_of(power) >> np.uint64(dropped)) - np.uint64(offset)
    return np.uint16(word) | np.uint16((bits & SIGN) >> SIGN_SHIFT)


@compiled
def to_words(vector: Any, out: Any, constants: Any) -> None:
    """Write the 16-bit words of the nearest numbers of a smaller format."""
    for i in range(vector.size):
        out[i] = _word_of(np.float64(vector[i]), constants)


@compiled
def to_words_and_rest(vector: Any, before: Any, after: Any, out: Any, constants: Any) -> bool:
    """Write the words of v + e, and what they lose to ``after``, where v is the vector and e is ``before``.

    Returns False if v + e is not finite; then ``after`` means nothing.
    """
    bad = 0
    for i in range(vector.size):
        whole = vector[i] + before[i]
        bad += whole - whole != 0
        out[i] = _word_of(np.float64(whole), constants)
        after[i] = whole - rounded(np.float64(whole), constants)
    return bad == 0


@compiled
def from_words(words: Any, vector: Any, constants: Any) -> None:
    """Write the numbers of 16-bit words into a vector.

    The constants are k, the difference of the exponents' biases, the smallest normal number s, and the number after
    the largest. A word with exponent 0 and mantissa m stands for m·s. As ``normal`` it is read as (1 + m)·s/2, and
    twice that minus s is m·s. For words with other exponents, twice ``normal`` minus s is not below ``normal``.
    """
    dropped, bias, smallest, infinity = constants
    shift = np.uint64(dropped)
    for i in range(vector.size):
        word = np.uint64(np.int64(np.int16(words[i])))  # the sign is in its place
        normal: Any = from_bits(((word & WORD_MAGNITUDE) << shift) + (np.uint64(bias) << MANTISSA))
        other = normal + normal - smallest
        size = normal if normal < other else other
        exponent = INFINITY if normal >= infinity else np.uint64(0)
        vector[i] = from_bits(bits_of(size) | exponent | (word & SIGN))


@compiled
def sum_is_finite(first: Any, second: Any) -> bool:
    """Return True if no entry of the sum of two vectors is NaN or infinity."""
    bad = 0
    for i in range(first.size):
        entry = first[i] + second[i]
        bad += entry - entry != 0
    return bad == 0


# 8-bit integers with a scale for each block


@inlined
def _largest_magnitude(vector: Any, start: Any, end: Any) -> Any:
    """Return the largest magnitude; not finite if an entry is not."""
    most = np.uint64(0)
    for i in range(start, end):
        most = max(most, bits_of(np.float64(vector[i])) & MAGNITUDE)
    return from_bits(most)


@inlined
def _scale_of(most: Any, least: Any) -> Any:
    """Return the step between codes for a block with this largest magnitude; 0 if that is below ``least``."""
    scale: Any = from_bits(bits_of(most / LARGEST_CODE) & SCALE_BITS)
    scale = scale if scale >= least else 0.0
    return scale if most - most == 0 else np.nan


@inlined
def _code_of(x: Any, scale: Any) -> Any:
    """Return x divided by the scale, rounded to an 8-bit integer; anything if x is not finite."""
    return np.int8(bits_of(x / scale + ROUNDER))


@divides_like_numpy
def quantize_and_keep_rest(vector: Any, rest: Any, block: int, least: Any) -> None:
    """Round v + e to multiples of a scale in each block; the rest e becomes what was lost. All numbers are finite."""
    for start in range(0, vector.size, block):
        end = min(start + block, vector.size)
        for i in range(start, end):
            vector[i] += rest[i]
        scale = _scale_of(_largest_magnitude(vector, start, end), least)
        divisor = scale if scale > 0.0 else np.inf
        for i in range(start, end):
            whole = vector[i]
            vector[i] = np.float64(_code_of(np.float64(whole), divisor)) * scale
            rest[i] = whole - vector[i]


@divides_like_numpy
def to_codes(vector: Any, codes: Any, scales: Any, block: int, least: Any) -> None:
    """Write codes and scales of multiples of a scale in each block. A block that is not finite has the scale NaN."""
    for start in range(0, vector.size, block):
        end = min(start + block, vector.size)
        scale = _scale_of(_largest_magnitude(vector, start, end), least)
        scales[start // block] = scale
        divisor = scale if scale > 0.0 else np.inf
        for i in range(start, end):
            codes[i] = _code_of(np.float64(vector[i]), divisor)


@divides_like_numpy
def to_codes_and_rest(vector: Any, before: Any, after: Any, codes: Any, scales: Any, block: int, least: Any) -> bool:
    """Write codes and scales of v + e, and what they lose to ``after``, where v is the vector and e is ``before``.

    Returns False if v + e is not finite; then ``after`` means nothing.
    """
    bad = 0
    for start in range(0, vector.size, block):
        end = min(start + block, vector.size)
        for i in range(start, end):
            after[i] = vector[i] + before[i]
        most = _largest_magnitude(after, start, end)
        scale = _scale_of(most, least)
        scales[start // block] = scale
        bad += most - most != 0
        divisor = scale if scale > 0.0 else np.inf
        for i in range(start, end):
            whole = after[i]
            code = _code_of(np.float64(whole), divisor)
            codes[i] = code
            after[i] = whole - np.float64(code) * scale
    return bad == 0


@compiled
def from_codes(codes: Any, scales: Any, vector: Any, block: int) -> None:
    """Write code times scale into a vector."""
    for start in range(0, vector.size, block):
        scale = np.float64(scales[start // block])
        for i in range(start, min(start + block, vector.size)):
            vector[i] = np.float64(codes[i]) * scale


# Vectors with few entries

DIGIT = np.uint64(16)
"""The bits of a float64 are four digits of 16 bits."""
DIGITS = 1 << 16


@compiled
def keep_largest(vector: Any, count: int) -> None:
    """Set all but the ``count`` entries of largest magnitude to zero; of equal ones the first are kept.

    ``count`` is at least 1 and at most the number of entries, which are finite. The least magnitude that is kept is
    found digit by digit.
    """
    least, left = np.uint64(0), count
    counts = np.empty(DIGITS, np.int64)
    for place in range(3, -1, -1):
        shift = np.uint64(place) * DIGIT
        counts[:] = 0
        for i in range(vector.size):
            leading = (bits_of(np.float64(vector[i])) & MAGNITUDE) >> shift
            if leading >> DIGIT == least:
                counts[leading & np.uint64(DIGITS - 1)] += 1
        digit = DIGITS - 1
        while counts[digit] < left:
            left -= counts[digit]
            digit -= 1
        least = least << DIGIT | np.uint64(digit)
    for i in range(vector.size):
        magnitude = bits_of(np.float64(vector[i])) & MAGNITUDE
        if magnitude == least and left > 0:
            left -= 1
        elif magnitude <= least:
            vector[i] = 0


@compiled
def to_entries(vector: Any, zero: Any, words: Any, values: Any, indices: Any) -> int:
    """Write the entries whose bits are not all zero, and their indices. Returns their number, or -1 if they do not fit.

    ``words`` are the bits of the vector, ``zero`` is zero of their dtype. What is left is filled with the first entry.
    """
    count = 0
    for i in range(vector.size):
        if words[i] != zero:
            if count == values.size:
                return -1
            values[count], indices[count] = vector[i], i
            count += 1
    values[count:], indices[count:] = vector[0], 0
    return count


@compiled
def from_entries(values: Any, indices: Any, vector: Any) -> bool:
    """Write entries into a vector that is zero elsewhere. Returns False if an index is beyond the vector."""
    vector[:] = 0
    for k in range(values.size):
        if indices[k] >= vector.size:
            return False
        vector[indices[k]] = values[k]
    return True
