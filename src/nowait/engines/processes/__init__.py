"""Worker processes on this machine."""

from nowait.engines.processes.local import train

__all__ = ["train"]
