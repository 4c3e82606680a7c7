"""The result of ``nw.reproduce``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from nowait.core import checks
from nowait.core.types import Floats
from nowait.recording.files import sealed, write_json
from nowait.studies.reproduce.measured import Curve
from nowait.studies.reproduce.text import as_text

SUMMARY, FIGURE = "reproduction.json", "reproduction.png"


@final
@dataclass(frozen=True)
class CheckedClaim:
    """What the paper reports, what we get, and how the two compare."""

    source: str
    reported: str
    got: str
    agreement: str
    """"agrees", "partly", "disagrees" or "not checked"."""


@final
@dataclass(frozen=True)
class Reproduction:
    """The result of ``nw.reproduce``. Printed, it is a table of errors and one of claims."""

    paper: str
    """The name of the reproduction, such as "rennala"."""
    citation: str
    """Authors, title and year of the paper."""
    quick: bool
    """True if the setting was the small one."""
    curves: list[Curve]
    """The runs, by panel and method."""
    claims: list[CheckedClaim]
    """Empty if the reproduction was interrupted."""
    differences: tuple[str, ...]
    """What differs from the published setting."""
    interrupted: bool = False
    """True if a signal ended it early."""

    @property
    def panels(self) -> list[str]:
        """The titles of the panels, in order."""
        return list(dict.fromkeys(curve.panel for curve in self.curves))

    def save(self, folder: str | Path) -> Path:
        """Write reproduction.json and, if there are runs, reproduction.png into a folder."""
        target = Path(checks.path(folder))
        target.mkdir(parents=True, exist_ok=True)
        write_json(target / SUMMARY, sealed(self.as_dictionary()))
        if self.curves:
            from nowait.plots import reproduction as draw  # needs matplotlib

            draw(self).savefig(target / FIGURE, dpi=80)
        return target

    def as_dictionary(self) -> dict[str, Any]:
        """Return everything as text and numbers; errors after a run diverged are None."""
        plain: dict[str, Any] = {
            "paper": self.paper,
            "citation": self.citation,
            "quick": self.quick,
            "interrupted": self.interrupted,
            "claims": [asdict(claim) for claim in self.claims],
            "differences": list(self.differences),
            "curves": [_plain_curve(curve) for curve in self.curves],
        }
        return plain

    def _repr_html_(self) -> str:
        from nowait.studies.notebook import html_of_reproduction

        return html_of_reproduction(self)

    def __str__(self) -> str:
        return as_text(self)


def _plain_curve(curve: Curve) -> dict[str, Any]:
    names = ("panel", "entry", "variant", "stepsize", "tried", "at_the_end", "axis", "steps", "longest_delay")
    plain = {name: getattr(curve, name) for name in names} | {
        "diverged": curve.diverged,
        "final": curve.final if math.isfinite(curve.final) else None,
        "x": [x.tolist() for x in curve.x],
        "errors": [_finite(errors) for errors in curve.errors],
    }
    checked: dict[str, Any] = json.loads(json.dumps(plain))
    return checked


def _finite(values: Iterable[float] | Floats) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in values]
