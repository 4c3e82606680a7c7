"""Stepsize rules: all of them, and the window rules of ``nw.PIAG``. The common ones are in ``nowait`` itself too.

>>> import nowait as nw
>>> nw.stepsizes.DelayAdaptive is nw.DelayAdaptive
True
"""

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
    Threshold,
)
from nowait.methods.piag import EqualParts, ShareOfTheRest, WindowRule

__all__ = [
    "AdaDelay",
    "Constant",
    "Cosine",
    "CosineGate",
    "DelayAdaptive",
    "EqualParts",
    "ExponentialDelayAdaptive",
    "HingeDecay",
    "PolynomialDecay",
    "Scheduled",
    "ShareOfTheRest",
    "StepDecay",
    "Stepsize",
    "Threshold",
    "WindowRule",
]
