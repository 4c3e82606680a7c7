"""What ``nw.tolerance`` found: the loss at every delay, and up to which delay an update keeps its progress."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self, final

from nowait.core import checks
from nowait.recording.files import read_strictly_sealed, replace_file, sealed, write_json
from nowait.studies.tolerance_text import as_text, short_names

SUMMARY, TABLE, FIGURE = "tolerance.json", "tolerance.csv", "tolerance.png"


@final
@dataclass(frozen=True)
class ToleranceRow:
    """The runs of one update at one delay: one for each seed."""

    update: str
    """The name of the update."""
    pattern: str
    """The delay pattern."""
    delay: int
    """The mean delay that was asked for."""
    retuned: bool
    """True if the stepsize was tuned at this delay, False if at delay 1."""
    stepsize: float
    """The γ of the runs."""
    losses: tuple[float, ...]
    """The last loss of every run; infinite if it diverged."""
    mean_delay: float
    """The mean of the delays in the traces. It is below ``delay``, because the first gradients cannot be older."""
    longest_delay: int
    """The longest delay in the traces."""

    @property
    def median(self) -> float:
        """The median of the losses."""
        return median(self.losses)

    @property
    def num_diverged(self) -> int:
        """How many of the runs diverged."""
        return sum(not math.isfinite(loss) for loss in self.losses)


@final
@dataclass(frozen=True)
class Tolerance:
    """The result of ``nw.tolerance``. Printed, it is a table of the progress that is kept at every delay.

    Progress is the loss before the first step minus the last loss. ``kept`` compares it with the median progress of the
    same update at delay 1. A run that diverged kept nothing.
    """

    problem: str
    """A description of the problem."""
    steps: int
    """The steps of every run."""
    rule: str
    """The stepsize rule as text, with γ = 1."""
    trials: int
    """The stepsizes tried for every update."""
    seeds: tuple[int, ...]
    """The seeds of the runs."""
    delays: tuple[int, ...]
    """The mean delays."""
    patterns: tuple[str, ...]
    """The delay patterns."""
    updates: tuple[str, ...]
    """The names of the updates."""
    keep: float
    """The share of the progress that counts as tolerated."""
    start_loss: float
    """The loss before the first step."""
    rows: list[ToleranceRow] = field(repr=False)
    """The runs, by update, pattern and delay."""
    interrupted: bool = False
    """True if a signal ended the study early."""

    @property
    def tunings(self) -> list[bool]:
        """The values of ``retuned`` that there are rows of."""
        return [retuned for retuned in (False, True) if any(row.retuned == retuned for row in self.rows)]

    @property
    def labels(self) -> dict[str, str]:
        """Short names of the updates, for tables and figures."""
        return short_names(self.updates)

    def row(self, update: str, pattern: str, delay: int, *, retuned: bool = False) -> ToleranceRow | None:
        """Return the runs of an update at a delay; None if they were not made."""
        wanted = (update, pattern, delay, retuned)
        found = (row for row in self.rows if (row.update, row.pattern, row.delay, row.retuned) == wanted)
        return next(found, None)

    def measured(self, update: str, pattern: str, *, retuned: bool = False) -> list[int]:
        """Return the delays that an update was run at: all, unless the study was interrupted."""
        return [delay for delay in self.delays if self.row(update, pattern, delay, retuned=retuned) is not None]

    def kept(self, update: str, pattern: str, delay: int, *, retuned: bool = False) -> float:
        """Return the median over the seeds of the share of the progress that is kept; NaN if it is not known."""
        row, first = self.row(update, pattern, delay, retuned=retuned), self.row(update, pattern, 1)
        if row is None or first is None:
            return math.nan
        return median(shares(row.losses, self.start_loss, first.median))

    def tolerated(self, update: str, pattern: str, *, retuned: bool = False) -> int | None:
        """Return the largest tested delay up to which at least ``keep`` of the progress is kept at every tested delay.

        None if the update made no progress at delay 1, or was not run.
        """
        return largest_tolerated(
            {
                delay: self.kept(update, pattern, delay, retuned=retuned)
                for delay in self.measured(update, pattern, retuned=retuned)
            },
            self.keep,
        )

    def tolerated_by_seed(self, update: str, pattern: str, *, retuned: bool = False) -> list[int | None]:
        """Return ``tolerated`` of every seed alone, relative to its own run at delay 1."""
        rows = [self.row(update, pattern, delay, retuned=retuned) for delay in self.delays]
        known = {row.delay: row.losses for row in rows if row is not None}
        if 1 not in known:
            return [None] * len(self.seeds)
        return [
            largest_tolerated(
                {
                    delay: shares([losses[place]], self.start_loss, known[1][place])[0]
                    for delay, losses in known.items()
                },
                self.keep,
            )
            for place in range(len(self.seeds))
        ]

    def _repr_html_(self) -> str:
        from nowait.studies.notebook import html_of_tolerance

        return html_of_tolerance(self)

    def save(self, folder: str | Path) -> Path:
        """Write tolerance.json, tolerance.csv and tolerance.png into a folder; ``Tolerance.load`` reads it."""
        from nowait.plots import tolerance as draw  # needs matplotlib

        target = Path(checks.path(folder))
        target.mkdir(parents=True, exist_ok=True)
        write_json(target / SUMMARY, sealed(self.as_dictionary()))
        replace_file(target / TABLE, self._csv().encode())
        draw(self).savefig(target / FIGURE, dpi=110)
        return target

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what ``save`` wrote."""
        source = Path(checks.path(folder)) / SUMMARY
        if not source.is_file():
            raise FileNotFoundError(f"{folder} is not the folder of a tolerance study: it has no {SUMMARY}")
        found = read_strictly_sealed(source)
        fields = {name: found[name] for name in cls.__dataclass_fields__}
        for name in ("seeds", "delays", "patterns", "updates"):
            fields[name] = tuple(fields[name])
        fields["rows"] = [ToleranceRow(**row | {"losses": _infinite(row["losses"])}) for row in fields["rows"]]
        return cls(**fields)

    def as_dictionary(self) -> dict[str, Any]:
        """Return everything as text and numbers; the loss of a run that diverged is None."""
        found = asdict(self) | {"rows": [asdict(row) | {"losses": _finite(row.losses)} for row in self.rows]}
        tolerated = [
            {
                "update": update,
                "pattern": pattern,
                "retuned": retuned,
                "tolerated": self.tolerated(update, pattern, retuned=retuned),
                "by_seed": self.tolerated_by_seed(update, pattern, retuned=retuned),
            }
            for retuned in self.tunings
            for pattern in self.patterns
            for update in self.updates
        ]
        plain: dict[str, Any] = json.loads(json.dumps(found | {"tolerated": tolerated}))
        return plain

    def _csv(self) -> str:
        text = io.StringIO()
        names = ("update", "pattern", "delay", "retuned", "stepsize", "mean_delay", "longest_delay", "seed", "loss")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*names, "kept"])
        for row in self.rows:
            first = self.row(row.update, row.pattern, 1)
            kept = [math.nan] * len(self.seeds)
            if first is not None:
                kept = shares(row.losses, self.start_loss, first.median)
            for seed, loss, share in zip(self.seeds, row.losses, kept, strict=True):
                writer.writerow([*(getattr(row, name) for name in names[:7]), seed, loss, share])
        return text.getvalue()

    def __repr__(self) -> str:
        return as_text(self)


