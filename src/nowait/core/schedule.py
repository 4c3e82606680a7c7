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
