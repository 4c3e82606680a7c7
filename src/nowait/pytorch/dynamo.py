"""Optimisers that do not import ``torch._dynamo``, PyTorch's compiler: that takes seconds and 100 MB of memory.

Every optimiser of PyTorch imports it when it is made and when it makes a step, only to tell it what not to compile. A
compiler that is not loaded compiles nothing.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

MARK = "__dynamo_disable"
"""Where PyTorch stores the function to call in place of one that must not be compiled."""
GLOBAL_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
OWN_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def is_loaded() -> bool:
    """Return True if the compiler was imported."""
    return sys.modules.get("torch._dynamo") is not None


@contextmanager
def without_dynamo() -> Iterator[None]:
    """Let optimisers be made without importing the compiler until the end of the block."""
    function: Any = getattr(torch.optim.Optimizer.add_param_group, "__wrapped__", None)
    if function is None or is_loaded() or hasattr(function, MARK):
        yield
        return
    setattr(function, MARK, function)
    try:
        yield
    finally:
        delattr(function, MARK)


def step_of(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """Return the function that makes a step.

    For an optimiser of PyTorch it is the one inside the decorators, which would import the compiler. Beside that they
    call hooks, switch gradients off unless the optimiser is ``differentiable``, and tell the profiler.
    """
    kind: Any = type(optimizer)
    plain = _undecorated_step(kind)
    if plain is None or is_loaded() or _needs_decorators(optimizer):
        return optimizer.step

    def step() -> None:
        with torch.no_grad():
            plain(optimizer)

    return step


@cache
def _undecorated_step(kind: Any) -> Callable[[torch.optim.Optimizer], Any] | None:
    """Return the step of a class inside its decorators; None if it is not a step of PyTorch."""
    owner = next(one for one in kind.__mro__ if "step" in vars(one))
    return inspect.unwrap(owner.step) if owner.__module__.startswith("torch.optim.") else None


def _needs_decorators(optimizer: torch.optim.Optimizer) -> bool:
    hooks = [getattr(torch_optimizer, name, None) for name in GLOBAL_HOOKS]
    hooks += [getattr(optimizer, name, None) for name in OWN_HOOKS]
    return any(hooks) or bool(optimizer.defaults.get("differentiable"))
