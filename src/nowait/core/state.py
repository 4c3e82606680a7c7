"""The state of a run that a checkpoint stores: numbers and vectors, no objects."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, final

from nowait.core.types import Vector

State = dict[str, Any]
"""Numbers and vectors by name."""


def state_of(part: Any) -> State:
    """Return the run state of an update or output: the fields that ``start`` sets."""
    if not dataclasses.is_dataclass(part):
        raise TypeError(f"{type(part).__name__} cannot be checkpointed: give it state() and restore(state)")
    return {field.name: getattr(part, field.name) for field in dataclasses.fields(part) if not field.init}


def restore(part: Any, state: State) -> None:
    """Set the fields that ``state_of`` returned; vectors are copied into the arrays that ``start`` allocated."""
    for name, value in state.items():
        here = getattr(part, name)
        if hasattr(here, "shape"):
            here[:] = value
        else:
            setattr(part, name, type(here)(value))


def copies(state: State) -> State:
    """Return the state with copies of its vectors, which later steps change."""
    return {name: value.copy() if hasattr(value, "shape") else value for name, value in state.items()}


@final
@dataclass(frozen=True)
class ServerState:
    """Everything a server needs to continue. The method is started again, and tickets in flight are lost."""

    params: Vector
    steps: int
    time: float
    stepped_at: float
    stepsize_sum: float
    next_ticket: int
    rows: int
    jobs: dict[int, int]
    workers: list[int]
    draws: int
    """How many random numbers the method has drawn."""
    counts: dict[str, int]
    update: State
    output: State
