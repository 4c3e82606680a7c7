"""The state of a run that a checkpoint stores: numbers and vectors, no objects."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.core.memory import memory_of
from nowait.core.sums import GradientSum, SavedSum
from nowait.core.types import Vector

State = dict[str, Any]
"""Numbers and vectors by name. In a checkpoint, all vectors are NumPy arrays."""
PARTS = ("update", "output", "method")
"""The parts of a run that have a state of their own, as ``ServerState`` names them."""
METHOD, OF_SUM = "method", " of sum"
"""The entry with the name of the method, and the ending of the entries with count and weight of a sum."""


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


def flat_state(method: Any, state: State) -> State:
    """Return the state of a method with the vectors, counts and weights of its sums, and with the method's name."""
    flat: State = {METHOD: type(method).__name__}
    for name, value in state.items():
        if name == METHOD or name.endswith(OF_SUM):
            what = f"{type(method).__name__}.state() has an entry {name!r}"
            raise ValueError(f"{what}, a name that checkpoints use themselves: rename it")
        if isinstance(value, GradientSum):
            flat[name], flat[f"{name}{OF_SUM}"] = value.vector, [value.count, value.weight]
        else:
            flat[name] = _storable(name, value, method)
    return flat


def _storable(name: str, value: Any, method: Any) -> Any:
    """Return a value that comes back from a checkpoint as it is, with new lists; raise if it would not."""
    if isinstance(value, list):
        return [_storable(name, item, method) for item in value]
    if not isinstance(value, bool | int | float | str) and (
        isinstance(value, np.generic) or not hasattr(value, "shape")
    ):
        raise TypeError(
            f"{type(method).__name__}.state() has {name}={value!r:.80}, which a checkpoint cannot store as it is: "
            f"return numbers, texts, lists of them, vectors and sums (float(…), int(…) or list(…) make them)"
        )
    return value


def state_for(method: Any, flat: State) -> State | None:
    """Return what ``flat_state`` was made of, with sums as ``SavedSum``; None if it is not of this kind of method."""
    if flat.get(METHOD) != type(method).__name__:
        return None
    names = [name for name in flat if name != METHOD and not name.endswith(OF_SUM)]
    return {name: _unflattened(flat, name) for name in names}


def _unflattened(flat: State, name: str) -> Any:
    numbers = flat.get(f"{name}{OF_SUM}")
    return flat[name] if numbers is None else SavedSum(flat[name], int(numbers[0]), float(numbers[1]))


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
    """Everything a server needs to continue. Tickets in flight are lost, and gradients that the method held."""

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
    method: State = dataclasses.field(default_factory=dict)
    """What the method keeps over a resume, see ``Method.state``, as ``flat_state`` returns it."""

    def on_host(self) -> ServerState:
        """Return the state with all vectors as NumPy arrays. Other threads may call it, without delaying steps."""
        return dataclasses.replace(
            self,
            params=memory_of(self.params).fetch(self.params),
            update=_fetched(self.update),
            output=_fetched(self.output),
            method=_fetched(self.method),
        )
