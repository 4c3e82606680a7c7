"""The verbs of the library: the only place that wires parts together."""

from nowait.api.replay import replay
from nowait.api.simulate import simulate

__all__ = ["replay", "simulate"]
