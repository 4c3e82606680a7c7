"""A class of optimisers with its options: how optimisers are made, and what trial steps tell about the class."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch

from nowait.core.layout import Layout
from nowait.pytorch.dynamo import step_of, without_dynamo
from nowait.pytorch.threads import torch_threads

TRIAL_SHAPES = ((6, 5), (7,), (2, 3, 2, 2))
TRIAL_STEPS = 3
LONGEST_SIDE = 4
"""Trial steps of a model use tensors of its shapes with no side longer than this."""
IMPLEMENTATIONS = ("foreach", "fused", "capturable", "differentiable")
"""Options of torch.optim that select an implementation."""

Groups = Sequence[tuple[dict[str, Any], Sequence[torch.nn.Parameter]]]
"""Options and the parameters that they are for."""


@final
@dataclass(frozen=True)
class OptimizerKind:
    """``torch.optim.AdamW``, say, with the options of all its parameters."""

    optimizer: type[torch.optim.Optimizer]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the class, with its module if it is not of PyTorch."""
        kind = self.optimizer
        return kind.__name__ if self._is_of_pytorch else f"{kind.__module__}.{kind.__name__}"

    def make(self, groups: Groups, *, fused: bool) -> torch.optim.Optimizer:
        """Return a new optimiser; raise a TypeError if it does not take the options.

        Without ``capturable`` on the processor: it is for GPUs only.
        """
        known = inspect.signature(self.optimizer).parameters
        chosen = {"foreach": False} if "foreach" in known else {}  # the foreach implementations write to gradients
        if "fused" in known:
            chosen["fused"] = fused
        on_gpu = any(parameter.is_cuda for _, parameters in groups for parameter in parameters)
        if not on_gpu and "capturable" in known:
            chosen["capturable"] = False
        try:
            with without_dynamo():
                return self.optimizer(
                    [{"params": list(parameters)} | options for options, parameters in groups],
                    **(self.options | chosen | {"lr": 1.0}),
                )
        except TypeError as error:
            raise TypeError(f"{self.optimizer.__name__} does not take these options: {error}") from None

    def stepped(
        self, groups: Sequence[tuple[dict[str, Any], Iterable[tuple[int, ...]]]], like: torch.Tensor, *, fused: bool
    ) -> torch.optim.Optimizer:
        """Return an optimiser after one trial step of small parameters with these numbers of dimensions."""
        generator = torch.Generator().manual_seed(0)
        made = [(options, [_trial_parameter(shape, like, generator) for shape in shapes]) for options, shapes in groups]
        optimizer = self.make(made, fused=fused)
        with torch.random.fork_rng(devices=[]), torch_threads(1):
            step_of(optimizer)()
        return optimizer

    def first_trial(self) -> torch.optim.Optimizer:
        """Return an optimiser after a trial step with a tensor of some shape, or raise the error if there is none."""
        errors: list[Exception] = []
        for shape in TRIAL_SHAPES:
            try:
                return self.stepped([({}, [shape])], torch.zeros(1), fused=False)
            except Exception as error:
                errors.append(error)
        raise self.refusal(errors[0])

    def refusal(self, error: Exception) -> Exception:
        """Return the error to raise for one that a trial step raised."""
        if isinstance(error, TypeError) and "does not take these options" in str(error):
            return error
        message = str(error).strip().splitlines() or [type(error).__name__]
        return ValueError(f"{self.optimizer.__name__} failed in a trial step with these parameters: {message[0]}")

    def has_fused(self, like: torch.Tensor) -> bool:
        """Return True if a fused step of tensors like this succeeds: versions of PyTorch differ in what they have."""
        if "fused" not in inspect.signature(self.optimizer).parameters:
            return False
        try:
            self.stepped([({}, [(1,)])], like, fused=True)
        except (RuntimeError, ValueError):
            return False
        return True

    def is_elementwise(self) -> bool:
        """Return True for an optimiser of PyTorch that makes the same steps on one flat tensor as on several.

        Compared bit for bit. A class of one's own may look at shapes in ways that no trial shows.
        """
        if not self._is_of_pytorch:
            return False
        try:
            with torch_threads(1):
                return torch.equal(self._after_steps(TRIAL_SHAPES), self._after_steps([(_size(TRIAL_SHAPES),)]))
        except Exception:
            return False

    def _after_steps(self, shapes: Sequence[tuple[int, ...]]) -> torch.Tensor:
        """Return flat params after some steps, with the same gradients for all shapes of the same total size."""
        generator = torch.Generator().manual_seed(0)
        params = torch.randn(_size(shapes), generator=generator)
        layout = Layout.of({str(number): shape for number, shape in enumerate(shapes)})
        parameters = [torch.nn.Parameter(view) for view in layout.views(params)]
        optimizer = self.make([({}, parameters)], fused=False)
        step = step_of(optimizer)
        for _ in range(TRIAL_STEPS):
            gradient = torch.randn(len(params), generator=generator)
            for parameter, view in zip(parameters, layout.views(gradient), strict=True):
                parameter.grad = view
            step()
        return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])

    @property
    def _is_of_pytorch(self) -> bool:
        return self.optimizer.__module__.startswith("torch.optim")


def _size(shapes: Iterable[tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes)


def _trial_parameter(shape: tuple[int, ...], like: torch.Tensor, generator: torch.Generator) -> torch.nn.Parameter:
    """Return a parameter with random entries and a gradient, of the dtype and on the device of another tensor."""
    small = [min(side, LONGEST_SIDE) for side in shape]
    parameter = torch.nn.Parameter(torch.randn(small, generator=generator).to(like))
    parameter.grad = torch.randn(small, generator=generator).to(like)
    return parameter
