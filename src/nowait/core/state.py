"""What a checkpoint keeps of a run: numbers and vectors, no objects."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, final

from nowait.core.types import Vector

State = dict[str, Any]
"""Names with numbers or vectors."""


def state_of(part: Any) -> State:
    """The run state of an update or output: its fields that ``start`` makes."""
    if not dataclasses.is_dataclass(part):
        raise TypeError(f"{type(part).__name__} cannot be checkpointed: give it state() and restore(state)")
    return {field.name: getattr(part, field.name) for field in dataclasses.fields(part) if not field.init}


def restore(part: Any, state: State) -> None:
    """Put back what ``state_of`` returned; vectors into the memory that ``start`` made."""
    for name, value in state.items():
        here = getattr(part, name)
        if hasattr(here, "shape"):
            here[:] = value
        else:
            setattr(part, name, type(here)(value))


def copies(state: State) -> State:
    """The state with copies of its vectors, which the run goes on changing."""
    return {name: value.copy() if hasattr(value, "shape") else value for name, value in state.items()}


@final
@dataclass(frozen=True)
class ServerState:
    """Everything a server needs to go on; the method starts afresh, and tickets in flight are lost."""

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
