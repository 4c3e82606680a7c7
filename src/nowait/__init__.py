"""nowait: train with workers of any speed and never wait for the slowest one."""

from typing import TYPE_CHECKING

from nowait import outputs, problems, rules, schedules, speeds, stepsizes, theory, updates
from nowait.api import replay, resume, simulate, sweep, train
from nowait.core import (
    LMO,
    AdaDelay,
    Adam,
    AMSGrad,
    Arrival,
    BadWorkerError,
    Constant,
    Cosine,
    CosineGate,
    DelayAdaptive,
    ExponentialAverage,
    ExponentialDelayAdaptive,
    HeLoCo,
    HingeDecay,
    LastIterate,
    Method,
    Momentum,
    Muon,
    Nesterov,
    Output,
    PolynomialDecay,
    Problem,
    Proximal,
    RandomIterate,
    ScaleGradient,
    Scheduled,
    Server,
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
from nowait.engines.listen import Listen
from nowait.methods import (
    ATA,
    CA2FL,
    FADAS,
    PIAG,
    AdaptiveRevision,
    AdaptiveStrength,
    AsynchronousSGD,
    ClippedASGD,
    CycleSGD,
    DecoupledDiLoCo,
    DelayCompensatedSGD,
    DelayedNesterov,
    FedAT,
    FedBuff,
    GradientTable,
    MaleniaSGD,
    MindFlayerSGD,
    MinibatchSGD,
    MSynchronousSGD,
    OrderedMomentum,
    PickySGD,
    QuantileMinibatchSGD,
    RandomAssignment,
    RennalaSGD,
    RescaledASGD,
    RingleaderASGD,
    RingmasterASGD,
    RingmasterLMO,
    ShuffledAssignment,
    StaleSynchronousSGD,
    WindowRule,
)
from nowait.recording import (
    Callback,
    Control,
    EarlyStopping,
    History,
    Interrupted,
    Run,
    Stats,
    Sweep,
    TensorBoard,
    Trace,
    load,
)
from nowait.reports import write_report as report
from nowait.studies import Race, Reproduction, Tolerance, Tuning, certify, plan, race, reproduce, tolerance, tune

if TYPE_CHECKING:
    from nowait import plots

    __version__: str

__all__ = [
    "ATA",
    "CA2FL",
    "FADAS",
    "LMO",
    "PIAG",
    "AMSGrad",
    "AdaDelay",
    "Adam",
    "AdaptiveRevision",
    "AdaptiveStrength",
    "Arrival",
    "AsynchronousSGD",
    "BadWorkerError",
    "Callback",
    "ClippedASGD",
    "Constant",
    "Control",
    "Cosine",
    "CosineGate",
    "CycleSGD",
    "DecoupledDiLoCo",
    "DelayAdaptive",
    "DelayCompensatedSGD",
    "DelayedNesterov",
    "EarlyStopping",
    "ExponentialAverage",
    "ExponentialDelayAdaptive",
    "FedAT",
    "FedBuff",
    "GradientTable",
    "HeLoCo",
    "HingeDecay",
    "History",
    "Interrupted",
    "LastIterate",
    "Listen",
    "MSynchronousSGD",
    "MaleniaSGD",
    "Method",
    "MindFlayerSGD",
    "MinibatchSGD",
    "Momentum",
    "Muon",
    "Nesterov",
    "OrderedMomentum",
    "Output",
    "PickySGD",
    "PolynomialDecay",
    "Problem",
    "Proximal",
    "QuantileMinibatchSGD",
    "Race",
    "RandomAssignment",
    "RandomIterate",
    "RayCluster",
    "RennalaSGD",
    "Reproduction",
    "RescaledASGD",
    "RingleaderASGD",
    "RingmasterASGD",
    "RingmasterLMO",
    "Run",
    "ScaleGradient",
    "Scheduled",
    "Server",
    "Sgd",
    "ShuffledAssignment",
    "StaleSynchronousSGD",
    "Stats",
    "StepDecay",
    "Stepsize",
    "StepsizeWeightedAverage",
    "StronglyConvexAverage",
    "Sweep",
    "TensorBoard",
    "Threshold",
    "Tolerance",
    "Trace",
    "Tuning",
    "UniformAverage",
    "Update",
    "WindowRule",
    "WorkerFailedError",
    "__version__",
    "certify",
    "load",
    "outputs",
    "plan",
    "plots",
    "problems",
    "race",
    "replay",
    "report",
    "reproduce",
    "resume",
    "rules",
    "schedules",
    "simulate",
    "speeds",
    "stepsizes",
    "sweep",
    "theory",
    "tolerance",
    "train",
    "tune",
    "updates",
]


def __dir__() -> list[str]:
    return __all__


MOVED = {"Ball": "updates", "Box": "updates", "L1": "updates", "EqualParts": "stepsizes", "ShareOfTheRest": "stepsizes"}
"""Names that older versions had here, and the module they are in now."""


def __getattr__(name: str) -> object:
    """Return what takes long to import when it is first used; say where moved names are."""
    if name == "plots":  # needs matplotlib
        import importlib

        return importlib.import_module("nowait.plots")
    if name == "__version__":
        from importlib.metadata import version

        return version("nowait")
    if name in MOVED:
        raise AttributeError(f"nowait.{name} has moved: it is nowait.{MOVED[name]}.{name} now")
    raise AttributeError(f"module 'nowait' has no attribute {name!r}")
