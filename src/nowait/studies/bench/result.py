"""The results of a benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

from nowait.core import checks
from nowait.studies.bench.folder import BenchFolder
from nowait.studies.bench.records import Entry, PhaseEntry
from nowait.studies.bench.scores import Scores, Standing


@final
@dataclass(frozen=True)
class Bench:
    """All results in a folder. ``print(bench)`` shows the standings."""

    header: dict[str, Any]
    """The suite, its version and digest, and the version of nowait."""
    entries: tuple[Entry, ...]
    """The result of every method on every problem and cluster."""
    phases: tuple[PhaseEntry, ...]
    """The results of the phase diagram."""

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read the results in a folder."""
        kept = BenchFolder.open(Path(checks.path(folder)))
        return cls(kept.header, tuple(kept.entries().values()), tuple(kept.phases().values()))

    @property
    def scores(self) -> Scores:
        """Ratios, ranks and profiles."""
        return Scores(self.entries)

    def standings(self) -> list[Standing]:
        """Return all methods, the best score first."""
        return self.scores.standings()

    def as_dictionary(self) -> dict[str, Any]:
        """Return header, standings and entries as JSON values."""
        return {
            "header": self.header,
            "standings": [vars(standing) for standing in self.standings()],
            "entries": [entry.as_dictionary() for entry in self.entries],
            "phases": [entry.as_dictionary() for entry in self.phases],
        }

    def _repr_html_(self) -> str:
        from nowait.studies.notebook import html_of_bench

        return html_of_bench(self)

    def __str__(self) -> str:
        columns = len(self.scores.columns)
        lines = [f"{'method':<30} {'score':>6} {'mean rank':>10} {'best in':>8} {'reached':>8}"]
        lines += [
            f"{_padded(standing.method)} {standing.score:6.3f} {standing.mean_rank:10.1f} {standing.wins:8} "
            f"{_reached(standing, columns):>8}"
            for standing in self.standings()
        ]
        lines.append(
            f"{columns} pairs of a problem and a cluster. Score: area under the performance profile\n"
            "up to 4 times the best time (1: the best everywhere). Best in: within 5 % of\n"
            "the best median. Reached: the median reached the target."
        )
        return "\n".join(lines)


def _reached(standing: Standing, columns: int) -> str:
    missing = standing.columns < columns
    return f"{standing.reached} of {standing.columns}" if missing else str(standing.reached)


def _padded(name: str) -> str:
    """Return the name with spaces to 30 characters; a longer one is in a line of its own."""
    return f"{name:<30}" if len(name) <= 30 else f"{name}\n{'':<30}"
