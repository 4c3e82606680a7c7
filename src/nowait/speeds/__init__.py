"""Speed models: how long workers take in a simulation."""

from nowait.speeds.adversary import Adversary
from nowait.speeds.alibaba import alibaba
from nowait.speeds.changing_speeds import TimeVarying, UpDown
from nowait.speeds.clock import Clock, Finished
from nowait.speeds.communication import Communication
from nowait.speeds.faults import Faults
from nowait.speeds.random_speeds import BySample, Exponential, Fixed, HalfNormal, LogNormal, Pareto
from nowait.speeds.recorded import Recorded
from nowait.speeds.speeds import Speeds, Timing

__all__ = [
    "Adversary",
    "BySample",
    "Clock",
    "Communication",
    "Exponential",
    "Faults",
    "Finished",
    "Fixed",
    "HalfNormal",
    "LogNormal",
    "Pareto",
    "Recorded",
    "Speeds",
    "TimeVarying",
    "Timing",
    "UpDown",
    "alibaba",
]
