"""nowait: train with workers of any speed and never wait for the slowest one."""

from typing import TYPE_CHECKING

from nowait import problems, speeds, theory
from nowait._version import __version__
from nowait.api import replay, resume, simulate, sweep, train
from nowait.core import (
    L1,
    AdaDelay,
    Adam,
    AMSGrad,
    BadWorkerError,
    Ball,
    Box,
    Constant,
    Cosine,
    DelayAdaptive,
    ExponentialDelayAdaptive,
    HingeDecay,
    LastIterate,
    Method,
    Momentum,
    Nesterov,
    Output,
    PolynomialDecay,
    Proximal,
    RandomIterate,
    Sgd,
    StepDecay,
    Stepsize,
    StepsizeWeightedAverage,
    StronglyConvexAverage,
    Threshold,
    UniformAverage,
    Update,
    WorkerFailedError,
)
from nowait.engines.cluster import RayCluster
from nowait.methods import (
    ATA,
    CA2FL,
    FADAS,
    PIAG,
    AdaptiveRevision,
    AdaptiveStrength,
    AsynchronousSGD,
    ClippedASGD,
    DelayCompensatedSGD,
    DelayedNesterov,
    EqualParts,
    FedAT,
    FedBuff,
    GradientTable,
    MaleniaSGD,
    MindFlayerSGD,
    MinibatchSGD,
    PickySGD,
    RandomAssignment,
    RennalaSGD,
    RescaledASGD,
    RingleaderASGD,
    RingmasterASGD,
    ShareOfTheRest,
    ShuffledAssignment,
    WindowRule,
)
from nowait.recording import Callback, History, Interrupted, Run, Stats, Sweep, TensorBoard, Trace, load
from nowait.reports import write_report as report
from nowait.studies import Race, certify, plan, race

if TYPE_CHECKING:
    from nowait import plots

__all__ = [
    "ATA",
    "CA2FL",
    "FADAS",
    "L1",
    "PIAG",
    "AMSGrad",
    "AdaDelay",
    "Adam",
    "AdaptiveRevision",
    "AdaptiveStrength",
    "AsynchronousSGD",
    "BadWorkerError",
    "Ball",
    "Box",
    "Callback",
    "ClippedASGD",
    "Constant",
    "Cosine",
    "DelayAdaptive",
    "DelayCompensatedSGD",
    "DelayedNesterov",
    "EqualParts",
    "ExponentialDelayAdaptive",
    "FedAT",
    "FedBuff",
    "GradientTable",
    "HingeDecay",
    "History",
    "Interrupted",
    "LastIterate",
    "MaleniaSGD",
    "Method",
    "MindFlayerSGD",
    "MinibatchSGD",
    "Momentum",
    "Nesterov",
    "Output",
    "PickySGD",
    "PolynomialDecay",
    "Proximal",
    "Race",
    "RandomAssignment",
    "RandomIterate",
    "RayCluster",
    "RennalaSGD",
    "RescaledASGD",
    "RingleaderASGD",
    "RingmasterASGD",
    "Run",
    "Sgd",
    "ShareOfTheRest",
    "ShuffledAssignment",
    "Stats",
    "StepDecay",
    "Stepsize",
    "StepsizeWeightedAverage",
    "StronglyConvexAverage",
    "Sweep",
    "TensorBoard",
    "Threshold",
    "Trace",
    "UniformAverage",
    "Update",
    "WindowRule",
    "WorkerFailedError",
    "__version__",
    "certify",
    "load",
    "plan",
    "plots",
    "problems",
    "race",
    "replay",
    "report",
    "resume",
    "simulate",
    "speeds",
    "sweep",
    "theory",
    "train",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    """``nowait.plots`` is imported when it is first used: it needs matplotlib."""
    if name == "plots":
        import importlib

        return importlib.import_module("nowait.plots")
    raise AttributeError(f"module 'nowait' has no attribute {name!r}")
