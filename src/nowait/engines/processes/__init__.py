"""Worker processes on this machine."""

from nowait.engines.processes.local import launch_zygote, train

__all__ = ["launch_zygote", "train"]
