"""A declaration of what a method does with every arrival, so that compiled code can schedule the arrivals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from nowait.core.stepsizes import Stepsize


@final
@dataclass(frozen=True)
class ApplyAtOnce:
    """Every arrival is applied at once with this stepsize, and its worker gets a ticket at the new params.

    An arrival with a delay above ``max_delay`` is dropped instead; its worker gets a ticket at the current params.
    """

    stepsize: Stepsize
    max_delay: int | None = None


def speaks_for(kind: type, declaration: str, behaviour: tuple[str, ...]) -> bool:
    """Return whether a declaration still holds: no subclass below it overrides one of the methods it describes.

    ``declaration`` is the name of the declaring method, ``behaviour`` the names of those it describes.
    """

    places = {name: len(kind.__mro__) for name in (declaration, *behaviour)}
    for number, base in reversed(list(enumerate(kind.__mro__))):
        places |= {name: number for name in places if name in vars(base)}
    return min(places.values()) == places[declaration]
