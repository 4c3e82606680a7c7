"""The arrays and numbers of a problem that compiled simulations use."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nowait.core.types import Floats, Integers

DENSE, SPARSE, QUADRATIC = range(3)
NO_NUMBERS = np.empty(0)
NO_INTEGERS = np.empty(0, np.int64)


class ProblemData(NamedTuple):
    """A linear model over dense or sparse rows, or the noisy quadratic. Fields of the other kinds are empty."""

    kind: int
    model: int = 0
    """The loss of a linear model: one of the constants in ``nowait.problems.kernels``."""
    features: Any = np.empty((0, 0))
    values: Any = NO_NUMBERS
    """The entries of sparse rows in CSR format: row i starts at ``row_starts[i]``, its columns are in ``columns``."""
    columns: Any = np.empty(0, np.int32)
    row_starts: Any = np.empty(0, np.int32)
    targets: Any = NO_NUMBERS
    order: Integers = NO_INTEGERS
    """Row numbers, shard by shard; empty if every worker draws from all rows."""
    starts: Integers = NO_INTEGERS
    """Start of each shard in ``order``, and the end of the last one."""
    batch: int = 0
    l2: float = 0.0
    norms: Floats = NO_NUMBERS
    """‖a_i‖ of every row."""
    eigenvalues: Floats = NO_NUMBERS
    solution: Floats = NO_NUMBERS
    shifts: Floats = np.empty((0, 0))
    """The gradient shift of each worker, one row per worker; no rows if all workers have the same objective."""
    noise: float = 0.0
    """Standard deviation of each entry of a gradient."""
