"""What compiled simulations need to know of a problem: arrays and numbers, no objects."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nowait.core.types import Floats, Integers

DENSE, SPARSE, QUADRATIC = range(3)
NO_NUMBERS = np.empty(0)
NO_INTEGERS = np.empty(0, np.int64)


class ProblemData(NamedTuple):
    """A linear model over dense or sparse rows, or the noisy quadratic. What the others have is empty."""

    kind: int
    model: int = 0
    """Which loss of a linear model, see ``nowait.problems.kernels``."""
    features: Any = np.empty((0, 0))
    values: Any = NO_NUMBERS
    """The entries of sparse rows: those of row i from ``row_starts[i]`` on, in ``columns``."""
    columns: Any = np.empty(0, np.int32)
    row_starts: Any = np.empty(0, np.int32)
    targets: Any = NO_NUMBERS
    order: Integers = NO_INTEGERS
    """Row numbers, shard by shard; empty if all workers draw from all rows."""
    starts: Integers = NO_INTEGERS
    """Where each shard begins, and where the last one ends."""
    batch: int = 0
    l2: float = 0.0
    norms: Floats = NO_NUMBERS
    """‖a_i‖ of every row."""
    eigenvalues: Floats = NO_NUMBERS
    solution: Floats = NO_NUMBERS
    shifts: Floats = np.empty((0, 0))
    """One row per worker; none if workers do not differ."""
    noise: float = 0.0
    """The standard deviation of an entry of a gradient."""
