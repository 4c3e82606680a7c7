# mypy: disable-error-code="call-arg"
"""The functions of ``nowait.numerics.elementary``, compiled, with bit-identical results. Imports numba.

Exponents are read and written by integer operations on the bits of floats. There are no branches, so that loops over
these functions can be vectorised.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable

from nowait.numerics import elementary
from nowait.numerics.compiled import inlined
from nowait.numerics.elementary import HIGHEST, LOWEST, ONE_OVER_LN2, ROUNDER, SQRT_TWO_LESS_ONE

ONE_BITS = 1023 << 52
"""The bits of 1.0."""
ROOT_BITS = 0x3FE6A09E667F3BCD
"""The bits of √½."""
ROUNDER_BITS = 0x4338000000000000
SMALLEST_NORMAL = 2.0**-1022
MANTISSA = (1 << 52) - 1
WHOLE, WHOLE_BITS = 2.0**52, 0x4330000000000000
"""2^52 and its bits; OR-ing an integer into the low bits adds it to 2^52."""
TO_NORMAL = 2.0**54
"""Multiplies subnormal numbers into the normal range."""

for _function in (
    elementary.artanh_series,
    elementary.log_of_parts,
    elementary.exp_of_rest,
    elementary.cos_of_quarter,
    elementary.sin_of_quarter,
    elementary.product_error,
    elementary.times_log_of_parts,
):
    register_jitable(forceinline=True)(_function)


@intrinsic
def _bits_of(typing: Any, number: Any) -> Any:
    """Return the bits of a float64 as an integer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate


@intrinsic
def _from_bits(typing: Any, bits: Any) -> Any:
    """Return the float64 with these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@inlined
def _parts(x: Any) -> Any:
    """Return f and k with x = 2^k·(1 + f), 1 + f between √½ and √2, for a finite number above 0."""
    tiny = x < SMALLEST_NORMAL
    offset = _bits_of(x * TO_NORMAL if tiny else x) - ROOT_BITS
    f = _from_bits((offset & MANTISSA) + ROOT_BITS) - 1.0
    exponent = np.int64(np.uint64(offset + ONE_BITS) >> np.uint64(52))  # k + 1023
    k = _from_bits(exponent | WHOLE_BITS) - (WHOLE + 1023.0)
    return f, k - 54.0 if tiny else k


@inlined
def log(x: Any) -> Any:
    """Return the natural logarithm; −∞ for 0, NaN for negative numbers."""
    f, k = _parts(x)
    result = elementary.log_of_parts(f, k)
    result = result if x > 0.0 else math.nan
    result = -math.inf if x == 0.0 else result
    return math.inf if x == math.inf else result


@inlined
def exp(x: Any) -> Any:
    """Return e^x."""
    x = LOWEST if x < LOWEST else x
    x = HIGHEST if x > HIGHEST else x
    shifted = x * ONE_OVER_LN2 + ROUNDER
    y = elementary.exp_of_rest(shifted - ROUNDER, x)
    n = _bits_of(shifted) - ROUNDER_BITS
    half = n >> 1
    return y * _from_bits((half << 52) + ONE_BITS) * _from_bits(((n - half) << 52) + ONE_BITS)


@inlined
def log1p_of_share(share: Any) -> Any:
    """Return ln(1 + share) for a number between 0 and 1."""
    large = share > SQRT_TWO_LESS_ONE
    return elementary.log_of_parts((share - 1.0) * 0.5 if large else share, 1.0 if large else 0.0)


@inlined
def power(x: Any, y: Any) -> Any:
    """Return x^y for x above 0."""
    f, k = _parts(x)
    first, second = elementary.times_log_of_parts(y, f, k)
    whole = exp(first)
    return whole + whole * second if abs(first) < HIGHEST else whole


@inlined
def cos_of_turns(turns: Any) -> Any:
    """Return cos(2π·turns)."""
    quarters = 4.0 * turns
    shifted = quarters + ROUNDER
    r = quarters - (shifted - ROUNDER)
    c, s = elementary.cos_of_quarter(r), elementary.sin_of_quarter(r)
    quadrant = _bits_of(shifted) & 3
    size = s if quadrant & 1 else c
    return -size if (quadrant + 1) & 2 else size
