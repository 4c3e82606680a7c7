"""Tables that fit the width of the terminal: names are wrapped, numbers never are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

EDGES = 3
"""Characters that a column adds to the width of a table: its border and a space on either side."""
WIDEST_NAME = 17


def number_table(title: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    """Return an empty table with columns for ``names``, which may be wrapped, and for ``numbers``, which may not."""
    table = Table(title=title)
    for heading in names:
        table.add_column(heading, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def side_by_side(title: str, names: Sequence[str], rows: Mapping[str, Sequence[str]], width: int) -> Iterator[Table]:
    """Yield tables with a column for each name, as many in each as fit; ``rows`` have a cell for each name."""
    widths = [
        max(_longest(broken(name, WIDEST_NAME)), *(len(cells[place]) for cells in rows.values()))
        for place, name in enumerate(names)
    ]
    labels = {label: broken(label, WIDEST_NAME) for label in rows}
    room = width - 1 - EDGES - max(map(_longest, labels.values()))
    for places in _packed(widths, room):
        table = number_table(title, [""], [broken(names[place], WIDEST_NAME) for place in places])
        for label, cells in rows.items():
            table.add_row(labels[label], *(cells[place] for place in places))
        yield table


def broken(text: str, width: int) -> str:
    """Return the text in lines of at most this width, broken after spaces, commas and colons where possible.

    >>> broken("ringmaster:max_delay=80", 12)
    'ringmaster:\\nmax_delay=80'
    """
    lines = [""]
    for piece in re.split(r"(?<=[ ,:])", text):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def _longest(lines: str) -> int:
    return max(len(line) for line in lines.split("\n"))


def _packed(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Yield the places of columns that fit beside each other; at least one at a time."""
    places: list[int] = []
    used = 0
    for place, width in enumerate(widths):
        if places and used + width + EDGES > room:
            yield places
            places, used = [], 0
        places.append(place)
        used += width + EDGES
    yield places
