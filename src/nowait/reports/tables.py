"""The tables of a report as HTML, readable without JavaScript."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from nowait.html.numbers import shown
from nowait.reports.payload import NamedRuns, summary

LONGEST_LIST = 8
"""Longer lists of numbers are shown as a range."""
NONE = "–"


def summary_table(runs: NamedRuns, minimum: float) -> str:
    """Return the summary table, with one row per method."""
    heading = [
        "method",
        "runs",
        "gradients",
        "steps",
        "seconds",
        "loss",
        "loss\N{NO-BREAK SPACE}−\N{NO-BREAK SPACE}F*" if minimum else "error",
        "steps per second",
    ]
    heading += ["median delay", "mean delay", "max delay", "dropped", "diverged"]
    return table(heading, [_summary_row(name, summary(entry, minimum)) for name, entry in runs.items()])


def predictions_table(predictions: Sequence[tuple[str, str, str]]) -> str:
    """Return the table of predicted and measured values."""
    return table(["what", "predicted", "measured"], [list(row) for row in predictions])


def config_tables(runs: NamedRuns, config: Mapping[str, Any] | None) -> str:
    """Return a table of the given configuration; without one, tables of the runs' differing and common entries."""
    if config is not None:
        return table(["entry", "value"], [[key, value] for key, value in flat(config).items()], numbers=False)
    columns = {name: _merged([flat(run.config) for run in entry]) for name, entry in runs.items()}
    keys = list(dict.fromkeys(key for column in columns.values() for key in column))
    values = {key: [column.get(key, NONE) for column in columns.values()] for key in keys}
    differing = [key for key in keys if len(set(values[key])) > 1]
    shared = [[key, values[key][0]] for key in keys if key not in differing and values[key][0] != NONE]
    parts = []
    if differing:
        rows = [[key, *values[key]] for key in differing]
        parts += ["<h3>Differences</h3>", table(["entry", *columns], rows, numbers=False)]
    if shared:
        heading = "<h3>Common to all runs</h3>" if differing else ""
        parts += [heading, table(["entry", "value"], shared, numbers=False)]
    return "\n".join(parts)


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


def table(heading: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = True) -> str:
    """Return an HTML table in a container that scrolls if it is too wide. The first column holds the row headers."""
    kind = ' class="numbers"' if numbers else ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heading)
    body = "\n".join(f"<tr>{_cells(row)}</tr>" for row in rows)
    label = escape(f"Table: {', '.join(heading)}", quote=True)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table{kind}>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _cells(row: Sequence[str]) -> str:
    first, *others = row
    return f'<th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in others)


def _summary_row(name: str, values: Mapping[str, Any]) -> list[str]:
    runs, diverged = values["runs"], values["diverged"]
    keys = ["runs", "gradients", "steps", "seconds", "loss", "error", "steps_per_second"]
    keys += ["delay_median", "delay_mean", "delay_max", "dropped"]
    ended = "no" if not diverged else "yes" if diverged == runs else f"{diverged} of {runs}"
    return [name, *(shown(values[key], trim=False) for key in keys), ended]


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
    return str(value)


def _list(values: Sequence[Any]) -> str:
    numbers = all(isinstance(value, int | float) for value in values)
    if len(values) <= LONGEST_LIST:
        return ", ".join(_value(value) for value in values)
    if numbers:
        return f"{len(values):,} values, {shown(min(values))} to {shown(max(values))}"
    return ", ".join(_value(value) for value in values[:LONGEST_LIST]) + f", … ({len(values):,} in all)"
