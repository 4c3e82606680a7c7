"""The optimisers of ``torch.optim`` as updates of the server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

import torch

from nowait.core import Layout, Update, checks
from nowait.core.memory import Stepper
from nowait.core.state import State
from nowait.core.types import Vector
from nowait.pytorch.flat import tensor_of
from nowait.pytorch.memory import StepCheck
from nowait.pytorch.optimizer_kind import OptimizerKind
from nowait.pytorch.parameter_groups import (
    GroupsArgument,
    Options,
    ParameterGroup,
    checked_class,
    checked_groups,
    options_by_name,
    parameter_groups,
)
from nowait.pytorch.running_optimizer import RunningOptimizer, trial_state
from nowait.rules import SCALES

HOW_IT_COMPUTES = ("foreach", "fused", "capturable", "differentiable")
"""Options of ``torch.optim`` that change how a step is computed, and not which step it is."""


@final
class TorchOptimizer(Update):
    """An optimiser of ``torch.optim``, or a class of your own. It must make a step from gradients alone (no closure).

    ``TorchOptimizer(torch.optim.AdamW, weight_decay=0.01)`` takes the options of the optimiser except the learning
    rate: it is the stepsize of each step, which the method's stepsize rule gives. Schedules are stepsize rules too
    (``nw.Scheduled``), over the steps of the server. The state is checkpointed and resumed.

    ``groups(name, parameter)`` returns options for one parameter of the model, such as ``{"weight_decay": 0.0}``; or
    ``groups`` is a dict of them by name. The option ``stepsize_factor`` multiplies the stepsize, and ``optimizer`` is
    another class, whose options are the other ones. Parameters with equal options share a group. ``parameter`` has a
    shape, but no values.

    The optimiser gets the parameters with the shapes of the model. Only without groups, and if a trial shows that an
    optimiser of PyTorch treats all entries alike, it gets one flat vector, which is faster. An optimiser that fails in
    a trial step is refused before workers start.

    ``scale="gradient"`` lets a delay rule scale the gradient, before it enters the moments of Adam, instead of the
    step: the learning rate of every step is then that of a fresh gradient.

    Fused implementations are used where PyTorch has them: they are several times faster, and round differently.
    ``fused=False`` uses none, and ``fused="device"`` only those for params on a device, as earlier versions did.
    An optimiser that treats all entries alike uses as many threads as the server, others use one: no bit depends on it.
    """

    def __init__(
        self,
        optimizer: type[torch.optim.Optimizer],
        *,
        groups: GroupsArgument | None = None,
        fused: bool | str = True,
        scale: str = "step",
        **options: Any,
    ) -> None:
        if "lr" in options:
            raise ValueError("leave lr= out: the learning rate is the stepsize, as in nw.DelayAdaptive(0.05)")
        if not isinstance(fused, bool) and fused != "device":
            raise ValueError(f'fused must be True, False or "device", got {fused!r}')
        self._scale = checks.one_of(scale, SCALES, "scale")
        self._kind = OptimizerKind(checked_class(optimizer), options)
        self._defaults = self._kind.first_trial().defaults
        self._groups, self._fused = checked_groups(groups), fused
        self._is_elementwise = groups is None and self._kind.is_elementwise()
        self._found: dict[str, Options] | None = None
        self._running: RunningOptimizer

    @property
    def is_plain(self) -> bool:
        """True for ``torch.optim.SGD`` without groups and without an option that is set."""
        is_default = self._groups is None and not any(
            value for name, value in self._kind.options.items() if name not in HOW_IT_COMPUTES
        )
        return self._kind.optimizer is torch.optim.SGD and is_default and not self.scales_gradient

    @property
    def momentum_factor(self) -> float:
        """The momentum of the optimiser, or its first beta."""
        betas = self._defaults.get("betas") or (0.0,)
        return float(self._defaults.get("momentum", 0.0) or betas[0] or 0.0)

    @property
    def averages_gradients(self) -> bool:
        """True if the optimiser has betas, as Adam does, and no momentum."""
        return bool(self._defaults.get("betas")) and not self._defaults.get("momentum")

    @property
    def scales_gradient(self) -> bool:
        """True with ``scale="gradient"``."""
        return self._scale == "gradient"

    def described(self) -> dict[str, Any]:
        """Return the name and the options of the optimiser, for ``config.json``; groups once they are known."""
        options: dict[str, Any] = {"options": dict(self._kind.options), "fused": self._fused}
        if self.scales_gradient:
            options["scale"] = self._scale
        if self._groups is not None:
            known = self._groups if isinstance(self._groups, Mapping) else self._found
            options["groups"] = self._groups if known is None else _described(known)
        return {"type": "TorchOptimizer", "optimizer": self._kind.name} | options

    def check(self, layout: Layout) -> None:
        """Raise if a trial step of small parameters with these names and numbers of dimensions fails."""
        groups, _ = self._planned(layout)
        trial_state(groups, torch.zeros(1), fused=False)

    def start(self, params: Vector) -> None:
        """Make a new optimiser, for params that are one vector."""
        self.start_with_layout(params, Layout.flat(len(params)))

    def start_with_layout(self, params: Vector, layout: Layout) -> None:
        """Make a new optimiser, for params like these."""
        groups, layout = self._planned(layout)
        fused = self._fused is True or (self._fused == "device" and isinstance(params, torch.Tensor))
        self._running = RunningOptimizer(groups, layout, _as_tensor(params), fused=fused)

    def apply(self, params: Vector, direction: Vector, stepsize: float, out: Vector) -> None:
        """Copy params to ``out`` and make one step of the optimiser there."""
        out[:] = params
        self._running.step(out, direction, stepsize)

    def stepper(self, params: Vector) -> Stepper:
        """Return ``checked``, or for a fused optimiser of tensors a function that waits for the device only once."""
        if not isinstance(params, torch.Tensor) or not self._running.skips_bad_steps:
            return self.checked
        check, bad = StepCheck(params), torch.zeros((), dtype=torch.float32, device=params.device)

        def step(
            params: torch.Tensor, direction: torch.Tensor, stepsize: float, out: torch.Tensor
        ) -> tuple[float, float]:
            without_state = self._running.without_state()
            check.measure(direction)
            torch.ne(check.norm * 0.0, 0.0, out=bad)  # 1 if the norm is NaN or infinite
            self._apply_unless(bad, params, direction, stepsize, out)
            norm, zero = check.read(out)
            if math.isfinite(norm):
                return norm * norm, zero
            for optimizer in without_state:  # the step was skipped, but it allocated state without initialising it
                optimizer.state.clear()
            return self.checked(params, direction, stepsize, out)

        return step

    def _apply_unless(self, bad: torch.Tensor, params: Any, direction: Any, stepsize: float, out: Any) -> None:
        """Make a step of fused optimisers, which changes nothing if ``bad``, a tensor on the device, is 1."""
        for optimizer in self._running.optimizers:
            optimizer.found_inf = bad  # type: ignore[attr-defined]
        try:
            self.apply(params, direction, stepsize, out)
        finally:
            for optimizer in self._running.optimizers:
                del optimizer.found_inf  # type: ignore[attr-defined]

    def state(self) -> State:
        """Return the tensors and numbers in the state of the optimiser."""
        return self._running.state()

    def restore(self, state: State) -> None:
        """Set the state of the optimiser to what ``state`` returned."""
        self._running.restore(state)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the optimiser of a run; ``start`` makes a new one."""
        return {name: value for name, value in self.__dict__.items() if name != "_running"}

    def __repr__(self) -> str:
        settings = dict(self._kind.options)
        if self._groups is not None:
            settings["groups"] = self._groups
        if self._fused is not True:
            settings["fused"] = self._fused
        if self.scales_gradient:
            settings["scale"] = self._scale
        options = "".join(f", {name}={value!r}" for name, value in settings.items())
        return f"TorchOptimizer({self._kind.optimizer.__name__}{options})"

    def _planned(self, layout: Layout) -> tuple[list[ParameterGroup], Layout]:
        """Return the groups, and the layout of the parameters that the optimiser gets."""
        layout = Layout.flat(layout.length) if self._is_elementwise else layout
        options = options_by_name(self._groups, layout)
        self._found = options
        return parameter_groups(self._kind, self._defaults, options, layout), layout


def _described(options: Mapping[str, Mapping[str, Any]]) -> dict[str, Options]:
    """Return the options of the parameters that have some, with the names of optimisers in place of their classes."""
    return {
        name: {key: OptimizerKind(value).name if key == "optimizer" else value for key, value in own.items()}
        for name, own in options.items()
        if own
    }


def _as_tensor(vector: Any) -> torch.Tensor:
    """Return a tensor as it is, or one that shares the memory of an array."""
    return vector if isinstance(vector, torch.Tensor) else tensor_of(vector)
