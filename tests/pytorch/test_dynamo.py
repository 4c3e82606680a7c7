"""Optimisers are made and make steps without importing PyTorch's compiler."""

import functools
import sys

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from nowait.pytorch import TorchOptimizer


@pytest.fixture
def no_compiler(monkeypatch):
    """Make ``import torch._dynamo`` fail, as if it had never been imported."""
    function = torch.optim.Optimizer.add_param_group.__wrapped__
    monkeypatch.delattr(function, "__dynamo_disable", raising=False)
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)
    return function


def _after_three_steps(kind, **options):
    update, params = TorchOptimizer(kind, **options), np.linspace(-1.0, 1.0, 12)
    update.start(params)
    for number in range(3):
        out = params.copy()
        update.apply(params, np.cos(params + number), 0.1, out)
        params = out
    return params


OPTIMISERS = [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adafactor, torch.optim.RMSprop]


@pytest.mark.parametrize("kind", OPTIMISERS, ids=lambda kind: kind.__name__)
def test_steps_do_not_import_the_compiler_and_have_the_same_bits(kind, no_compiler, monkeypatch):
    params = _after_three_steps(kind)
    assert not hasattr(no_compiler, "__dynamo_disable"), "optimisers of the user are made as before"
    monkeypatch.undo()
    assert np.array_equal(params, _after_three_steps(kind))


def test_a_step_of_ones_own_is_called_with_its_decorators(monkeypatch):
    monkeypatch.setattr("nowait.pytorch.dynamo.is_loaded", lambda: False)
    called = []

    def counted(step):
        @functools.wraps(step)
        def wrapper(self, *arguments):
            called.append(self)
            return step(self, *arguments)

        return wrapper

    class Mine(torch.optim.SGD):
        step = counted(torch.optim.SGD.step)

    _after_three_steps(Mine)
    assert len(called) >= 3


def test_hooks_for_steps_of_all_optimisers_are_called(monkeypatch):
    monkeypatch.setattr("nowait.pytorch.dynamo.is_loaded", lambda: False)
    called = []
    handle = register_optimizer_step_post_hook(lambda optimizer, *_: called.append(optimizer))
    try:
        _after_three_steps(torch.optim.SGD)
    finally:
        handle.remove()
    assert len(called) >= 3
