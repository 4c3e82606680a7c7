"""Keeps a run on disk while it goes on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from nowait.core import Server
from nowait.recording import TraceRecorder
from nowait.recording.folder import Checkpoint, RunFolder


@final
@dataclass
class Keeper:
    """Makes a checkpoint every so many steps, every so many seconds, at the start and at the end."""

    folder: RunFolder
    every: float = math.inf
    every_seconds: float = math.inf
    wanted_workers: Callable[[], list[int]] = field(init=False, default=list)
    """The workers that the run should have when it is resumed; the engine knows."""
    next_step: float = field(init=False, default=0.0)
    next_time: float = field(init=False, default=0.0)

    def is_due(self, server: Server) -> bool:
        """Is it time?"""
        return server.steps >= self.next_step or server.now >= self.next_time

    def checkpoint(self, server: Server, recorder: TraceRecorder) -> Path | None:
        """Write one, and plan the next. Where it is; None if there is one of this step already."""
        path = self.folder.checkpoint(server.state(), self.wanted_workers(), recorder)
        self.plan(server)
        return path

    def rewind(self, checkpoint: Checkpoint, config: dict[str, Any]) -> None:
        """The run goes on from a checkpoint, maybe with another engine than ``config.json`` says."""
        self.folder.rewind(checkpoint)
        self.folder.write_config(config)

    def plan(self, server: Server) -> None:
        """The next checkpoint is counted from now."""
        self.next_step, self.next_time = server.steps + self.every, server.now + self.every_seconds
