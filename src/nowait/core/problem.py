"""The interface of a problem, and functions that work on any problem."""

from __future__ import annotations

import math
from typing import Any, Protocol, runtime_checkable

import numpy as np

from nowait.core.capabilities import Capabilities, has_own_capabilities
from nowait.core.randomness import Sample
from nowait.core.types import Vector, checked_params


@runtime_checkable
class Problem(Protocol):
    """What every problem has; there is nothing to inherit from.

    ``gradient`` must depend on the point and the sample only: then every run can be replayed. The optional members are
    documented in ``nowait.core.capabilities.Capabilities``, and ``nowait.testing.PROBLEM_CHECKS`` checks all of them.
    """

    @property
    def dimension(self) -> int:
        """The number of params."""

    def initial(self) -> Vector:
        """The initial params x_0, as a new array; params have its dtype."""

    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """Return a stochastic gradient at the point, which is read-only."""

    def loss(self, point: Vector) -> float:
        """Return the value of the objective."""


def checked_problem(problem: Any) -> Problem:
    """Return the problem, or raise a TypeError that names the members it lacks."""
    needed = ("dimension", "initial", "gradient", "loss")
    if isinstance(problem, type):
        raise TypeError(f"problem must be an object, got the class {problem.__name__}")
    missing = [name for name in needed if not hasattr(problem, name)]
    if missing:
        raise TypeError(
            f"problem must have dimension, initial(), gradient(point, sample) and loss(point); "
            f"{type(problem).__name__} has no {', no '.join(missing)}"
        )
    checked: Problem = problem
    return checked


def initial_params(problem: Any, initial: Any = None) -> Vector:
    """Return the params that a run starts from: ``initial`` if given, else those of the problem. Both are checked."""
    name = "initial" if initial is not None else f"{type(problem).__name__}.initial()"
    params = checked_params(problem.initial() if initial is None else np.asarray(initial), name)
    if params.size != problem.dimension:
        raise ValueError(f"{name} has {params.size} entries, but the problem's dimension is {problem.dimension}")
    return params


def prepare(problem: Any) -> bool:
    """Call ``prepare()`` of a problem, and of the problems among its attributes, before workers are forked.

    Returns False if one of them says that this process must not be forked. A wrapper with ``capabilities()`` passes
    ``prepare`` on by itself.
    """
    forkable = Capabilities.of(problem).prepare() is not False
    if not has_own_capabilities(problem):
        for part in getattr(problem, "__dict__", {}).values():
            if isinstance(part, Problem):
                forkable = prepare(part) and forkable
    return forkable


def loss_of(problem: Any, point: Vector) -> float:
    """Return the loss of the problem at a point, or raise a TypeError if it is not a real number."""
    loss = problem.loss(point)
    if np.ndim(loss) != 0 or loss is None:
        raise TypeError(f"the problem's loss(point) must return a number, got {type(loss).__name__}")
    if np.iscomplexobj(loss):
        raise TypeError(f"the problem's loss(point) must return a real number, got {loss!r}: return its real part")
    return float(loss)


def check_initial_loss(problem: Any, params: Vector) -> None:
    """Raise a ValueError if the loss of the initial params is not finite: no stepsize could help."""
    check_is_finite(loss_of(problem, params))


def check_is_finite(loss: float) -> None:
    """Raise a ValueError if a loss of the initial params is not finite."""
    if not math.isfinite(loss):
        raise ValueError(f"the loss of the initial params is {loss}: look at the problem's loss(point) and initial()")
