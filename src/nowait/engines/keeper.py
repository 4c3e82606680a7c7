"""Decides when checkpoints are made and writes them: small ones at once, large ones by a thread during the run."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from nowait.core import Server
from nowait.core.state import ServerState
from nowait.core.versions import Version
from nowait.recording import HistoryRecorder, TraceRecorder
from nowait.recording.checkpoints import BackgroundWrite, Checkpoint, Written
from nowait.recording.folder import RunFolder
from nowait.recording.model_file import ModelFile

BACKGROUND_BYTES = 1 << 20
"""Checkpoints of at least this many bytes are written by a thread."""
SECONDS_TO_GIVE_UP = 10.0
"""How long a failed run waits for a checkpoint that is being written."""


@final
@dataclass
class Keeper:
    """Makes checkpoints at the start, every ``every`` steps or ``every_seconds``, and at the end."""

    folder: RunFolder
    every: float = math.inf
    every_seconds: float = math.inf
    model_file: ModelFile | None = None
    """What is in the ``model.safetensors`` of checkpoints; None: they do not have it."""
    wanted_workers: Callable[[], list[int]] = field(init=False, default=list)
    """Returns the workers that a resumed run should have; set by the engine."""
    next_step: float = field(init=False, default=0.0)
    next_time: float = field(init=False, default=0.0)
    latest: float = field(init=False, default=0.0)
    """When the latest checkpoint was made, in seconds of the run."""
    _pending: tuple[BackgroundWrite, Version] | None = field(init=False, default=None)
    """A checkpoint that is being written, and the version of params it references."""

    def start(self, server: Server) -> list[Path]:
        """Return the checkpoint of the start, which was written when the folder was created."""
        self.plan(server)
        return [self.folder.checkpoints.folder_of(server.steps)]

    def is_due(self, server: Server) -> bool:
        """Return True if a checkpoint should be made, or if one that was being written is complete."""
        if self._pending is not None:
            return self._pending[0].is_done
        return server.steps >= self.next_step or server.now >= self.next_time

    def checkpoint(
        self, server: Server, recorder: TraceRecorder, history: HistoryRecorder, *, in_background: bool
    ) -> list[Path]:
        """Make a checkpoint if it is due, or always if ``in_background`` is False. Return those complete now."""
        made = self._collected(server, recorder)
        if in_background and not self.is_due(server):
            return made
        self.folder.keep_trace()
        version = server.retain()
        checkpoint = checkpoint_of(server.live_state(), recorder, self.wanted_workers(), history, self.model_file)
        if in_background and checkpoint.num_bytes >= BACKGROUND_BYTES:
            checkpoint = replace(checkpoint, state=server.snapshot())
            self._pending = BackgroundWrite(lambda: self.folder.write_checkpoint(checkpoint)), version
        else:
            made += _noted(self.folder.write_checkpoint(checkpoint), recorder)
            server.release(version)
        self.plan(server)
        return made

    def _collected(self, server: Server, recorder: TraceRecorder) -> list[Path]:
        """Wait for the checkpoint that is being written, if there is one."""
        if self._pending is None:
            return []
        (write, version), self._pending = self._pending, None
        try:
            written = write.result()
        finally:
            server.release(version)
        return _noted(written, recorder)

    def rewind(self, checkpoint: Checkpoint, recorder: TraceRecorder, config: dict[str, Any]) -> None:
        """Go back to a checkpoint, and update ``config.json``, because the engine may be another one."""
        self.folder.rewind(checkpoint, recorder)
        self.folder.write_config(config)

    def plan(self, server: Server) -> None:
        """Schedule the next checkpoint, counted from now."""
        self.latest = server.now
        self.next_step, self.next_time = server.steps + self.every, server.now + self.every_seconds

    def close(self) -> None:
        """Wait for a checkpoint that is being written, and release the folder."""
        if self._pending is not None:
            with contextlib.suppress(Exception):  # the run ends by another error, or has diverged
                self._pending[0].result(SECONDS_TO_GIVE_UP)
        self.folder.leave()


def _noted(written: Written | None, recorder: TraceRecorder) -> list[Path]:
    """Let the trace have the checksum of a checkpoint that was written, and return its path."""
    if written is None:
        return []
    recorder.params_are(written.step, written.checksum)
    return [written.path]


def checkpoint_of(
    state: ServerState,
    recorder: TraceRecorder,
    wanted: list[int],
    history: HistoryRecorder,
    model_file: ModelFile | None = None,
) -> Checkpoint:
    """Return a checkpoint of a server's state, after writing the trace up to it."""
    position, tally = recorder.checkpoint()
    entries = history.entries
    return Checkpoint(
        state=state,
        initial_workers=recorder.initial_workers.tolist(),
        wanted=wanted or state.workers,
        position=position,
        tally=tally,
        evaluations=len(entries),
        losses_checksum=history.checksum(len(entries)),
        loss=entries[-1][3] if entries else math.nan,
        model_file=model_file,
    )
