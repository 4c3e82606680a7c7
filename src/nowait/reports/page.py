"""Writes the page: template, style, script and data in one self-contained file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from nowait.core import checks
from nowait.html.numbers import shown
from nowait.recording import Run, Sweep
from nowait.recording.files import replace_file
from nowait.reports.charts import asset, chart_script, chart_style, json_for_page
from nowait.reports.entries import Entries, Entry, checked_entries
from nowait.reports.headline import headline as headline_of
from nowait.reports.payload import payload
from nowait.reports.tables import config_tables, environment_table, predictions_table, summary_table
from nowait.reports.words import title_of

REPORT_SCRIPTS = ("report.js", "report_runs.js", "report_sweeps.js")


def write_report(
    runs: Mapping[str, Entry] | Run | Sequence[Run] | Sweep,
    path: str | Path,
    *,
    title: str | None = None,
    headline: str | None = None,
    subtitle: str | None = None,
    minimum: float = 0.0,
    notes: Sequence[str] = (),
    predictions: Sequence[tuple[str, str, str]] = (),
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write one HTML file with curves, delays, timelines and tables of named runs; return its path.

    A name with several runs (seeds) is drawn as their median, with a band from the lowest to the highest. Sweeps are
    drawn as loss against stepsize. A run, a list of runs or a sweep without names is named by what was run. ``title``
    (the heading of the page), ``headline`` and ``subtitle`` are made from the runs if they are None. ``minimum`` is F*,
    which is subtracted from losses. ``notes`` are sentences on the result, ``predictions`` are rows (what, predicted,
    measured). ``config`` is shown as a table; with None each run's own configuration is shown. The file is
    self-contained: it loads nothing over the network.
    """
    entries = checked_entries(runs)
    minimum = checks.finite(minimum, "minimum", "errors are losses minus it")
    found = headline_of(*entries)
    page = Template(asset("report.html")).substitute(
        title=escape(_title(entries) if title is None else str(title)),
        headline=escape(found.text if headline is None else headline),
        detail=escape(found.detail if subtitle is None and headline is None else subtitle or ""),
        style=chart_style() + asset("report.css"),
        script="\n".join([chart_script(), *map(asset, REPORT_SCRIPTS)]),
        sections=_sections(entries, minimum, _notes(notes)),
        predictions=_predictions(predictions),
        environment=_section("environment", "Where the runs were made", environment_table(entries.runs)),
        config=_section("config", "Configuration", _config(entries, _checked_config(config))),
        data=json_for_page(payload(*entries, minimum)),
    )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, page.encode())
    return target


def _title(entries: Entries) -> str:
    every = [run for entry in entries.runs.values() for run in entry]
    configs = [run.config for run in every] + [sweep.config for sweep in entries.sweeps.values()]
    workers = [run.trace.num_workers for run in every] + [_workers(sweep) for sweep in entries.sweeps.values()]
    return title_of(configs, workers)


def _workers(sweep: Sweep) -> int:
    """Return the number of workers of a sweep, as far as its description has it; else 0."""
    speeds = sweep.config.get("speeds")
    lists = [value for value in speeds.values() if isinstance(value, list)] if isinstance(speeds, Mapping) else []
    return len(lists[0]) if lists else 0


def _sections(entries: Entries, minimum: float, notes: str) -> str:
    """Return the charts: runs first, with the notes after the main chart."""
    minimum_words = f" Errors are losses minus F* = {shown(minimum)}." if minimum else ""
    sweeps = asset("report_sweeps.html") if entries.sweeps else ""
    if not entries.runs:
        return f"{sweeps}\n{notes}"
    runs = Template(asset("report_runs.html"))
    summary = summary_table(entries.runs, minimum)
    return runs.substitute(notes=notes, summary=summary, sweeps=sweeps, minimum=minimum_words)


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
    return _section("theory", "Theory and measurement", predictions_table(predictions) if rows else "")


def _section(name: str, title: str, content: str) -> str:
    if not content:
        return ""
    heading = f'<h2 id="{name}-title">{title}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">\n{heading}\n{content}\n</section>'


def _config(entries: Entries, config: Mapping[str, Any] | None) -> str:
    if config is None and not entries.runs:
        configs = {name: sweep.config for name, sweep in entries.sweeps.items()}
        config = configs if len(configs) > 1 else next(iter(configs.values()))
    return config_tables(entries.runs, config)


def _checked_config(config: Any) -> Mapping[str, Any] | None:
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(f'config must be a dictionary, {{"entry": value, ...}}, or None, got {config!r}')
    return config
