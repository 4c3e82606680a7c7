"""Worker processes on this machine."""

from nowait.engines.processes.local import launch_zygote, train
from nowait.engines.processes.shared import SharedSlots

__all__ = ["SharedSlots", "launch_zygote", "train"]
