"""Output rules: which combination of the iterates is ``run.params``. They are in ``nowait`` itself too.

>>> import nowait as nw
>>> nw.outputs.UniformAverage is nw.UniformAverage
True
"""

from nowait.core.outputs import (
    ExponentialAverage,
    LastIterate,
    Output,
    RandomIterate,
    StepsizeWeightedAverage,
    StronglyConvexAverage,
    UniformAverage,
    UniformIterate,
)

__all__ = [
    "ExponentialAverage",
    "LastIterate",
    "Output",
    "RandomIterate",
    "StepsizeWeightedAverage",
    "StronglyConvexAverage",
    "UniformAverage",
    "UniformIterate",
]
