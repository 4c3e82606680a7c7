"""Where vectors are, and the arithmetic on them: NumPy arrays in host memory, or tensors on a device.

The server and everything it calls (versions, sums, updates, outputs, statistics) use vectors through a ``Memory``, so
they are written once. ``HostMemory`` is here; ``nowait.pytorch.TorchMemory`` has the tensors. What leaves the server
(checkpoints, results, params for losses and callbacks) is always a NumPy array.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np

from nowait.numerics.compiled import kernels

if TYPE_CHECKING:
    from nowait.core.types import Vector

Stepper = Callable[[Any, Any, Any, Any], tuple[float, float]]
"""``stepper(params, direction, stepsize, out)`` makes a checked step: see ``Update.checked``."""
NOT_FINITE = (math.nan, math.nan)
"""What a stepper returns for a direction that is not finite."""
FLOAT64 = np.dtype(np.float64)


class Slots(Protocol):
    """Numbered vectors of one size and dtype that the server and its worker processes share."""

    length: int
    dtype: Any
    fd: int
    """The file that workers need to find the vectors."""
    views: list[Any]
    """The vectors mapped so far; ``slots[number]`` maps more if necessary."""

    def __getitem__(self, slot: int) -> Any:
        """Return a vector."""

    def allocate(self) -> Any:
        """Return a new vector."""

    def close(self) -> None:
        """Close the file."""


class MakeSlots(Protocol):
    """Makes slots in shared host memory; with ``fd``, those of another process."""

    def __call__(self, length: int, dtype: Any, fd: int | None = None, *, writeable: bool = True) -> Slots:
        """Return the slots."""


class Memory(ABC):
    """The vectors of one kind, such as params, gradients, points and sums, and what is computed with them.

    ``vector`` arguments are of this memory, ``values`` are NumPy arrays. A memory has no state of a run.
    """

    kind: type[Any]
    """The class of the vectors."""
    namespace: Any
    """The module with functions of vectors, numpy or torch. Use the functions and arguments that both have.

    These are, with ``out=`` as well, ``multiply``, ``subtract``, ``divide``, ``sqrt`` and ``maximum`` of two vectors;
    and ``abs``, ``sign``, ``clip``, ``zeros_like``, ``full_like``, ``concatenate``. Operators, slices and assignments
    to slices work on both, too.
    """

    # Vectors, and copies from and to the host

    @abstractmethod
    def empty(self, like: Vector) -> Any:
        """Return a new vector with the size and the dtype of a NumPy array. Its entries are arbitrary."""

    @abstractmethod
    def write(self, values: Vector, out: Any) -> None:
        """Copy a NumPy array into a vector."""

    def from_host(self, values: Vector) -> Any:
        """Return a new vector with these values."""
        vector = self.empty(values)
        self.write(values, vector)
        return vector

    @abstractmethod
    def to_host(self, vector: Any) -> Vector:
        """Return the vector as a NumPy array, for reading: the same memory if the host can read it, else a copy."""

    @abstractmethod
    def copy_to_host(self, vector: Any) -> Vector:
        """Return a copy of the vector as a new NumPy array."""

    def snapshot(self, vector: Any) -> Any:
        """Return a copy as quickly as possible, in any memory: ``fetch`` makes a NumPy array of it later."""
        return self.copy_to_host(vector)

    def fetch(self, vector: Any) -> Vector:
        """Return a vector that nobody changes as a NumPy array. Other threads may call it, without delaying steps."""
        return self.to_host(vector)

    @abstractmethod
    def read_only(self, vector: Any) -> Any:
        """Return a view of the vector that cannot be written, or the vector itself if there are no such views."""

    def shared_slots(self, make: MakeSlots, length: int, dtype: Any, fd: int | None, *, writeable: bool) -> Slots:
        """Return vectors that processes share; ``make`` makes such vectors, or tables about them, in host memory."""
        return make(length, dtype, fd, writeable=writeable)

    @property
    def is_queued(self) -> bool:
        """True if operations return before they are done: ``wait`` before memory that they read is written again."""
        return False

    def wait(self) -> None:  # noqa: B027 (operations on the host are done when they return)
        """Wait until everything that was queued is done."""

    # Arithmetic

    @abstractmethod
    def squared_norm(self, vector: Any) -> float:
        """Return the sum of squares. It is not finite if an entry is not finite, or if it overflows float64."""

    @abstractmethod
    def is_finite(self, vector: Any) -> bool:
        """Return True if no entry is NaN or infinite."""

    @abstractmethod
    def add_scaled(self, total: Any, vector: Any, weight: float) -> None:
        """Compute ``total += weight * vector``."""

    def adder(self, like: Any) -> Callable[[Any, Any, float], None]:
        """Return ``add_scaled`` for vectors like this one, or a faster equivalent."""
        return self.add_scaled

    @abstractmethod
    def scaled(self, vector: Any, factor: float, out: Any | None) -> Any:
        """Return ``factor * vector``, written into ``out`` if that is given."""

    @abstractmethod
    def move_towards(self, mean: Any, point: Any, fraction: float) -> None:
        """Compute ``mean += fraction * (point - mean)``, for a mean in float64 and a point of any dtype."""

    def mover(self, like: Any) -> Callable[[Any, Any, float], None]:
        """Return ``move_towards`` for points like this one, or a faster equivalent."""
        return self.move_towards

    @abstractmethod
    def fitted(self, direction: Any, like: Any) -> Any:
        """Return a direction that a method made, contiguous and with the dtype of the vector ``like``."""

    @abstractmethod
    def sgd_stepper(self, params: Any) -> Stepper:
        """Return the function that makes checked steps of plain SGD, for params like these."""


@final
class HostMemory(Memory):
    """NumPy arrays and compiled kernels. The results have the same bits on every machine."""

    kind = np.ndarray
    namespace = np

    def empty(self, like: Vector) -> Vector:
        """Return a new array."""
        return np.empty_like(like)

    def write(self, values: Vector, out: Vector) -> None:
        """Copy an array into another one."""
        out[:] = values

    def to_host(self, vector: Vector) -> Vector:
        """Return the array itself."""
        return vector

    def copy_to_host(self, vector: Vector) -> Vector:
        """Return a copy of the array."""
        return vector.copy()

    def read_only(self, vector: Vector) -> Vector:
        """Return a read-only view."""
        view = vector.view()
        view.flags.writeable = False
        return view

    def squared_norm(self, vector: Vector) -> float:
        """Return the sum of squares, added up in float64."""
        squares: float = kernels().squared_norm(vector)
        return squares

    def is_finite(self, vector: Vector) -> bool:
        """Return True if no entry is NaN or infinite."""
        return kernels().squared_norm(vector) < math.inf or bool(np.isfinite(vector).all())

    def add_scaled(self, total: Vector, vector: Vector, weight: float) -> None:
        """Compute ``total += weight * vector`` in the dtype of the total."""
        dtype = total.dtype
        kernels().add_scaled(total, vector, weight if dtype is FLOAT64 else dtype.type(weight))

    def adder(self, like: Vector) -> Callable[[Any, Any, float], None]:
        """Return the kernel itself for short vectors of float64."""
        add: Callable[[Any, Any, float], None] = kernels().for_length(like.size).add_scaled
        return add if like.dtype == FLOAT64 else self.add_scaled

    def scaled(self, vector: Vector, factor: float, out: Vector | None) -> Vector:
        """Return ``factor * vector``."""
        product = np.empty_like(vector) if out is None else out
        kernels().scale_into(vector, factor, product)
        return product

    def move_towards(self, mean: Vector, point: Vector, fraction: float) -> None:
        """Compute ``mean += fraction * (point - mean)`` in float64."""
        kernels().move_towards(mean, point, fraction)

    def mover(self, like: Vector) -> Callable[[Any, Any, float], None]:
        """Return the kernel itself for short vectors."""
        move: Callable[[Any, Any, float], None] = kernels().for_length(like.size).move_towards
        return move

    def fitted(self, direction: Vector, like: Vector) -> Vector:
        """Return the direction as a contiguous array of the right dtype."""
        if direction.dtype.kind == "c":
            raise not_real(direction, like)
        return np.ascontiguousarray(direction, dtype=like.dtype)

    def sgd_stepper(self, params: Vector) -> Stepper:
        """Return the compiled kernel, which makes the step and both checks in one pass over memory."""
        step: Stepper = kernels().for_length(params.size).sgd_step
        if params.dtype == np.float64:
            return step
        scalar = params.dtype.type
        return lambda params, direction, stepsize, out: step(params, direction, scalar(stepsize), out)


HOST = HostMemory()

_others: dict[type, Callable[[Any], Memory]] = {}


def register(kind: type, memory: Callable[[Any], Memory]) -> None:
    """Let ``memory_of`` call ``memory(vector)`` for vectors of this class."""
    _others[kind] = memory


def memory_of(vector: Any) -> Memory:
    """Return the memory that a vector is in."""
    if isinstance(vector, np.ndarray):
        return HOST
    try:
        return _others[type(vector)](vector)
    except KeyError:
        raise TypeError(f"a vector must be a numpy array or a tensor, got {type(vector).__name__}") from None


def namespace_of(vector: Any) -> Any:
    """Return the module with the functions of a vector: numpy or torch. See ``Memory.namespace``."""
    return np if isinstance(vector, np.ndarray) else memory_of(vector).namespace


def to_host(vector: Any) -> Vector:
    """Return a vector of any memory as a NumPy array, for reading."""
    return memory_of(vector).to_host(vector)


def not_real(direction: Any, like: Any) -> TypeError:
    """Return the error for a direction with complex entries."""
    return TypeError(f"a direction must have real entries, got {direction.dtype}: params are {like.dtype}")
