"""Temporary seeds for the global random number generators of torch, numpy and random."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Seed the global generators of torch, numpy and random with a key, and restore their states at the end."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002 (data sets may use it)
    torch.manual_seed(key >> 1)
    np.random.seed(key & 0xFFFFFFFF)  # noqa: NPY002
    random.seed(key)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])


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
