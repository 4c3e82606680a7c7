"""When ``torch._dynamo``, PyTorch's compiler, is imported. That takes seconds, and every optimiser asks for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

MARK = "__dynamo_disable"
"""Where PyTorch keeps the function to call in place of one that the compiler must not see."""


def import_dynamo() -> None:
    """Import the compiler now: the first step of an optimiser would do so otherwise."""
    import torch._dynamo  # noqa: F401


@contextmanager
def without_dynamo() -> Iterator[None]:
    """Make optimisers without importing the compiler, which has nothing to compile yet if it is not loaded."""
    function: Any = getattr(torch.optim.Optimizer.add_param_group, "__wrapped__", None)
    if function is None or "torch._dynamo" in sys.modules or hasattr(function, MARK):
        yield
        return
    setattr(function, MARK, function)
    try:
        yield
    finally:
        delattr(function, MARK)
