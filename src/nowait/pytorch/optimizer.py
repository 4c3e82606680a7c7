"""The optimisers of ``torch.optim`` as updates of the server."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import torch

from nowait.core import Update
from nowait.core.memory import Stepper
from nowait.core.state import State
from nowait.core.types import Vector
from nowait.numerics.parallel import num_threads
from nowait.pytorch.dynamo import import_dynamo, without_dynamo
from nowait.pytorch.flat import tensor_of
from nowait.pytorch.memory import StepCheck

NOT_ELEMENTWISE = ("Adafactor", "Muon", "SparseAdam", "LBFGS")
"""Optimisers that use the shapes of parameters, need sparse gradients, or compute gradients themselves."""


@final
class TorchOptimizer(Update):
    """Any optimiser of ``torch.optim`` that updates every entry of params by the same formula.

    ``TorchOptimizer(torch.optim.AdamW, weight_decay=0.01)`` takes the options of the optimiser except the learning
    rate: it is the stepsize of each step, which the method's stepsize rule gives. Schedules are stepsize rules too
    (``nw.Cosine``, ``nw.StepDecay``), over the steps of the server. The state is checkpointed and resumed.

    Params are used where they are, in host memory or on a device. If they are tensors, the fused implementation of the
    optimiser is used where PyTorch has one for the device; ``fused=False`` prevents that.
    """

    def __init__(self, optimizer: type[torch.optim.Optimizer], **options: Any) -> None:
        if not (inspect.isclass(optimizer) and issubclass(optimizer, torch.optim.Optimizer)):
            raise TypeError(f"optimizer must be a class of torch.optim, such as torch.optim.AdamW, got {optimizer!r}")
        if optimizer.__name__ in NOT_ELEMENTWISE:
            raise ValueError(f"{optimizer.__name__} does not update all entries of params by the same formula")
        if "lr" in options:
            raise ValueError("leave lr= out: the learning rate is the stepsize, as in nw.DelayAdaptive(0.05)")
        self._kind, self._options = optimizer, options
        self._parameter = torch.nn.Parameter(torch.zeros(1))
        self._nothing = torch.zeros(0)
        self._optimizer = self._new_optimizer(self._parameter)

    @property
    def momentum_factor(self) -> float:
        """The momentum of the optimiser, or its first beta."""
        betas = self._optimizer.defaults.get("betas", (0.0,))
        return float(self._optimizer.defaults.get("momentum", 0.0) or betas[0])

    def described(self) -> dict[str, Any]:
        """Return the name and the options of the optimiser, for ``config.json``."""
        own = self._kind.__module__.startswith("torch.optim")
        name = self._kind.__name__ if own else f"{self._kind.__module__}.{self._kind.__name__}"
        return {"type": "TorchOptimizer", "optimizer": name, "options": dict(self._options)}

    def start(self, params: Vector) -> None:
        """Make a new optimiser, for params like these."""
        self._parameter = torch.nn.Parameter(torch.zeros_like(_as_tensor(params)))
        self._nothing = self._parameter.data[:0].clone()
        fused = isinstance(params, torch.Tensor) and self._has_fused(params)
        self._optimizer = self._new_optimizer(self._parameter, **({"fused": True} if fused else {}))

    def warm_up(self) -> None:
        """Import what the first step of any optimiser imports."""
        import_dynamo()

    def apply(self, params: Vector, direction: Vector, stepsize: float, out: Vector) -> None:
        """Copy params to ``out`` and make one step of the optimiser there."""
        out[:] = params
        self._parameter.data = _as_tensor(out)
        self._parameter.grad = _as_tensor(direction)
        for group in self._optimizer.param_groups:
            group["lr"] = stepsize
        with _as_many_threads_as_the_server():
            self._optimizer.step()
        self._parameter.grad, self._parameter.data = None, self._nothing  # the memory of params is the server's

    def stepper(self, params: Vector) -> Stepper:
        """Return ``checked``, or for a fused optimiser of tensors a function that waits for the device only once."""
        skips_bad_steps = getattr(self._optimizer, "_step_supports_amp_scaling", False)  # for torch.amp.GradScaler
        if not isinstance(params, torch.Tensor) or not skips_bad_steps:
            return self.checked
        check, bad = StepCheck(params), torch.zeros((), dtype=torch.float32, device=params.device)

        def step(
            params: torch.Tensor, direction: torch.Tensor, stepsize: float, out: torch.Tensor
        ) -> tuple[float, float]:
            is_first = not self._optimizer.state.get(self._parameter)
            check.measure(direction)
            torch.ne(check.norm * 0.0, 0.0, out=bad)  # 1 if the norm is NaN or infinite
            self._apply_unless(bad, params, direction, stepsize, out)
            norm, zero = check.read(out)
            if math.isfinite(norm):
                return norm * norm, zero
            if is_first:  # the step was skipped, but it allocated state without initialising it
                self._optimizer.state.clear()
            return self.checked(params, direction, stepsize, out)

        return step

    def _apply_unless(self, bad: torch.Tensor, params: Any, direction: Any, stepsize: float, out: Any) -> None:
        """Make a step of a fused optimiser, which changes nothing if ``bad``, a tensor on the device, is 1."""
        self._optimizer.found_inf = bad  # type: ignore[attr-defined]
        try:
            self.apply(params, direction, stepsize, out)
        finally:
            del self._optimizer.found_inf  # type: ignore[attr-defined]

    def state(self) -> State:
        """Return the tensors and numbers in the state of the optimiser."""
        state: State = {}
        for name, value in self._optimizer.state.get(self._parameter, {}).items():
            if isinstance(value, torch.Tensor):
                state[name] = value.detach().cpu().numpy().reshape(-1).copy() if value.dim() else float(value)
            elif value is not None:
                state[name] = value
        return state

    def restore(self, state: State) -> None:
        """Set the state of the optimiser to what ``state`` returned."""
        device, defaults = self._parameter.device, self._optimizer.defaults
        device_of_numbers = device if defaults.get("fused") or defaults.get("capturable") else None
        for name, value in state.items():
            if isinstance(value, np.ndarray):
                tensor = torch.from_numpy(np.array(value)).to(device)
            else:
                tensor = torch.tensor(float(value), device=device_of_numbers)
            self._optimizer.state[self._parameter][name] = tensor

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self._options.items())
        return f"TorchOptimizer({self._kind.__name__}{options})"

    def _new_optimizer(self, parameter: torch.nn.Parameter, **more: Any) -> torch.optim.Optimizer:
        try:
            # the foreach implementations write to gradients
            in_turn = {"foreach": False} if "foreach" in inspect.signature(self._kind).parameters else {}
            with without_dynamo():
                return self._kind([parameter], **(self._options | in_turn | more | {"lr": 1.0}))
        except TypeError as error:
            raise TypeError(f"{self._kind.__name__} does not take these options: {error}") from None

    def _has_fused(self, params: torch.Tensor) -> bool:
        """Return True if a fused step of a single entry succeeds: versions of PyTorch differ in which ones exist."""
        if "fused" not in inspect.signature(self._kind).parameters or "fused" in self._options:
            return False
        entry = torch.nn.Parameter(torch.zeros_like(params[:1]))
        entry.grad = torch.zeros_like(entry)
        try:
            self._new_optimizer(entry, fused=True).step()
        except RuntimeError:
            return False
        return True


@contextmanager
def _as_many_threads_as_the_server() -> Iterator[None]:
    """Leave the other cores to the workers: by default PyTorch would use all of them. No bit depends on it."""
    threads, before = num_threads(), torch.get_num_threads()
    if threads is None or threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _as_tensor(vector: Any) -> torch.Tensor:
    """Return a tensor as it is, or one that shares the memory of an array."""
    return vector if isinstance(vector, torch.Tensor) else tensor_of(vector)
