"""Temporary seeds for the global random number generators of torch, numpy and random."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from nowait.pytorch.process import in_worker

HAS_OTHER_DEVICES = torch.backends.mps.is_built() or torch.xpu._is_compiled()
"""True if this PyTorch was built for devices with generators of their own that are neither processors nor CUDA GPUs."""


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Seed the global generators of torch, numpy and random with a key, and restore their states at the end.

    Restoring takes longer than seeding, and a worker process does not need it.
    """
    states = None if in_worker() else _states()
    _seed_torch(key >> 1)
    np.random.seed(key & 0xFFFFFFFF)  # noqa: NPY002 (data sets may use it)
    random.seed(key)
    try:
        yield
    finally:
        if states is not None:
            _restore(*states)


@contextmanager
def seeded_apart(key: int) -> Iterator[None]:
    """Seed the global generators of the processor with a key, and restore their states at the end, in workers too."""
    states = generator_states()
    torch.default_generator.manual_seed(key >> 1)
    np.random.seed(key & 0xFFFFFFFF)  # noqa: NPY002 (samplers may use it)
    random.seed(key)
    try:
        yield
    finally:
        set_generator_states(states)


def generator_states() -> tuple[Any, ...]:
    """Return the states of the global generators of torch (on the processor), numpy and random."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002


def set_generator_states(states: tuple[Any, ...]) -> None:
    """Set the global generators to states that ``generator_states`` returned, perhaps in another process."""
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    random.setstate(states[2])


def same_states(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    """Return True if no number was drawn from any generator between two states."""
    same_numpy = np.array_equal(first[1][1], second[1][1]) and first[1][2:] == second[1][2:]
    return same_numpy and torch.equal(first[0], second[0]) and bool(first[2] == second[2])


def _states() -> tuple[Any, Any, Any, Any]:
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return torch.get_rng_state(), on_gpus, np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002


def _restore(torch_state: Any, gpu_states: Any, numpy_state: Any, state: Any) -> None:
    torch.set_rng_state(torch_state)
    torch.cuda.set_rng_state_all(gpu_states)
    np.random.set_state(numpy_state)  # noqa: NPY002
    random.setstate(state)


def _seed_torch(seed: int) -> None:
    """Do what ``torch.manual_seed`` does, in a hundredth of its time. GPUs are seeded if CUDA is in use."""
    if HAS_OTHER_DEVICES:
        torch.manual_seed(seed)
        return
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for generator in torch.cuda.default_generators:
            generator.manual_seed(seed)
