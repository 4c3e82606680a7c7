"""Real worker processes on this machine."""

from nowait.engines.processes.engine import ProcessOptions, train
from nowait.engines.processes.shared import SharedSlots

__all__ = ["ProcessOptions", "SharedSlots", "train"]
