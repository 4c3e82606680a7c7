"""Elementary functions that use only + − · / and √, in a fixed order: bit-identical on every processor.

The system's math library and numpy select different code on different processors, and the last digits differ. IEEE 754
fixes the result of every operation used here, so each function has exactly one result. Their error is below 1 ulp
(``cos``: 1.5 ulp; ``power``: 1.5 ulp while the result is between e^-40 and e^40).

The functions at the top, on reduced arguments, take numbers or arrays, and ``elementary_kernels`` compiles the same
source. Below them are the complete functions for Python numbers and numpy arrays. ``exp``, ``power`` and
``cos_of_turns`` of arrays of another library are those of that library, with its last digits.

The reductions are the usual ones (Muller, "Elementary Functions: Algorithms and Implementation", 2016):
ln(2^k·(1 + f)) = k·ln 2 + 2·artanh(s) with s = f/(2 + f); exp(n·ln 2 + r) = 2^n·exp(r); cos of quarter turns. The
polynomials are Chebyshev interpolants of (2·artanh(s)/s − 2)/s² in s², of (exp(r) − 1 − r)/r² in r, and of
(1 − cos(π/2·r))/r² and (sin(π/2·r)/r − π/2)/r² in r², computed with 200 bits and rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

LN2_HIGH, LN2_LOW = float.fromhex("0x1.62e42fee00000p-1"), 1.9082149292705877e-10
"""ln 2 in two parts; the first has 32 bits, so that its products with exponents are exact."""
ONE_OVER_LN2 = 1.4426950408889634
QUARTER_HIGH, QUARTER_LOW = 1.5707963267948966, 6.123233995736766e-17
"""π/2 in two parts."""
SQRT_HALF, SQRT_TWO_LESS_ONE = 0.7071067811865476, 0.41421356237309503
ROUNDER = 6755399441055744.0
"""1.5·2^52: added and subtracted again, it rounds numbers below 2^51 to integers."""
SPLITTER = 134217729.0
"""2^27 + 1: splits a number into two with half the digits each (Veltkamp)."""
LOWEST, HIGHEST = -746.0, 710.0
"""exp is 0 below and infinite above."""


# On reduced arguments: plain arithmetic for numbers, arrays and compiled code


def artanh_series(z: Any) -> Any:
    """Return (2·artanh(s)/s − 2) for z = s², s between ±0.1716."""
    z2 = z * z
    low = (0.6666666666666666 + 0.4000000000000088 * z) + (0.28571428570803614 + 0.22222222391713917 * z) * z2
    high = (0.18181795640132906 + 0.15386239702814658 * z) + (0.13268773138656886 + 0.13086626147840102 * z) * z2
    return z * (low + high * (z2 * z2))


def log_of_parts(f: Any, k: Any) -> Any:
    """Return ln(2^k·(1 + f)) for 1 + f between √½ and √2."""
    s = f / (2.0 + f)
    half = 0.5 * f * f
    tail = s * (half + artanh_series(s * s)) + k * LN2_LOW
    return k * LN2_HIGH - ((half - tail) - f)


def exp_of_rest(n: Any, x: Any) -> Any:
    """Return exp(x − n·ln 2), where n is x/ln 2 rounded to an integer."""
    high = x - n * LN2_HIGH
    low = n * LN2_LOW
    r = high - low
    r2 = r * r
    r4 = r2 * r2
    first = (0.5 + 0.1666666666666667 * r) + (0.04166666666666667 + 0.008333333333326141 * r) * r2
    second = (0.0013888888888883752 + 0.00019841269874800493 * r) + (
        2.4801587325533363e-05 + 2.7557255425746435e-06 * r
    ) * r2
    third = (2.7557273661348637e-07 + 2.510520637395701e-08 * r) + 2.0914679376583935e-09 * r2
    series = first + (second + third * r4) * r4
    return 1.0 + (r + (r2 * series + ((high - r) - low)))


def cos_of_quarter(r: Any) -> Any:
    """Return cos(π/2·r) for r between ±½."""
    w = r * r
    w2 = w * w
    low = (1.2337005501361697 - 0.2536695079010478 * w) + (0.020863480763340773 - 0.0009192602745468447 * w) * w2
    high = (2.5202039028029178e-05 - 4.710678405505227e-07 * w) + 6.329396344967424e-09 * w2
    return 1.0 - w * (low + high * (w2 * w2))


def sin_of_quarter(r: Any) -> Any:
    """Return sin(π/2·r) for r between ±½."""
    w = r * r
    w2 = w * w
    low = (-0.6459640975062463 + 0.07969262624616703 * w) + (-0.004681754135317561 + 0.00016044118476030617 * w) * w2
    high = (-3.598842925925207e-06 + 5.691991364926124e-08 * w) - 6.635152387230837e-10 * w2
    return QUARTER_HIGH * r + (QUARTER_LOW * r + (w * r) * (low + high * (w2 * w2)))


def product_error(a: Any, b: Any, product: Any) -> Any:
    """Return a·b − product exactly, for product = a·b rounded (Dekker 1971)."""
    a_shifted, b_shifted = SPLITTER * a, SPLITTER * b
    a_high, b_high = a_shifted - (a_shifted - a), b_shifted - (b_shifted - b)
    a_low, b_low = a - a_high, b - b_high
    return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def times_log_of_parts(y: Any, f: Any, k: Any) -> Any:
    """Return y·ln(2^k·(1 + f)) as a sum of two numbers, the second far smaller than the first."""
    below = 2.0 + f
    s = f / below
    product = s * below
    rest = (f - product) - product_error(s, below, product) - s * (f - (below - 2.0))
    low = 2.0 * (rest / below) + s * artanh_series(s * s) + k * LN2_LOW
    whole, twice = k * LN2_HIGH, 2.0 * s
    high = whole + twice
    seen = high - whole
    low = low + ((whole - (high - seen)) + (twice - seen))
    total = high + low
    first = y * total
    return first, product_error(y, total, first) + y * (low - (total - high))


# For Python numbers and numpy arrays


def functions_for(x: Any) -> Any:
    """Return the module with the functions of an array: numpy, also for numbers, or what the array itself names.

    JAX arrays name ``jax.numpy``: ``__array_namespace__`` is part of the Python array API standard.
    """
    namespace = getattr(x, "__array_namespace__", None)
    return np if namespace is None else namespace()


def added(numbers: Iterable[float], start: float = 0.0) -> float:
    """Return the sum of floats, added one after the other; since Python 3.12 ``sum`` uses compensated summation."""
    for number in numbers:
        start += number
    return start


def exp(x: Any) -> Any:
    """Return e^x."""
    if isinstance(x, np.ndarray):
        with np.errstate(over="ignore", under="ignore"):
            kept = np.clip(np.where(np.isnan(x), 0.0, x), LOWEST, HIGHEST)
            n = _rounded(kept * ONE_OVER_LN2)
            return np.where(np.isnan(x), np.nan, _scaled(exp_of_rest(n, kept), n.astype(np.int64), np.ldexp))
    if (functions := functions_for(x)) is not np:
        return functions.exp(x)
    x = float(x)
    if math.isnan(x):
        return x
    x = min(max(x, LOWEST), HIGHEST)
    n = _rounded(x * ONE_OVER_LN2)
    return _scaled(exp_of_rest(n, x), int(n), math.ldexp)


def log(x: Any) -> Any:
    """Return the natural logarithm; −∞ for 0, NaN for negative numbers."""
    if isinstance(x, np.ndarray):
        with np.errstate(invalid="ignore"):
            ordinary = (x > 0) & (x < np.inf)
            f, k = _parts(np.where(ordinary, x, 1.0))
            rest = np.where(x == 0, -np.inf, np.where(x == np.inf, np.inf, np.nan))
            return np.where(ordinary, log_of_parts(f, k), rest)
    x = float(x)
    if not 0.0 < x < math.inf:
        return -math.inf if x == 0 else math.inf if x == math.inf else math.nan
    return log_of_parts(*_parts(x))


def log1p_of_share(share: float) -> float:
    """Return ln(1 + share) for a number between 0 and 1."""
    large = share > SQRT_TWO_LESS_ONE
    return float(log_of_parts((share - 1.0) * 0.5 if large else share, 1.0 if large else 0.0))


def log_of_sum(first: float, second: float) -> float:
    """Return ln(e^first + e^second) without overflow; either argument may be −∞."""
    larger, smaller = max(first, second), min(first, second)
    return larger if smaller == -math.inf else larger + log1p_of_share(exp(smaller - larger))


def power(x: Any, y: float) -> Any:
    """Return x^y for x above 0."""
    if isinstance(x, np.ndarray):
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            first, second = times_log_of_parts(y, *_parts(x))
            whole = exp(first)
            return np.where(np.abs(first) < HIGHEST, whole + whole * second, whole)
    if functions_for(x) is not np:
        return x**y
    first, second = times_log_of_parts(y, *_parts(float(x)))
    whole = exp(first)
    return whole + whole * second if abs(first) < HIGHEST else whole


def integer_power(base: float, exponents: Any) -> Any:
    """Return base^n for integers n, by repeated squaring."""
    if isinstance(exponents, np.ndarray):
        different, places = np.unique(exponents, return_inverse=True)
        return np.array([integer_power(base, int(exponent)) for exponent in different])[places]
    result, square, left = 1.0, float(base), abs(int(exponents))
    while left:
        if left & 1:
            result *= square
        square *= square
        left >>= 1
    return result if exponents >= 0 else 1.0 / result


def cos_of_turns(turns: Any) -> Any:
    """Return cos(2π·turns)."""
    if (functions := functions_for(turns)) is not np:
        return functions.cos(2.0 * math.pi * turns)
    quarters = 4.0 * turns
    q = _rounded(quarters)
    c, s = cos_of_quarter(quarters - q), sin_of_quarter(quarters - q)
    if isinstance(turns, np.ndarray):
        quadrant = q.astype(np.int64) & 3
        return np.choose(quadrant, [c, -s, -c, s])
    return float((c, -s, -c, s)[int(q) & 3])


def sin_of_turns(turns: Any) -> Any:
    """Return sin(2π·turns)."""
    return cos_of_turns(turns - 0.25)


def _rounded(x: Any) -> Any:
    """Return the nearest integer, as a float."""
    return (x + ROUNDER) - ROUNDER


def _parts(x: Any) -> tuple[Any, Any]:
    """Return f and k with x = 2^k·(1 + f), 1 + f between √½ and √2, exactly."""
    if isinstance(x, np.ndarray):
        fraction, exponent = np.frexp(x)
        small = fraction < SQRT_HALF
        return np.where(small, 2.0 * fraction, fraction) - 1.0, np.where(small, exponent - 1, exponent).astype(float)
    m, e = math.frexp(x)
    return (2.0 * m - 1.0, e - 1.0) if m < SQRT_HALF else (m - 1.0, float(e))


def _scaled(y: Any, n: Any, ldexp: Callable[[float, Any], Any]) -> Any:
    """Return y·2^n as two products, of which only the second rounds."""
    half = n >> 1
    return y * ldexp(1.0, half) * ldexp(1.0, n - half)
