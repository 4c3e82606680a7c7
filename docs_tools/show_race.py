"""Shows a race in README and on the start page: copies its figure, and writes its table between two comments.

``nowait race --folder runs/shown && python docs_tools/show_race.py runs/shown``, which is ``make show-race``.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import nowait as nw

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/index.md")
BEGIN, END = "<!-- race: written by make show-race -->", "<!-- end of race -->"


def show(folder: Path, root: Path) -> None:
    """Copy the figure of a race, and write its table into the pages."""
    race = nw.Race.load(folder)
    shutil.copy(folder / "race.png", root / "docs" / "race.png")
    for name in PAGES:
        page = root / name
        page.write_text(with_table(page.read_text(), table(race)))


def table(race: nw.Race) -> str:
    """Return a row for every method, with what was tuned and how fast it was."""
    header = ["method", "tuned", "steps", f"loss − F\\* after {race.seconds:.3g} s", "reaches the baseline's loss"]
    lines = [header, ["---", "---", *["---:"] * 3], *rows(race)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def rows(race: nw.Race) -> Iterator[list[str]]:
    """Yield the cells of every method; the first is the baseline."""
    first = next(iter(race.runs))
    for row in race.rows:
        tuned = race.config["settings"].get(row.method, {})
        words = ", ".join(f"{name} {tuned[name]:.3g}" for name in ("m", "momentum", "stepsize") if name in tuned)
        known = row.measured is not None and math.isfinite(row.measured)
        speed = (
            f"{row.measured:.3g} times as fast" if known else "the baseline" if row.method == first else "not reached"
        )
        yield [row.method, words, f"{row.steps:,.0f}", "diverged" if row.diverged else f"{row.error:.2g}", speed]


def with_table(text: str, lines: str) -> str:
    """Return a page with another table between the comments."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the page needs the comments {BEGIN} and {END} once, around the table of the race")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{lines}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    show(Path(sys.argv[1]), ROOT)
