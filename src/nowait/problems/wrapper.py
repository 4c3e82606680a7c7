"""The base class of problems that wrap another problem."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Self

from nowait.core import Sample
from nowait.core.capabilities import Capabilities, size_in_bytes
from nowait.core.problem import checked_problem
from nowait.core.types import Vector
from nowait.theory import Constants

LOCAL_STEPS, COMPRESSION = 1 << 29, 1 << 30
"""Wrappers draw from parts of a ticket's sample with these numbers and above; wrapped problems must not use them."""


class Wrapper(ABC):
    """A problem with the objective of another one, whose workers send something else than its gradients."""

    passes_statistics_on: ClassVar[bool] = False
    """True if workers send statistics, such as those of batch normalisation, as the wrapped problem measures them."""

    def __init__(self, problem: Any) -> None:
        self.problem: Any = checked_problem(problem)
        if Capabilities.of(problem).num_statistics and not self.passes_statistics_on:
            raise TypeError(
                f"{type(self).__name__} cannot wrap a problem with buffers, such as those of batch normalisation"
            )

    def capabilities(self) -> Capabilities:
        """Return the capabilities of the wrapped problem, without those that depend on what workers send.

        Subclasses replace the fields for which they have a method of their own.
        """
        inner = Capabilities.of(self.problem)
        return Capabilities(
            gradient=self.gradient,
            gradient_into=None,
            gradient_with_memory=None,
            device_memory=lambda: None,  # wrappers compute with NumPy
            prepare=inner.prepare,
            process_settings=inner.process_settings,
            take_share=inner.take_share,
            start_worker=inner.start_worker,
            between_gradients=inner.between_gradients,
            message_bytes=size_in_bytes,
            gradient_encoding=None,
            point_encoding=inner.point_encoding,
            encoded_gradient=None,
            num_statistics=0,
            statistics_momentum=1.0,
            layout=inner.layout,
            num_shards=inner.num_shards,
            items_of=inner.items_of,
            auto_batch_sizes=inner.auto_batch_sizes,
            replayable=inner.replayable,
            repeatable=inner.repeatable,
            uses_job_numbers=inner.uses_job_numbers,
            usual_update=inner.usual_update,
            usual_stepsize=inner.usual_stepsize,
            evaluate=inner.evaluate,
            training_loss=inner.training_loss,
            loading_seconds=inner.loading_seconds,
            device_of=inner.device_of,
            write_files=inner.write_files,
            write_model=inner.write_model,
            checkpoint_model=inner.checkpoint_model,
            model=inner.model,
            params_of=inner.params_of,
            parts_to_send=inner.parts_to_send,
            split=None if inner.split is None else self.split,
            minimum=inner.minimum,
            constants=None if inner.constants is None else self.constants,
            full_gradient=None,  # it is not the mean of what workers send
            gradient_of_worker=None,
            losses_at=inner.losses_at,
            compiled_data=None,  # compiled simulations would use the gradients of the wrapped problem
        )

    @property
    def dimension(self) -> int:
        """The number of params."""
        return int(self.problem.dimension)

    @property
    def num_shards(self) -> int:
        """The number of workers that the data are split for."""
        return Capabilities.of(self.problem).num_shards

    def initial(self) -> Vector:
        """The initial params of the wrapped problem."""
        initial: Vector = self.problem.initial()
        return initial

    @abstractmethod
    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """Return what a worker sends for this ticket."""

    def loss(self, point: Vector) -> float:
        """The loss of the wrapped problem."""
        return float(self.problem.loss(point))

    def minimum(self) -> tuple[Vector, float]:
        """The minimiser and the lowest loss of the wrapped problem."""
        found: tuple[Vector, float] = self._inner_method("minimum")()
        return found

    def constants(self) -> Constants:
        """The constants of the objective; without sigma and G, because workers do not send its gradients."""
        constants: Constants = self._inner_method("constants")()
        return replace(constants, sigma=None, G=None)

    def split(self, *arguments: Any, **options: Any) -> Self:
        """Return the same wrapper around the split problem."""
        return self._rewrapped(self._inner_method("split")(*arguments, **options))

    @abstractmethod
    def _rewrapped(self, problem: Any) -> Self:
        """Return the same wrapper around another problem."""

    def _inner_method(self, name: str) -> Any:
        """Return an optional method of the wrapped problem, or raise a TypeError that says that it has none."""
        method = getattr(Capabilities.of(self.problem), name)
        if method is None:
            raise TypeError(f"{type(self.problem).__name__} has no {name}(), so neither has {type(self).__name__}")
        return method
