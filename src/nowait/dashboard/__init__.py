"""A local web page that shows runs while they run."""

from nowait.dashboard.watcher import Watcher, watch

__all__ = ["Watcher", "watch"]
