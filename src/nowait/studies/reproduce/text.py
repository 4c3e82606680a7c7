"""The text of a reproduction, and of the list of papers."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nowait.studies.reproduce.measured import Curve
    from nowait.studies.reproduce.paper import Paper
    from nowait.studies.reproduce.result import Reproduction

WIDTH = 80


def as_text(found: Reproduction) -> str:
    """Return a table of errors for every panel, the claims, and what differs."""
    blocks = [textwrap.fill(found.citation, WIDTH)]
    if found.quick:
        words = "Quick form: a much smaller setting, which shows that it works. Its verdicts say little."
        blocks.append(textwrap.fill(words, WIDTH))
    blocks += [_table(panel, [curve for curve in found.curves if curve.panel == panel]) for panel in found.panels]
    blocks += [
        "\n".join(
            [
                f"{claim.agreement.upper()} ({claim.source})",
                _filled("they report", claim.reported),
                _filled("we get", claim.got),
            ]
        )
        for claim in found.claims
    ]
    if found.interrupted:
        blocks.append("Interrupted: the claims are not checked.")
    blocks.append("\n".join(["Differences from the paper:", *(_filled("*", words) for words in found.differences)]))
    return "\n\n".join(blocks)


def list_of(papers: Iterable[Paper]) -> str:
    """Return the names of the papers, what their figures show, and about how long they take."""
    blocks = []
    for paper in papers:
        title = f"{paper.name} (about {paper.minutes:.2g} min)"
        blocks.append("\n".join([title, _filled("", paper.citation), _filled("", paper.shows)]))
    return "\n\n".join(blocks)


def _table(panel: str, curves: list[Curve]) -> str:
    """Return a row for every curve; a long setting is in a line of its own, so that rows fit ``WIDTH``."""
    rows = [("", "setting", "last F − F*", "steps", "longest delay"), *(_row(curve) for curve in curves)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    if sum(widths) + 2 * (len(widths) - 1) <= WIDTH:
        return "\n".join([panel, *("  ".join(_padded(row, widths)).rstrip() for row in rows)])
    lines = []
    for entry, setting, *numbers in rows:
        lines.append(textwrap.fill(f"{entry or 'method'}, {setting}", WIDTH, subsequent_indent="  "))
        lines.append("    " + "  ".join(text.rjust(width) for text, width in zip(numbers, widths[2:], strict=True)))
    return "\n".join([panel, *lines])


def _row(curve: Curve) -> tuple[str, ...]:
    setting = ", ".join(part for part in (curve.variant, f"γ = {curve.stepsize:.3g}") if part)
    setting += " (end of grid)" if curve.at_the_end else ""
    error = f"{curve.final:.3g}" if math.isfinite(curve.final) else "diverged"
    return curve.entry, setting, error, f"{curve.steps:,}", f"{curve.longest_delay:,}"


def _padded(row: tuple[str, ...], widths: list[int]) -> list[str]:
    texts, numbers = row[:2], row[2:]
    left = [text.ljust(width) for text, width in zip(texts, widths, strict=False)]
    return left + [text.rjust(width) for text, width in zip(numbers, widths[2:], strict=True)]


def _filled(title: str, words: str) -> str:
    first = f"  {title}: " if len(title) > 1 else f"  {title} " if title else "  "
    return textwrap.fill(words, WIDTH, initial_indent=first, subsequent_indent="    ")
