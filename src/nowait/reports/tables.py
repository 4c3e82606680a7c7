"""The tables of a report as HTML, readable without JavaScript."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from nowait.html.numbers import shown
from nowait.recording import Run
from nowait.reports.payload import NamedRuns, summary
from nowait.reports.states import state_words

MOST_COLUMNS = 4
LONGEST_TEXT = 160
LONGEST_LIST = 8
"""Longer lists of numbers are shown as a range."""
NONE = "–"


class Cell(NamedTuple):
    """A cell of a table: its text, and the value by which the column is sorted if that is not the text."""

    text: str
    value: str | None = None


def summary_table(runs: NamedRuns, minimum: float) -> str:
    """Return the summary table, with one row per entry; the page's script makes it sortable."""
    error = "loss\N{NO-BREAK SPACE}−\N{NO-BREAK SPACE}F*" if minimum else ""
    columns = {"runs": "runs", "gradients": "gradients", "steps": "steps", "seconds": "seconds", "loss": "loss"}
    columns |= {"error": error} if error else {}
    columns |= {"steps_per_second": "steps per second", "delay_median": "median delay", "delay_mean": "mean delay"}
    columns |= {"delay_max": "max delay", "dropped": "dropped"}
    rows: list[list[str | Cell]] = []
    for name, entry in runs.items():
        values = summary(entry, minimum)
        cells = [Cell(shown(values[key], trim=False), _plain(values[key])) for key in columns]
        rows.append([name, *cells, Cell(state_words(entry) or "finished")])
    return table(["run", *columns.values(), "state"], rows, kind="numbers cards sortable")


def environment_table(runs: NamedRuns) -> str:
    """Return where the runs were made: machine, versions and commit; empty if that was not recorded."""
    found = [flat(run.config.get("environment") or {}) for entry in runs.values() for run in entry]
    merged = _merged([each for each in found if each])
    rows = [[key.removeprefix("machine.").removeprefix("versions."), value] for key, value in merged.items()]
    return table(["entry", "value"], rows, kind="") if rows else ""


def predictions_table(predictions: Sequence[tuple[str, str, str]]) -> str:
    """Return the table of predicted and measured values."""
    return table(["what", "predicted", "measured"], [list(row) for row in predictions], kind="numbers cards")


def config_tables(runs: NamedRuns, config: Mapping[str, Any] | None) -> str:
    """Return a table of the given configuration; without one, tables of the runs' differing and common entries."""
    if config is not None:
        rows = [[key, value] for key, value in flat(config).items() if value != NONE]
        return table(["entry", "value"], rows, kind="")
    columns = {name: _merged([flat(_without_environment(run)) for run in entry]) for name, entry in runs.items()}
    keys = list(dict.fromkeys(key for column in columns.values() for key in column))
    values = {key: [column.get(key, NONE) for column in columns.values()] for key in keys}
    differing = [key for key in keys if len(set(values[key])) > 1]
    shared = [[key, values[key][0]] for key in keys if key not in differing and values[key][0] != NONE]
    parts = []
    if differing:
        parts += ["<h3>Differences</h3>", _differences({key: values[key] for key in differing}, list(columns))]
    if shared:
        heading = "<h3>Common to all runs</h3>" if differing else ""
        parts += [heading, table(["entry", "value"], shared, kind="")]
    return "\n".join(parts)


def _differences(values: Mapping[str, Sequence[str]], names: Sequence[str]) -> str:
    """Return a column per run if there are few, otherwise a row per run."""
    if len(names) <= MOST_COLUMNS:
        return table(["entry", *names], [[key, *row] for key, row in values.items()], kind="cards")
    rows = [[name, *(row[place] for row in values.values())] for place, name in enumerate(names)]
    return table(["run", *values], rows, kind="cards sortable")


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten nested dictionaries, with dotted keys; a ``type`` entry becomes the value of its dictionary's key.

    >>> flat(
    ...     {
    ...         "method": {
    ...             "type": "MinibatchSGD",
    ...             "stepsize": {"type": "Constant", "gamma": 0.5},
    ...         },
    ...         "seed": 1,
    ...     }
    ... )
    {'method': 'MinibatchSGD', 'method.stepsize': 'Constant', 'method.stepsize.gamma': '0.5', 'seed': '1'}
    """
    entries: dict[str, str] = {}
    for key, value in config.items():
        if key == "type" and str(value).lower() == prefix.rpartition(".")[2]:
            continue
        name = prefix if key == "type" and prefix else f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            entries |= flat(value, name)
        else:
            entries[name] = _value(value)
    return entries


def table(heading: Sequence[str], rows: Sequence[Sequence[str | Cell]], kind: str = "numbers cards") -> str:
    """Return an HTML table in a container that scrolls if it is too wide. The first column holds the row headers.

    ``kind`` are classes: right-aligned numbers, cards (one card per row on a phone), sortable.
    """
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heading)
    body = "\n".join(f"<tr>{_cells(row, heading)}</tr>" for row in rows)
    label = escape(f"Table: {', '.join(heading)}", quote=True)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table class="{kind}">\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _cells(row: Sequence[str | Cell], heading: Sequence[str]) -> str:
    first, *others = (cell if isinstance(cell, Cell) else Cell(cell) for cell in row)
    cells = [f'<th scope="row">{escape(first.text)}</th>']
    for cell, name in zip(others, heading[1:], strict=True):
        value = "" if cell.value is None else f' data-value="{escape(cell.value, quote=True)}"'
        cells.append(f'<td data-label="{escape(name, quote=True)}"{value}>{escape(cell.text)}</td>')
    return "".join(cells)


def _plain(value: float | None) -> str:
    """Return a number as JavaScript reads it, for sorting; without a value it comes last."""
    return "Infinity" if value is None or not math.isfinite(value) else repr(float(value))


def _without_environment(run: Run) -> dict[str, Any]:
    return {key: value for key, value in run.config.items() if key != "environment"}


def _merged(configs: Sequence[Mapping[str, str]]) -> dict[str, str]:
    keys = dict.fromkeys(key for config in configs for key in config)
    return {key: ", ".join(dict.fromkeys(config.get(key, NONE) for config in configs)) for key in keys}


def _value(value: Any) -> str:
    if value is None or (isinstance(value, Mapping | list | tuple) and not value):
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return shown(value, digits=4)
    if isinstance(value, list | tuple):
        return _list(value)
    text = str(value)
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def _list(values: Sequence[Any]) -> str:
    numbers = all(isinstance(value, int | float) for value in values)
    if len(values) <= LONGEST_LIST:
        return ", ".join(_value(value) for value in values)
    if numbers:
        return f"{len(values):,} values, {shown(min(values))} to {shown(max(values))}"
    return ", ".join(_value(value) for value in values[:LONGEST_LIST]) + f", … ({len(values):,} in all)"
