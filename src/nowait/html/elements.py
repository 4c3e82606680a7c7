"""Pieces of HTML. Text is escaped; only a ``Markup`` is inserted as it is. Colours follow the notebook's theme."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import final

MOST_ROWS = 20
"""Longer tables are cut, with a line that tells how many rows are left out."""
LONGEST_TEXT = 240
"""Longer text in a cell is cut; the whole text is the cell's tooltip."""
FONT = "font-family:system-ui,sans-serif;font-size:13px;line-height:1.45"
CELL = "padding:2px 12px 2px 0;border:0;background:none;vertical-align:middle"
RULE = "border-bottom:1px solid rgba(128,128,128,.45)"


@final
class Markup(str):
    """HTML that is safe to insert without escaping."""

    __slots__ = ()


def card(title: str, *parts: Markup, note: str = "") -> Markup:
    """Return a title, the parts below it, and a note in grey beside the title."""
    beside = f' <span style="opacity:.7">{escape(note)}</span>' if note else ""
    return Markup(f'<div style="{FONT}"><div><b>{escape(title)}</b>{beside}</div>{"".join(parts)}</div>')


def table(header: Sequence[str], rows: Iterable[Sequence[str | Markup]], text_columns: int = 1) -> Markup:
    """Return a table. The first ``text_columns`` columns are aligned to the left, the others to the right."""
    every = list(rows)
    lines = [_row("th", header, text_columns), *(_row("td", row, text_columns) for row in every[:MOST_ROWS])]
    hidden = len(every) - MOST_ROWS
    more = f'<div style="opacity:.7">and {hidden:,} more</div>' if hidden > 0 else ""
    return Markup(f'<table style="border-collapse:collapse;margin:4px 0;{FONT}">{"".join(lines)}</table>{more}')


def _row(tag: str, cells: Sequence[str | Markup], text_columns: int) -> str:
    more = f";{RULE};font-weight:600" if tag == "th" else ""
    made = []
    for place, cell in enumerate(cells):
        side = "left" if place < text_columns else "right"
        made.append(f'<{tag} style="{CELL};text-align:{side}{more}"{_tooltip(cell)}>{_inside(cell)}</{tag}>')
    return f'<tr style="background:none">{"".join(made)}</tr>'


def _inside(cell: str | Markup) -> str:
    if isinstance(cell, Markup):
        return cell
    return escape(cell if len(cell) <= LONGEST_TEXT else f"{cell[: LONGEST_TEXT - 1]}…")


def _tooltip(cell: str | Markup) -> str:
    return f' title="{escape(cell)}"' if not isinstance(cell, Markup) and len(cell) > LONGEST_TEXT else ""


def sentences(lines: Iterable[str]) -> Markup:
    """Return each sentence as a line of its own; nothing if there is none."""
    return Markup("".join(f'<div style="max-width:80ch;margin:3px 0">{escape(line)}</div>' for line in lines if line))


def preformatted(text: str) -> Markup:
    """Return text whose spaces and line ends are kept."""
    style = "font-size:12px;line-height:1.35;margin:4px 0;background:none;color:inherit;white-space:pre;overflow-x:auto"
    return Markup(f'<pre style="{style}">{escape(text)}</pre>')
