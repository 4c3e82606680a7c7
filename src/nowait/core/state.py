"""The state of a run that a checkpoint stores: numbers and vectors, no objects."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.core.memory import memory_of
from nowait.core.types import Vector

State = dict[str, Any]
"""Numbers and vectors by name. In a checkpoint, all vectors are NumPy arrays."""


def state_of(part: Any) -> State:
    """Return the run state of an update or output: the fields that ``start`` sets."""
    if not dataclasses.is_dataclass(part):
        raise TypeError(f"{type(part).__name__} cannot be checkpointed: give it state() and restore(state)")
    return {field.name: getattr(part, field.name) for field in dataclasses.fields(part) if not field.init}


def restore(part: Any, state: State) -> None:
    """Set the fields of a checkpoint; NumPy arrays are copied into the vectors that ``start`` allocated."""
    missing = [name for name in state if not hasattr(part, name)]
    if missing:
        raise ValueError(f"the checkpoint was not made with {type(part).__name__}: it has {', '.join(missing)}")
    for name, value in state.items():
        here = getattr(part, name)
        if hasattr(here, "shape"):
            memory_of(here).write(value, here)
        else:
            setattr(part, name, type(here)(value))


def copies(state: State) -> State:
    """Return the state with copies of its vectors, which later steps change, as NumPy arrays."""
    return {name: _copy(value) if hasattr(value, "shape") else value for name, value in state.items()}


def snapshots(state: State) -> State:
    """Return the same in less time: vectors of a device may still be there. See ``ServerState.on_host``."""
    return {name: _snapshot(value) if hasattr(value, "shape") else value for name, value in state.items()}


def _snapshot(value: Any) -> Any:
    return value.copy() if isinstance(value, np.generic) else memory_of(value).snapshot(value)


def _fetched(state: State) -> State:
    is_vector = {name: hasattr(value, "shape") and not isinstance(value, np.generic) for name, value in state.items()}
    return {name: memory_of(value).fetch(value) if is_vector[name] else value for name, value in state.items()}


def _copy(value: Any) -> Any:
    """Return a copy of a vector of any memory, or of a NumPy scalar."""
    return value.copy() if isinstance(value, np.generic) else memory_of(value).copy_to_host(value)


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
    weight_of_last: float | None
    """The weight of these params in an average if no step follows; None: tickets in flight decide, or no average."""
    update: State
    output: State

    def on_host(self) -> ServerState:
        """Return the state with all vectors as NumPy arrays. Other threads may call it, without delaying steps."""
        params = memory_of(self.params).fetch(self.params)
        return dataclasses.replace(self, params=params, update=_fetched(self.update), output=_fetched(self.output))
