"""The text of a tolerance study: tables that fit 80 columns, and a sentence for every update."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nowait.studies.tolerated import Tolerance, ToleranceRow

WIDTH = 80
DETAILED = 6
"""Up to this many delays the tables have columns for the stepsize and the loss at delay 1."""
WIDEST_NAME, LONGEST_NAME = 13, 16
ROUNDING = 1e-6
"""Per cents are rounded down, so that 94.9 % does not look tolerated. This much is added first, for rounded floats."""


def as_text(found: Tolerance) -> str:
    """Return the tables, and the sentences below them."""
    blocks = [_heading(found)]
    for retuned in found.tunings:
        blocks.append(_tuning(found, retuned))
        blocks += [_table(found, pattern, retuned) for pattern in found.patterns]
    wrapped = [textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in sentences(found)]
    return "\n\n".join([*blocks, "\n".join(wrapped)])


def sentences(found: Tolerance) -> list[str]:
    """Return what every update tolerates, in words, and what to know about the tables."""
    lines = [
        f"{update}{_at_this(retuned)}: {_tolerates(found, update, retuned)}."
        for retuned in found.tunings
        for update in found.updates
        if any(row.update == update and row.retuned == retuned for row in found.rows)
    ]
    if any(row.num_diverged for row in found.rows):
        lines.append("* some runs diverged, div: most did. A run that diverged kept nothing.")
    if found.interrupted:
        lines.append("Interrupted: what was not run is left out.")
    return lines


def shown_range(found: Tolerance, update: str, pattern: str, *, retuned: bool) -> str:
    """Return the largest delay that is tolerated, and in brackets its range over the seeds if they differ."""
    tolerated = found.tolerated(update, pattern, retuned=retuned)
    if tolerated is None:
        return "–"
    by_seed = found.tolerated_by_seed(update, pattern, retuned=retuned)
    low, high = (pick(0 if one is None else one for one in by_seed) for pick in (min, max))
    among = "" if low == high == tolerated else f" ({low}–{high})"
    is_last = tolerated == max(found.measured(update, pattern, retuned=retuned))
    return f"{'≥' if is_last else ''}{tolerated}{among}"


def short_names(names: tuple[str, ...]) -> dict[str, str]:
    """Return names for the tables: without options where that is not ambiguous.

    >>> short_names(("muon:beta=0.9", "sgd"))
    {'muon:beta=0.9': 'muon', 'sgd': 'sgd'}
    >>> short_names(("lmo:ball=sign", "lmo:ball=spectral"))
    {'lmo:ball=sign': 'lmo:ball=sign', 'lmo:ball=spectral': 'lmo:ball=spectral'}
    """
    short = [name.partition(":")[0] for name in names]
    return {name: brief if short.count(brief) == 1 else name for name, brief in zip(names, short, strict=True)}


def _heading(found: Tolerance) -> str:
    words = (
        f"{found.problem}: {found.steps:,} steps, {len(found.seeds)} seeds, loss {found.start_loss:.4g} before the "
        f"first step, rule {found.rule}"
    )
    return textwrap.fill(words, WIDTH)


def _tuning(found: Tolerance, retuned: bool) -> str:
    how = "tuned again at every delay" if retuned else f"tuned at delay 1 ({found.trials} trials)"
    return f"% of the progress kept at each mean delay; γ {how}"


def _table(found: Tolerance, pattern: str, retuned: bool) -> str:
    names, details = found.labels, ""
    width = max(WIDEST_NAME, *(len(name) for name in names.values() if len(name) <= LONGEST_NAME))
    others = [delay for delay in found.delays if delay > 1]
    detailed = len(others) <= DETAILED
    head = f"{pattern:<{width}}" + (f"{'stepsize':>9}{'loss at 1':>10}" if detailed else "")
    head += "".join(f"{delay:>5}" for delay in others)
    lines = [f"{head}   keeps {found.keep * 100:.4g}% to"]
    for update in found.updates:
        first = found.row(update, pattern, 1)
        if first is None:
            continue
        details = f"{first.stepsize:>9.3g}{first.median:>10.3g}" if detailed else ""
        cells = "".join(f"{_cell(found, update, pattern, delay, retuned):>5}" for delay in others)
        tolerated = shown_range(found, update, pattern, retuned=retuned)
        if len(names[update]) > width:  # in a line of its own
            lines.append(names[update])
        name = names[update] if len(names[update]) <= width else ""
        lines.append(f"{name:<{width}}{details}{cells}   {tolerated}")
    means = "".join(f"{_mean_delay(found, pattern, delay):>5.3g}" for delay in others)
    lines.append(f"{'measured mean':<{width}}{' ' * len(details)}{means}")
    return "\n".join(lines)


def _mean_delay(found: Tolerance, pattern: str, delay: int) -> float:
    """Return the mean delay that was measured; NaN if none was."""
    rows = (row for row in found.rows if (row.pattern, row.delay) == (pattern, delay) and not row.num_diverged)
    return next((row.mean_delay for row in rows), math.nan)


def _cell(found: Tolerance, update: str, pattern: str, delay: int, retuned: bool) -> str:
    row: ToleranceRow | None = found.row(update, pattern, delay, retuned=retuned)
    if row is None:
        return ""
    if 2 * row.num_diverged > len(row.losses):
        return "div"
    kept = found.kept(update, pattern, delay, retuned=retuned)
    return "–" if math.isnan(kept) else f"{math.floor(100 * kept + ROUNDING)}" + ("*" if row.num_diverged else "")


def _tolerates(found: Tolerance, update: str, retuned: bool) -> str:
    known = []
    for pattern in found.patterns:
        delay = found.tolerated(update, pattern, retuned=retuned)
        if delay is not None:
            is_last = delay == max(found.measured(update, pattern, retuned=retuned))
            known.append(f"{delay}{' or more' if is_last else ''} ({pattern})")
    if not known:
        return "made no progress at delay 1"
    return f"keeps {found.keep * 100:.4g}% of its progress up to delay {', '.join(known)}"


def _at_this(retuned: bool) -> str:
    return ", tuned again" if retuned else ""
