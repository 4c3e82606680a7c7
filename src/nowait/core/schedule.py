"""What a method may declare about itself, so that its arrivals can be scheduled by compiled code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from nowait.core.stepsizes import Stepsize


@final
@dataclass(frozen=True)
class ApplyAtOnce:
    """Every arrival is applied at once with this stepsize, and its worker goes on at the new params.

    An arrival with a delay above ``max_delay`` is dropped instead; its worker goes on at the current params.
    """

    stepsize: Stepsize
    max_delay: int | None = None


def speaks_for(kind: type, declaration: str, behaviour: tuple[str, ...]) -> bool:
    """Is what a class declares still true of it, or has a subclass changed what the declaration is about?"""

    def place(name: str) -> int:
        return next((number for number, base in enumerate(kind.__mro__) if name in vars(base)), len(kind.__mro__))

    return all(place(name) >= place(declaration) for name in behaviour)
