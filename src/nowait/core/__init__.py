"""The core: a server that decides, with no clock and no input or output. Everything else is built on it."""

from nowait.core.audit import Audit
from nowait.core.errors import BadWorkerError, IllegalEvent, WorkerFailedError
from nowait.core.layout import Block, Layout
from nowait.core.ledger import Arrival
from nowait.core.log import Log, Outcome
from nowait.core.memory import HostMemory, Memory
from nowait.core.messages import (
    Assign,
    Cancel,
    Command,
    Event,
    GradientArrived,
    Resumed,
    Ticket,
    TimerFired,
    Wake,
    WorkerJoined,
    WorkerLost,
)
from nowait.core.method import Method, method_dataclass
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
from nowait.core.problem import Problem
from nowait.core.randomness import Sample, sampler
from nowait.core.realigned_update import HeLoCo
from nowait.core.scaled_gradients import ScaleGradient
from nowait.core.schedule import ApplyAtOnce
from nowait.core.schedules import CosineDecay, LinearDecay, Schedule, ScheduleProduct, Warmup
from nowait.core.server import Server
from nowait.core.shaped_updates import LMO, Muon
from nowait.core.state import ServerState
from nowait.core.stepsizes import (
    AdaDelay,
    Constant,
    Cosine,
    CosineGate,
    DelayAdaptive,
    ExponentialDelayAdaptive,
    HingeDecay,
    PolynomialDecay,
    Scheduled,
    StepDecay,
    Stepsize,
    StepsizeOrFloat,
    Threshold,
    as_stepsize,
)
from nowait.core.sums import GradientSum
from nowait.core.updates import L1, Adam, AMSGrad, Ball, Box, Momentum, Nesterov, Proximal, Sgd, Update

__all__ = [
    "L1",
    "LMO",
    "AMSGrad",
    "AdaDelay",
    "Adam",
    "ApplyAtOnce",
    "Arrival",
    "Assign",
    "Audit",
    "BadWorkerError",
    "Ball",
    "Block",
    "Box",
    "Cancel",
    "Command",
    "Constant",
    "Cosine",
    "CosineDecay",
    "CosineGate",
    "DelayAdaptive",
    "Event",
    "ExponentialAverage",
    "ExponentialDelayAdaptive",
    "GradientArrived",
    "GradientSum",
    "HeLoCo",
    "HingeDecay",
    "HostMemory",
    "IllegalEvent",
    "LastIterate",
    "Layout",
    "LinearDecay",
    "Log",
    "Memory",
    "Method",
    "Momentum",
    "Muon",
    "Nesterov",
    "Outcome",
    "Output",
    "PolynomialDecay",
    "Problem",
    "Proximal",
    "RandomIterate",
    "Resumed",
    "Sample",
    "ScaleGradient",
    "Schedule",
    "ScheduleProduct",
    "Scheduled",
    "Server",
    "ServerState",
    "Sgd",
    "StepDecay",
    "Stepsize",
    "StepsizeOrFloat",
    "StepsizeWeightedAverage",
    "StronglyConvexAverage",
    "Threshold",
    "Ticket",
    "TimerFired",
    "UniformAverage",
    "UniformIterate",
    "Update",
    "Wake",
    "Warmup",
    "WorkerFailedError",
    "WorkerJoined",
    "WorkerLost",
    "as_stepsize",
    "method_dataclass",
    "sampler",
]
