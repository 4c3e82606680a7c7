"""Temporary seeds for the global random number generators of torch, numpy and random."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Seed the global generators of torch, numpy and random with a key, and restore their states at the end.

    Those of GPUs are seeded as well, but not restored: see ``gpu_states_kept``.
    """
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


@contextmanager
def gpu_states_kept() -> Iterator[None]:
    """Restore the states of the generators of all GPUs at the end. Too slow for every gradient."""
    states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.cuda.set_rng_state_all(states)
