"""A curve as small as a word, as inline SVG in the colour of the text around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from nowait.html.elements import Markup

WIDTH, HEIGHT, MARGIN = 120, 24, 2
MOST_POINTS = 120
DECADES = 1.0
"""Positive values that span more than this many powers of ten are drawn on a logarithmic scale."""


def sparkline(values: Sequence[float], label: str = "") -> Markup:
    """Return the curve of the values against their number. Values that are not finite leave a gap.

    >>> print(sparkline([1.0, 0.5], "loss")[:20])
    <svg width="120" hei
    """
    kept = _thinned(values)
    finite = [value for value in kept if math.isfinite(value)]
    if not finite:
        return Markup("")
    scaled = [_scale(value, min(finite), max(finite)) for value in kept]
    step = (WIDTH - 2 * MARGIN) / max(1, len(scaled) - 1)
    lines = "".join(_line(piece, step) for piece in _pieces(scaled))
    head = f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
    return Markup(f'{head} style="vertical-align:middle"><title>{escape(label)}</title>{lines}</svg>')


def _thinned(values: Sequence[float]) -> list[float]:
    """Return at most ``MOST_POINTS`` values, evenly spaced, with the first and the last."""
    if len(values) <= MOST_POINTS:
        return [float(value) for value in values]
    last = len(values) - 1
    return [float(values[round(place * last / (MOST_POINTS - 1))]) for place in range(MOST_POINTS)]


def _scale(value: float, low: float, high: float) -> float:
    """Return the height of a value between 0 and 1; NaN if it is not finite."""
    if not math.isfinite(value):
        return math.nan
    if low > 0 and math.log10(high / low) > DECADES:
        value, low, high = math.log10(value), math.log10(low), math.log10(high)
    return (value - low) / (high - low) if high > low else 0.5


def _pieces(heights: list[float]) -> list[list[tuple[int, float]]]:
    """Return the runs of consecutive points without a gap."""
    pieces: list[list[tuple[int, float]]] = [[]]
    for place, height in enumerate(heights):
        if math.isnan(height):
            pieces.append([])
        else:
            pieces[-1].append((place, height))
    return [piece for piece in pieces if piece]


def _line(piece: list[tuple[int, float]], step: float) -> str:
    points = [(MARGIN + place * step, HEIGHT - MARGIN - height * (HEIGHT - 2 * MARGIN)) for place, height in piece]
    if len(points) == 1:
        return f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="1.5" fill="currentColor"/>'
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{joined}" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linejoin="round"/>'
