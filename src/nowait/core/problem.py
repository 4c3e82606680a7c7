"""What the engines ask of a problem."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from nowait.core.randomness import Sample
from nowait.core.types import Vector, checked_params

GradientInto = Callable[[Vector, Sample, Vector], Any]


@runtime_checkable
class Problem(Protocol):
    """Any object with these. ``gradient_into(point, sample, out)`` beside ``gradient`` saves a copy.

    ``gradient`` must depend on nothing but the point and the sample: then every run can be replayed. A problem whose
    workers remember something from gradient to gradient has ``gradient_with_memory(point, sample, memory, out)``:
    ``memory`` is a vector like params that belongs to the worker, zero when it joins. Engines keep it, and keep its
    changes only with gradients that the server did not refuse as late.

    Further attributes that engines look at: ``num_statistics``, how many of the last params are statistics
    (``nowait.core.statistics``); ``replayable``, False if gradients depend on more than point and sample;
    ``usual_update()``, what it takes for plain SGD; ``write_files(params, folder)``, called at the end of a run that
    has a folder.
    """

    @property
    def dimension(self) -> int:
        """The number of params."""

    def initial(self) -> Vector:
        """x_0; its dtype is the dtype of params."""

    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """A stochastic gradient at the point."""

    def loss(self, point: Vector) -> float:
        """The objective."""


def checked_problem(problem: Any) -> Any:
    """The problem, or an error that names what it lacks."""
    needed = ("dimension", "initial", "gradient", "loss")
    if isinstance(problem, type):
        raise TypeError(f"problem must be an object, got the class {problem.__name__}")
    missing = [name for name in needed if not hasattr(problem, name)]
    if missing:
        raise TypeError(
            f"problem must have dimension, initial(), gradient(point, sample) and loss(point); "
            f"{type(problem).__name__} has no {', no '.join(missing)}"
        )
    return problem


def initial_params(problem: Any, initial: Any = None) -> Vector:
    """The params a run starts from: those given, else the problem's; checked against its dimension."""
    name = "initial" if initial is not None else f"{type(problem).__name__}.initial()"
    params = checked_params(problem.initial() if initial is None else np.asarray(initial), name)
    if params.size != problem.dimension:
        raise ValueError(f"{name} has {params.size} entries, but the problem's dimension is {problem.dimension}")
    return params


def gradient_function(problem: Any) -> tuple[GradientInto, bool]:
    """``function(point, sample, out)`` and whether it always leaves the gradient in ``out``.

    If not, the gradient is in ``out`` where the function returns None, else it is what the function returns.
    """
    into = getattr(problem, "gradient_into", None)
    if into is not None:
        return into, True

    def compute_and_copy(point: Vector, sample: Sample, out: Vector) -> Any:
        gradient = np.asarray(problem.gradient(point, sample))
        if gradient.shape != out.shape or gradient.dtype.kind == "c":
            return gradient  # the server says what is wrong with it
        out[:] = gradient
        return None

    return compute_and_copy, False


def fill_with_gradient(problem: Any) -> Callable[[Vector, Sample, Vector], None]:
    """``function(point, sample, out)`` that always leaves the gradient in ``out``, or raises: for wrappers."""
    into = getattr(problem, "gradient_into", None)
    return partial(_fill, problem) if into is None else into


def _fill(problem: Any, point: Vector, sample: Sample, out: Vector) -> None:
    gradient = np.asarray(problem.gradient(point, sample))
    if gradient.shape != out.shape:
        raise ValueError(f"the gradient has shape {gradient.shape}, but params {out.shape}")
    if gradient.dtype.kind == "c":
        raise TypeError(f"the gradient must have real entries, got {gradient.dtype}: params are {out.dtype}")
    out[:] = gradient


def prepare(problem: Any) -> None:
    """Load the compiled gradients of a problem, and of the problems it holds, before processes are forked.

    What a problem's own ``prepare()`` does is up to it.
    """
    held = [part for part in getattr(problem, "__dict__", {}).values() if isinstance(part, Problem)]
    for part in (problem, *held):
        own = getattr(part, "prepare", None)
        if own is not None:
            own()


def loss_of(problem: Any, point: Vector) -> float:
    """The problem's loss, which must be a number."""
    loss = problem.loss(point)
    if np.ndim(loss) != 0 or loss is None:
        raise TypeError(f"the problem's loss(point) must return a number, got {type(loss).__name__}")
    if np.iscomplexobj(loss):
        raise TypeError(f"the problem's loss(point) must return a real number, got {loss!r}: return its real part")
    return float(loss)


def check_initial_loss(problem: Any, params: Vector) -> None:
    """Raise if the loss is not finite where runs begin: no stepsize could help."""
    loss = loss_of(problem, params)
    if not math.isfinite(loss):
        raise ValueError(f"the loss of the initial params is {loss}: look at the problem's loss(point) and initial()")


def message_bytes(problem: Any, params: Vector) -> int:
    """How many bytes a worker sends with every gradient: those of params, unless the problem says otherwise."""
    own = getattr(problem, "message_bytes", None)
    return params.nbytes if own is None else int(own(params))
