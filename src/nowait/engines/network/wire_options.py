"""The options ``wire`` and ``points_wire`` of engines that send vectors to other machines."""

from __future__ import annotations

from typing import Any, Protocol

from nowait.problems import Encoded
from nowait.problems.encodings import checked_encoding


class HasWires(Protocol):
    """The settings of an engine."""

    @property
    def wire(self) -> str | None:
        """How gradients are sent; None: as they are."""

    @property
    def points_wire(self) -> str | None:
        """How points are sent; None: as they are."""


def check_wires(settings: HasWires) -> None:
    """Raise ValueError if one of the options is not the name of an encoding."""
    checked_encoding(settings.wire, "wire", points=False)
    checked_encoding(settings.points_wire, "points_wire", points=True)


def sent_through(problem: Any, wire: str | None, points_wire: str | None) -> Any:
    """Return the problem whose gradients and points are rounded to what is sent; the problem itself if nothing is."""
    return problem if wire is None and points_wire is None else Encoded(problem, wire, points_wire)
