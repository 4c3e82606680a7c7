"""Writes the page: template, style, script and data in one self-contained file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from nowait.core import checks
from nowait.html.numbers import shown
from nowait.recording import Run
from nowait.recording.files import replace_file
from nowait.reports.payload import checked_runs, payload
from nowait.reports.tables import config_tables, predictions_table, summary_table


def write_report(
    runs: Mapping[str, Run | Sequence[Run]],
    path: str | Path,
    *,
    title: str = "nowait report",
    minimum: float = 0.0,
    notes: Sequence[str] = (),
    predictions: Sequence[tuple[str, str, str]] = (),
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write one HTML file with curves, delays, timelines and tables of named runs; return its path.

    ``title`` is the heading of the page. A name with several runs (seeds) is drawn as their median, with a band from
    the lowest to the highest. ``minimum`` is F*, which is subtracted from losses. ``notes`` are sentences at the top,
    ``predictions`` are rows (what, predicted, measured). ``config`` is shown as a table; with None each run's own
    configuration is shown. The file is self-contained: it loads nothing over the network.
    """
    named = checked_runs(runs)
    minimum = checks.finite(minimum, "minimum", "errors are losses minus it")
    page = Template(_asset("report.html")).substitute(
        title=escape(str(title)),
        style=_asset("report.css"),
        script=_asset("chart.js") + "\n" + _asset("report.js"),
        notes=_notes(notes),
        summary=summary_table(named, minimum),
        predictions=_predictions(predictions),
        config=config_tables(named, _checked_config(config)),
        minimum=f" Errors are losses minus F* = {shown(minimum)}." if minimum else "",
        data=_data(payload(named, minimum)),
    )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, page.encode())
    return target


def _asset(name: str) -> str:
    return resources.files("nowait.reports").joinpath("assets", name).read_text(encoding="utf-8")


def _data(value: Any) -> str:
    """Return JSON that is safe inside a script element: no text in it can close the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _notes(notes: Sequence[str]) -> str:
    if isinstance(notes, str) or not all(isinstance(note, str) for note in notes):
        raise TypeError(f"notes must be a list of sentences, got {notes!r}")
    if not notes:
        return ""
    items = "\n".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<ul class="findings" aria-label="Findings">\n{items}\n</ul>'


def _predictions(predictions: Sequence[tuple[str, str, str]]) -> str:
    rows = [tuple(row) for row in predictions]
    if not all(len(row) == 3 and all(isinstance(cell, str) for cell in row) for row in rows):
        raise ValueError(f'predictions must be rows of text, ("what", "predicted", "measured"), got {predictions!r}')
    if not rows:
        return ""
    return (
        '<section id="theory" aria-labelledby="theory-title">\n<h2 id="theory-title">Theory and measurement</h2>\n'
        f"{predictions_table(predictions)}\n</section>"
    )


def _checked_config(config: Any) -> Mapping[str, Any] | None:
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(f'config must be a dictionary, {{"entry": value, ...}}, or None, got {config!r}')
    return config
