"""The chart library in ``assets``: plain JavaScript and CSS that every page with charts contains."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

SCRIPTS = (
    "elements.js",
    "scale.js",
    "controls.js",
    "surface.js",
    "download.js",
    "legend.js",
    "lines.js",
    "heatmap.js",
    "brush.js",
    "timeline.js",
    "bars.js",
)


def chart_script() -> str:
    """Return the JavaScript of all charts; the header of each file in ``assets`` says what it exposes.

    Put it into one ``<script>``, before the page's own code and inside the same function.
    """
    return "\n".join(asset(name) for name in SCRIPTS)


def chart_style() -> str:
    """Return the CSS of all charts, controls and tables, with the colours of the light and the dark theme."""
    return asset("charts.css")


def json_for_page(value: Any) -> str:
    """Return JSON that is safe inside a script element: no text in it can close the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def asset(name: str) -> str:
    """Return the text of a file in ``assets``."""
    return resources.files("nowait.reports").joinpath("assets", name).read_text(encoding="utf-8")
