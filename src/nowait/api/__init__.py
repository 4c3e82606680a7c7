"""The verbs of the library: the only place that wires parts together."""

from nowait.api.replay import replay
from nowait.api.resume import resume
from nowait.api.simulate import simulate
from nowait.api.sweep import sweep
from nowait.api.train import train

__all__ = ["replay", "resume", "simulate", "sweep", "train"]
