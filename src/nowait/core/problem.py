"""The interface of a problem, and functions that work on any problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import numpy as np

from nowait.core import checks
from nowait.core.capabilities import Capabilities, has_own_capabilities
from nowait.core.randomness import Sample
from nowait.core.types import Vector, checked_params

TRAINING_LOSS = "training_loss"
"""The metric that engines add: the mean of the losses that workers computed since the evaluation before."""
RESERVED_METRICS = frozenset({"run", "step", "gradients", "time", "crc32", TRAINING_LOSS})
"""Names that ``evaluate`` may not use, because ``metrics.jsonl`` has other values under them."""


@runtime_checkable
class Problem(Protocol):
    """The members that every problem must have. No base class is needed.

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
    params = checked_params(problem.initial() if initial is None else checks.array(initial, name), name)
    if params.size != problem.dimension:
        raise ValueError(f"{name} has {params.size} entries, but the problem's dimension is {problem.dimension}")
    return params


def prepare(problem: Any) -> bool:
    """Call ``prepare()`` of a problem, and of the problems among its attributes, before workers are forked.

    Returns False if one of them says that this process must not be forked. A wrapper with ``capabilities()`` passes
    ``prepare`` on by itself.
    """
    answers = [Capabilities.of(part).prepare() for part in _with_inner_problems(problem)]
    return not any(answer is False for answer in answers)


def process_settings(problem: Any) -> tuple[Any, ...]:
    """Return the global settings of this process that the results of a problem depend on."""
    found = [Capabilities.of(part).process_settings() for part in _with_inner_problems(problem)]
    return tuple(settings for settings in found if settings is not None)


def settings_as_text(problem: Any) -> dict[str, str]:
    """Return these settings by name, with values as text."""
    return {name: str(value) for settings in process_settings(problem) for name, value in settings.values.items()}


def _with_inner_problems(problem: Any) -> Iterator[Any]:
    """Yield a problem, and the problems among its attributes unless it speaks for them."""
    yield problem
    if not has_own_capabilities(problem):
        for part in getattr(problem, "__dict__", {}).values():
            if isinstance(part, Problem):
                yield from _with_inner_problems(part)


def loss_of(problem: Any, point: Vector) -> float:
    """Return the loss of the problem at a point, or raise a TypeError if it is not a real number."""
    return _real_number(problem.loss(point), "the problem's loss(point) must return a")


def _real_number(value: Any, rule: str) -> float:
    if np.ndim(value) != 0 or value is None:
        raise TypeError(f"{rule} number, got {type(value).__name__}")
    if np.iscomplexobj(value):
        raise TypeError(f"{rule} real number, got {value!r}: return its real part")
    return float(value)


@final
class Evaluation(NamedTuple):
    """The loss at a point, and the other metrics by name."""

    loss: float
    metrics: dict[str, float]

    @property
    def values(self) -> dict[str, float]:
        """The loss and the metrics, by name."""
        return {"loss": self.loss} | self.metrics


def evaluation(problem: Any, capabilities: Capabilities) -> Callable[[Vector], Evaluation]:
    """Return the function that evaluates a problem: its ``evaluate``, and ``loss`` where that has no "loss"."""
    evaluate = capabilities.evaluate
    if evaluate is None:
        return lambda point: Evaluation(loss_of(problem, point), {})
    return lambda point: _evaluated(problem, evaluate, point)


def _evaluated(problem: Any, evaluate: Callable[[Vector], Mapping[str, Any]], point: Vector) -> Evaluation:
    values = checked_metrics(evaluate(point), "the problem's evaluate(params)")
    loss = values.pop("loss", None)
    return Evaluation(loss_of(problem, point) if loss is None else loss, values)


def checked_metrics(found: Any, by: str) -> dict[str, float]:
    """Return metrics by name as floats; raise if ``by`` has returned something else, or a name that is taken."""
    if not isinstance(found, Mapping):
        raise TypeError(f"{by} must return numbers by name, got {type(found).__name__}")
    values = {name: _real_number(value, f"{by} must return for {name!r} a") for name, value in found.items()}
    wrong = [name for name in values if not isinstance(name, str) or name in RESERVED_METRICS]
    if wrong:
        raise ValueError(f"a metric cannot be called {wrong[0]!r}: that is another column of metrics.jsonl")
    return values


def check_initial_loss(problem: Any, params: Vector) -> None:
    """Raise a ValueError if the loss of the initial params is not finite: no stepsize could help."""
    check_is_finite(loss_of(problem, params))


def check_is_finite(loss: float) -> None:
    """Raise a ValueError if a loss of the initial params is not finite."""
    if not math.isfinite(loss):
        raise ValueError(f"the loss of the initial params is {loss}: look at the problem's loss(point) and initial()")