def shares(losses: tuple[float, ...] | list[float], start: float, best: float) -> list[float]:
    """Return the share of the progress ``start`` − ``best`` that every loss kept, at least 0; NaN without progress.

    >>> shares([1.0, 1.5, 3.0, math.inf, 0.5], start=2.0, best=1.0)
    [1.0, 0.5, 0.0, 0.0, 1.5]
    """
    if not best < start:
        return [math.nan] * len(losses)
    return [max(0.0, (start - loss) / (start - best)) if math.isfinite(loss) else 0.0 for loss in losses]


def largest_tolerated(kept: dict[int, float], keep: float) -> int | None:
    """Return the largest delay such that at least ``keep`` is kept there and at all smaller delays; None if none is.

    >>> largest_tolerated({1: 1.0, 2: 0.99, 4: 0.94, 8: 0.97}, keep=0.95)
    2
    """
    tolerated = None
    for delay in sorted(kept):
        if not kept[delay] >= keep:
            break
        tolerated = delay
    return tolerated


def _finite(losses: tuple[float, ...]) -> list[float | None]:
    return [loss if math.isfinite(loss) else None for loss in losses]


def _infinite(losses: list[float | None]) -> tuple[float, ...]:
    return tuple(math.inf if loss is None else loss for loss in losses)
