"""Real worker processes on this machine."""

from nowait.engines.processes.engine import ProcessOptions
from nowait.engines.processes.running import train
from nowait.engines.processes.shared import SharedSlots

__all__ = ["ProcessOptions", "SharedSlots", "train"]
