"""The optimisers of a run: steps in the memory of params, and their state for checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np
import torch

from nowait.core.layout import Layout
from nowait.core.state import State
from nowait.numerics.chunks import LARGE
from nowait.numerics.parallel import num_threads
from nowait.pytorch.dynamo import step_of
from nowait.pytorch.flat import DTYPES, CachedViews, tensor_of
from nowait.pytorch.optimizer_kind import OptimizerKind
from nowait.pytorch.parameter_groups import ParameterGroup
from nowait.pytorch.threads import torch_threads

Wanted = Sequence[ParameterGroup]
NOT_STATE = ("params", "lr", "stepsize_factor")
"""Entries of a parameter group that are set before every step."""


@final
class RunningOptimizer:
    """One optimiser for each class in the groups, with one parameter for each block of the layout."""

    def __init__(self, groups: Wanted, layout: Layout, params: torch.Tensor, *, fused: bool) -> None:
        self._layout, self._cached = layout, CachedViews(layout)
        self._nothing = params[:0].clone()
        self._templates = trial_state(groups, params, fused=fused)
        self._parameters = [torch.nn.Parameter(view) for view in layout.views(params)]
        by_name = dict(zip(layout, self._parameters, strict=True))
        self.optimizers = [
            kind.make(
                [
                    (_entries(group), [by_name[block.name] for block in group.blocks])
                    for group in groups
                    if group.kind == kind
                ],
                fused=fused and kind.has_fused(params[:1]),
            )
            for kind in _kinds(groups)
        ]
        self._names: dict[torch.Tensor, str] = {parameter: name for name, parameter in by_name.items()}
        self._is_elementwise = all(kind.is_elementwise() for kind in _kinds(groups))
        self._at_start = [dict(group) for group in self._param_groups()]
        self._unbind()

    @property
    def skips_bad_steps(self) -> bool:
        """True if all optimisers are fused ones, which make no step if their ``found_inf`` is 1 (as for GradScaler)."""
        return all(getattr(optimizer, "_step_supports_amp_scaling", False) for optimizer in self.optimizers)

    def step(self, out: Any, direction: Any, stepsize: float) -> None:
        """Make one step of the params in ``out``."""
        views, gradients = self._views(out), self._views(direction)
        for parameter, view, gradient in zip(self._parameters, views, gradients, strict=True):
            parameter.data = view
            parameter.grad = gradient
        for group in self._param_groups():
            group["lr"] = stepsize * group["stepsize_factor"]
        with torch_threads(self._num_threads()):
            for optimizer in self.optimizers:
                step_of(optimizer)()
        for parameter, view in zip(self._parameters, views, strict=True):
            if parameter.data_ptr() != view.data_ptr():  # the optimiser has put another tensor into parameter.data
                view.copy_(parameter.detach())
        self._unbind()

    def without_state(self) -> list[torch.optim.Optimizer]:
        """Return the optimisers that have no state yet."""
        return [optimizer for optimizer in self.optimizers if not any(optimizer.state.values())]

    def state(self) -> State:
        """Return the tensors and numbers in the states, and the numbers in parameter groups that steps changed."""
        state: State = {}
        for optimizer in self.optimizers:
            for parameter, values in optimizer.state.items():
                prefix = "" if len(self._layout) == 1 else f"{self._names[parameter]}/"
                state |= {prefix + name: stored(value) for name, value in values.items()}
        for number, (group, before) in enumerate(zip(self._param_groups(), self._at_start, strict=True)):
            changed = {name for name in _numbers(group) if group[name] != before.get(name)}
            state |= {f"group {number}/{name}": group[name] for name in sorted(changed)}
        return {name: value for name, value in state.items() if value is not None}

    def restore(self, state: State) -> None:
        """Set the states to what ``state`` returned."""
        groups = {f"group {number}/": group for number, group in enumerate(self._param_groups())}
        for full_name, value in state.items():
            owner, slash, name = full_name.rpartition("/")
            if owner + slash in groups:
                groups[owner + slash][name] = value
            elif slash and owner not in self._layout:
                raise ValueError(f"the checkpoint has the state {full_name!r}, but there is no such parameter")
            else:  # without an owner: of params that are one vector, as they always were in earlier versions
                for block in [self._layout[owner]] if slash else self._layout.blocks:
                    own = value if slash or not isinstance(value, np.ndarray) else block.of(value)
                    self._restore_entry(block.name, name, own)

    def _restore_entry(self, owner: str, name: str, value: Any) -> None:
        """Set an entry to a tensor or a number, whatever a trial step left."""
        template = self._templates[owner].get(name, self._nothing)
        tensor = torch.from_numpy(np.array(value))
        self._states[owner][name] = tensor.to(template) if isinstance(template, torch.Tensor) else value

    def _views(self, vector: Any) -> list[torch.Tensor]:
        """Return a view for each parameter. Those of tensors are not kept, because they would keep their memory."""
        if isinstance(vector, torch.Tensor) or len(self._layout) == 1:
            return self._layout.views(vector if isinstance(vector, torch.Tensor) else tensor_of(vector))
        return self._cached.of(vector)[1]

    @property
    def _states(self) -> dict[str, dict[str, Any]]:
        """The state of every parameter by name."""
        return {
            self._names[parameter]: optimizer.state[parameter]
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }

    def _param_groups(self) -> Iterator[dict[str, Any]]:
        for optimizer in self.optimizers:
            yield from optimizer.param_groups

    def _num_threads(self) -> int:
        """Return the number of threads of a step: those of the server; PyTorch's outside a run of workers.

        One for short params, and one for an optimiser with sums or matrix products, whose bits may depend on it.
        """
        if not self._is_elementwise:
            return 1
        return num_threads() or (torch.get_num_threads() if self._layout.length >= LARGE else 1)

    def _unbind(self) -> None:
        """Let go of the memory of params and gradients, which belongs to the server."""
        for parameter in self._parameters:
            parameter.grad, parameter.data = None, self._nothing


def trial_state(groups: Wanted, like: torch.Tensor, *, fused: bool) -> dict[str, dict[str, Any]]:
    """Return the state of every parameter after a trial step, by name; raise an error if a step or a state fails."""
    found: dict[str, dict[str, Any]] = {}
    for kind in _kinds(groups):
        own = [group for group in groups if group.kind == kind]
        try:
            states = _states_after_a_step(kind, own, like[:1], fused=fused)
        except Exception as error:
            raise kind.refusal(error) from None
        found |= dict(zip([block.name for group in own for block in group.blocks], states, strict=True))
    return found


def _states_after_a_step(kind: OptimizerKind, groups: Wanted, like: torch.Tensor, *, fused: bool) -> list[Any]:
    """Return the states of the parameters of one optimiser; raise an error if they could not be resumed."""
    shapes = [(group.options, [block.shape for block in group.blocks]) for group in groups]
    optimizer = kind.stepped(shapes, like, fused=fused and kind.has_fused(like))
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if set(map(id, optimizer.state)) - set(map(id, parameters)):
        raise ValueError("it has state that belongs to no parameter, so it could not be resumed")
    states = [dict(optimizer.state[parameter]) for parameter in parameters]
    for value in [value for state in states for value in state.values()]:
        stored(value)
    return states


def stored(value: Any) -> Any:
    """Return a value in the state of an optimiser as a number, an array or a vector on a GPU; None stays None."""
    if isinstance(value, torch.Tensor):
        if value.dim() and value.is_cuda and value.dtype in DTYPES:
            return value.detach()
        return value.detach().cpu().numpy() if value.dim() else value.item()
    if value is None or isinstance(value, bool | int | float):
        return value
    raise TypeError(f"its state has a {type(value).__name__}, which could not be resumed: tensors and numbers could")


def _kinds(groups: Wanted) -> list[OptimizerKind]:
    kinds: list[OptimizerKind] = []
    for group in groups:
        if group.kind not in kinds:
            kinds.append(group.kind)
    return kinds


def _entries(group: ParameterGroup) -> dict[str, Any]:
    return group.options | {"stepsize_factor": group.stepsize_factor}


def _numbers(group: dict[str, Any]) -> list[str]:
    return [name for name, value in group.items() if isinstance(value, int | float) and name not in NOT_STATE]
