"""What problems around another problem share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Self

from nowait.core.problem import checked_problem
from nowait.core.types import Vector
from nowait.theory import Constants

LOCAL_STEPS, COMPRESSION = 1 << 29, 1 << 30
"""From here on the parts of a ticket's sample belong to wrappers, so that they share no draws with the problem."""


class Wrapper(ABC):
    """The same objective; what workers send differs."""

    def __init__(self, problem: Any) -> None:
        self.problem = checked_problem(problem)
        if getattr(problem, "num_statistics", 0):
            raise TypeError(
                f"{type(self).__name__} cannot go around a problem with buffers, such as those of batch normalisation"
            )

    @property
    def dimension(self) -> int:
        """The number of params."""
        return int(self.problem.dimension)

    @property
    def num_shards(self) -> int:
        """Into how many shards the problem's rows are split."""
        return int(getattr(self.problem, "num_shards", 1))

    def prepare(self) -> None:
        """What the problem does before workers are forked."""
        if hasattr(self.problem, "prepare"):
            self.problem.prepare()

    def initial(self) -> Vector:
        """x_0 of the problem."""
        initial: Vector = self.problem.initial()
        return initial

    def loss(self, point: Vector) -> float:
        """F of the problem."""
        return float(self.problem.loss(point))

    def minimum(self) -> tuple[Vector, float]:
        """x* and F* of the problem, if it knows them."""
        minimum: tuple[Vector, float] = self.problem.minimum()
        return minimum

    def constants(self) -> Constants:
        """Those of the objective. What workers send has another noise and another length."""
        constants: Constants = self.problem.constants()
        return replace(constants, sigma=None, G=None)

    def split(self, *arguments: Any, **options: Any) -> Self:
        """The same around the split problem."""
        return self._around(self.problem.split(*arguments, **options))

    @abstractmethod
    def _around(self, problem: Any) -> Self:
        """The same wrapper around another problem."""
