"""Formatting of numbers for people, and rounding for the data of a page."""

from __future__ import annotations

import math
from collections.abc import Iterable

DIGITS = 6
"""Significant digits in the page's data: more than a chart can resolve."""
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def shown(value: float | None, digits: int = 3, trim: bool = True) -> str:
    """Format a number as 15,599 or 0.0367 or 1.83 × 10⁻⁶; None and NaN as a dash.

    ``trim`` removes trailing zeros; without it the decimal points in a column are aligned.

    >>> shown(15599), shown(0.0367047), shown(1.8255e-6), shown(float("inf")), shown(None)
    ('15,599', '0.0367', '1.83 × 10⁻⁶', '∞', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value != 0 and not 1e-3 <= abs(value) < 1e7:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa} × 10{str(int(exponent)).translate(SUPERSCRIPTS)}".replace("-", "−")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value != 0 else 0
    text = f"{value:,.{0 if value == int(value) else decimals}f}"
    return (text.rstrip("0").rstrip(".") if trim and "." in text else text).replace("-", "−")


def compact(values: Iterable[float]) -> list[float | None]:
    """Round numbers for JSON to ``DIGITS`` significant digits; None for numbers that are not finite.

    >>> compact([0.123456789, 2.0, float("inf")])
    [0.123457, 2, None]
    """
    return [_rounded(value) for value in values]


def _rounded(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    if value == int(value) and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{DIGITS}g}")
