"""The optimisers of ``torch.optim`` as updates of the server."""

from __future__ import annotations

import inspect
from typing import Any, final

import numpy as np
import torch

from nowait.core import Update
from nowait.core.state import State
from nowait.core.types import Vector
from nowait.pytorch.flat import tensor_of

NOT_ELEMENTWISE = ("Adafactor", "Muon", "SparseAdam", "LBFGS")
"""Optimisers that use the shapes of parameters, need sparse gradients, or compute gradients themselves."""


@final
class TorchOptimizer(Update):
    """Any optimiser of ``torch.optim`` that updates every entry of params by the same formula.

    ``TorchOptimizer(torch.optim.AdamW, weight_decay=0.01)`` takes the options of the optimiser except the learning
    rate: it is the stepsize of each step, which the method's stepsize rule gives. Schedules are stepsize rules too
    (``nw.Cosine``, ``nw.StepDecay``), over the steps of the server. The state is checkpointed and resumed.
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
        self._optimizer = self._new_optimizer()

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
        self._parameter = torch.nn.Parameter(torch.zeros(params.size, dtype=tensor_of(params).dtype))
        self._optimizer = self._new_optimizer()

    def apply(self, params: Vector, direction: Vector, stepsize: float, out: Vector) -> None:
        """Copy params to ``out`` and make one step of the optimiser there."""
        out[:] = params
        self._parameter.data = tensor_of(out)
        self._parameter.grad = tensor_of(direction)
        for group in self._optimizer.param_groups:
            group["lr"] = stepsize
        self._optimizer.step()
        self._parameter.grad = None

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
        for name, value in state.items():
            tensor = torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else torch.tensor(float(value))
            self._optimizer.state[self._parameter][name] = tensor

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self._options.items())
        return f"TorchOptimizer({self._kind.__name__}{options})"

    def _new_optimizer(self) -> torch.optim.Optimizer:
        try:
            # the foreach implementations write to gradients
            in_turn = {"foreach": False} if "foreach" in inspect.signature(self._kind).parameters else {}
            return self._kind([self._parameter], **(self._options | in_turn | {"lr": 1.0}))
        except TypeError as error:
            raise TypeError(f"{self._kind.__name__} does not take these options: {error}") from None
