"""Worker processes on this machine."""

from nowait.engines.processes.local import train
from nowait.engines.processes.shared import SharedSlots

__all__ = ["SharedSlots", "train"]
