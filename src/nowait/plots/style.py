"""Colours, line styles, text sizes and axis labels that the figures share."""

from __future__ import annotations

from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
"""The colour-blind-safe palette of Okabe and Ito, with grey instead of yellow, which is hard to see on white."""
LINES = ("-", "--", "-.", ":")
LABELS = {"time": "time (s)", "gradients": "gradients", "step": "steps"}
TEXT_SIZES: dict[Any, Any] = {
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "figure.titlesize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.5,
}
"""Sizes in points, whatever the width of the figure."""
FONTS_IN_FILES: dict[Any, Any] = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none"}
"""TrueType fonts in PDF and PostScript, as publishers ask for, and text as text in SVG."""


def styles(count: int) -> list[dict[str, Any]]:
    """Return colours and line styles of lines; the first 32 differ from each other."""
    return [
        {
            "color": COLOURS[number % len(COLOURS)],
            "linestyle": LINES[(number + number // len(COLOURS)) % len(LINES)],
            "linewidth": 1.4,
        }
        for number in range(count)
    ]
