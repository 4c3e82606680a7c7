"""nowait: train with workers of any speed and never wait for the slowest one."""

from typing import TYPE_CHECKING

from nowait import problems, speeds, theory
from nowait._version import __version__
from nowait.api import replay, simulate
from nowait.core import (
    L1,
    Adam,
    AMSGrad,
    BadWorkerError,
    Ball,
    Box,
    Constant,
    DelayAdaptive,
    LastIterate,
    Method,
    Momentum,
    Nesterov,
    Output,
    Proximal,
    RandomIterate,
    Sgd,
    Stepsize,
    StepsizeWeightedAverage,
    StronglyConvexAverage,
    UniformAverage,
    Update,
)
from nowait.methods import (
    AsynchronousSGD,
    GradientTable,
    MinibatchSGD,
    RandomAssignment,
    RennalaSGD,
    RingleaderASGD,
    RingmasterASGD,
)
from nowait.recording import Callback, History, Run, Stats, Trace, load

if TYPE_CHECKING:
    from nowait import plots

__all__ = [
    "L1",
    "AMSGrad",
    "Adam",
    "AsynchronousSGD",
    "BadWorkerError",
    "Ball",
    "Box",
    "Callback",
    "Constant",
    "DelayAdaptive",
    "GradientTable",
    "History",
    "LastIterate",
    "Method",
    "MinibatchSGD",
    "Momentum",
    "Nesterov",
    "Output",
    "Proximal",
    "RandomAssignment",
    "RandomIterate",
    "RennalaSGD",
    "RingleaderASGD",
    "RingmasterASGD",
    "Run",
    "Sgd",
    "Stats",
    "Stepsize",
    "StepsizeWeightedAverage",
    "StronglyConvexAverage",
    "Trace",
    "UniformAverage",
    "Update",
    "__version__",
    "load",
    "plots",
    "problems",
    "replay",
    "simulate",
    "speeds",
    "theory",
]


def __getattr__(name: str) -> object:
    """``nowait.plots`` is imported when it is first used: it needs matplotlib."""
    if name == "plots":
        import importlib

        return importlib.import_module("nowait.plots")
    raise AttributeError(f"module 'nowait' has no attribute {name!r}")
