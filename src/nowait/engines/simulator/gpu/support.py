"""What sweeps on a GPU can execute, and the errors for what they cannot."""

from __future__ import annotations

import numpy as np

from nowait.core.types import Vector
from nowait.engines.simulator.compiled import NO_COMPILED_GRADIENT
from nowait.problems import AbsoluteLoss, Hinge, LeastSquares, LogisticRegression
from nowait.problems.compiled_data import QUADRATIC, SPARSE, ProblemData

PROBLEMS = (LeastSquares, LogisticRegression, AbsoluteLoss, Hinge)
"""The problems whose losses ``losses.py`` computes."""
MOST_PARAMS = 8192
"""The params of a run are in the registers of one block of threads."""


class NotOnGpuError(ValueError):
    """A sweep cannot run on a GPU. The message says why, and that the CPU can run it."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"this sweep cannot run on a GPU: {reason}. It runs with device='cpu'")
        self.reason = reason


def check_problem(problem: object, data: ProblemData | None, initial: Vector) -> None:
    """Raise ``NotOnGpuError`` if the GPU cannot compute the gradients or losses of a problem."""
    if data is None:
        raise NotOnGpuError(NO_COMPILED_GRADIENT)
    reason = _unsupported_kind(problem, data) or _unsupported_size(data, initial)
    if reason:
        raise NotOnGpuError(reason)


def _unsupported_kind(problem: object, data: ProblemData) -> str:
    if data.kind == SPARSE:
        return "the rows of the problem are sparse"
    if data.kind == QUADRATIC or type(problem) not in PROBLEMS:
        return f"there are no losses and gradients of {type(problem).__name__} for GPUs"
    return ""


def _unsupported_size(data: ProblemData, initial: Vector) -> str:
    if initial.dtype.itemsize < data.targets.dtype.itemsize or initial.dtype not in (np.float32, np.float64):
        return f"the params are {initial.dtype} and the data is {data.targets.dtype}"
    if len(initial) > MOST_PARAMS:
        return f"the problem has {len(initial):,} params, and at most {MOST_PARAMS:,} fit into the registers"
    if len(data.targets) >= np.iinfo(np.int32).max:
        return "the problem has more than 2**31 rows"
    return ""
