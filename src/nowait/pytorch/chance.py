"""Random numbers of a ticket, for whoever draws them, and the user's own afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """torch, numpy and random draw from this key inside, and go on as before afterwards."""
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
