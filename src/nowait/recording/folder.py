"""The folder of a run: what is written while it goes on, so that it can be resumed."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any, final

import numpy as np
from numpy.typing import NDArray

from nowait.core.state import ServerState, State
from nowait.recording.history import HistoryRecorder
from nowait.recording.run import Run, read_history, replace_file, write_json
from nowait.recording.trace import ARRIVAL_DTYPE, EVENT_DTYPE, TraceRecorder

ROWS, EVENTS = "trace.rows", "trace.events"
"""The trace as it grows; at the end of the run ``trace.npz`` takes their place."""


@final
@dataclass(frozen=True)
class Checkpoint:
    """A run up to a step, as it was read back."""

    state: ServerState
    initial_workers: list[int]
    """Those the run began with; the state has those it had when the checkpoint was made."""
    wanted: list[int]
    """Those it should have: also those that were being replaced."""
    arrivals: NDArray[np.void]
    events: NDArray[np.void]
    history: HistoryRecorder


@final
class RunFolder:
    """Writes a run into its folder as it goes on: metrics at once, checkpoints when asked, the rest at the end."""

    def __init__(self, path: str | Path, keep: int) -> None:
        self.path = Path(path).absolute()
        self._keep = keep
        self._lock: IO[bytes] | None = None

    @classmethod
    def create(cls, path: str | Path, config: dict[str, Any], keep: int) -> RunFolder:
        """A new folder. One that exists is refused."""
        folder = cls(path, keep)
        if folder.path.exists():
            raise FileExistsError(
                f"{folder.path} exists: nothing is overwritten; choose another folder, or nw.resume it if it is a run"
            )
        try:
            (folder.path / "checkpoints").mkdir(parents=True)
            folder.lock()
            folder.write_config(config)
        except BaseException:  # a disk that is full leaves nothing behind
            folder.leave()
            raise
        return folder

    def write_config(self, config: dict[str, Any]) -> None:
        """Write what the run is made of, whole or not at all."""
        write_json(self.path / "config.json", config)

    def lock(self) -> None:
        """Keep other processes from writing the same run. The lock goes with this process, however it ends."""
        import fcntl  # not everywhere; and where it is not, real workers are not either

        self._lock = open(self.path / ".lock", "wb")  # noqa: SIM115 (it is closed by ``close``)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise ValueError(f"{self.path} is being written by a run that goes on: wait for it, or end it") from None

    def close(self) -> None:
        """Let others write it."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def leave(self) -> None:
        """Let others write it. If the run never began, take it away, so that it can be tried again."""
        self.close()
        if not self._steps():
            shutil.rmtree(self.path, ignore_errors=True)

    def evaluated(self, step: int, gradients: int, time: float, loss: float) -> None:
        """One more line of metrics."""
        line = json.dumps({"step": step, "gradients": gradients, "time": time, "loss": loss})
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def checkpoint(self, state: ServerState, wanted: list[int], recorder: TraceRecorder) -> Path | None:
        """Write everything up to now. A crash at any moment leaves the last complete checkpoint as it was.

        Returns where it is; None if there is one of this step already.
        """
        numbers = {
            "events": self._write_trace(recorder),
            "initial_workers": recorder.initial_workers.tolist(),
            "wanted_workers": wanted or state.workers,
        }
        name = f"step_{state.steps}"
        unfinished, target = self.path / "checkpoints" / f".{name}", self.path / "checkpoints" / name
        if target.exists():
            return None
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        _write_state(unfinished, state, numbers)
        _sync(unfinished)
        os.rename(unfinished, target)
        _sync(target.parent)
        for _, old in self._steps()[self._keep :]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def is_finished(self) -> bool:
        """Did the run come to the end of its budget? One that a signal ended did not."""
        path = self.path / "stats.json"
        return path.is_file() and not json.loads(path.read_text(encoding="utf-8")).get("interrupted", False)

    def latest(self) -> Checkpoint:
        """The last complete checkpoint, with the trace and the metrics cut where it was made."""
        for _, path in self._steps():
            state, more = _read_state(path)
            arrivals = np.fromfile(self.path / ROWS, ARRIVAL_DTYPE, count=state.rows)
            events = np.fromfile(self.path / EVENTS, EVENT_DTYPE, count=more["events"])
            if len(arrivals) == state.rows and len(events) == more["events"] and more["wanted_workers"]:
                _forget_later_steps(arrivals, state.steps)
                history = self._cut_history(state.steps)
                return Checkpoint(state, more["initial_workers"], more["wanted_workers"], arrivals, events, history)
        raise FileNotFoundError(f"{self.path} has no complete checkpoint to resume from")

    def rewind(self, checkpoint: Checkpoint) -> None:
        """Cut the files where the run is resumed, and take away what is newer. A crash leaves it as resumable."""
        replace_file(self.path / ROWS, checkpoint.arrivals.tobytes())
        replace_file(self.path / EVENTS, checkpoint.events.tobytes())
        rows = "".join(json.dumps(row) + "\n" for row in checkpoint.history.history().rows())
        replace_file(self.path / "metrics.jsonl", rows.encode())
        (self.path / "stats.json").unlink(missing_ok=True)
        for steps, path in self._steps():
            if steps > checkpoint.state.steps:
                shutil.rmtree(path)

    def finish(self, run: Run) -> None:
        """The run is over: what ``nw.load`` reads."""
        run.write(self.path)
        for name in () if run.stats.interrupted else (ROWS, EVENTS):
            (self.path / name).unlink(missing_ok=True)
        self.close()

    def _write_trace(self, recorder: TraceRecorder) -> int:
        first, rows, events = recorder.take_changes()
        _write_at(self.path / ROWS, first * ARRIVAL_DTYPE.itemsize, rows)
        _write_at(self.path / EVENTS, 0, events)
        return len(events) // EVENT_DTYPE.itemsize

    def _steps(self) -> list[tuple[int, Path]]:
        """The complete checkpoints, newest first."""
        found = (self.path / "checkpoints").glob("step_*")
        return sorted(((int(path.name.removeprefix("step_")), path) for path in found), reverse=True)

    def _cut_history(self, steps: int) -> HistoryRecorder:
        kept = HistoryRecorder()
        path = self.path / "metrics.jsonl"
        for entry in read_history(path).entries if path.exists() else []:
            if entry[0] <= steps:
                kept.add(*entry)
        return kept


def _forget_later_steps(arrivals: NDArray[np.void], steps: int) -> None:
    """Gradients held at the checkpoint are lost with it, also where the file knows of a later step of theirs."""
    later = arrivals["step"] > steps
    for column in ("step", "weight", "stepsize"):
        arrivals[column][later] = 0


def _write_state(folder: Path, state: ServerState, more: dict[str, Any]) -> None:
    from safetensors.numpy import save_file

    vectors: dict[str, Any] = {"params": state.params}
    numbers = {field.name: getattr(state, field.name) for field in fields(state) if field.name != "params"}
    for part in ("update", "output"):
        plain, arrays = _divided(numbers[part])
        numbers[part] = plain
        vectors |= {f"{part}.{name}": array for name, array in arrays.items()}
    save_file(vectors, folder / "state.safetensors")
    write_json(folder / "state.json", numbers | more)
    for file in ("state.safetensors", "state.json"):
        _sync(folder / file)


def _divided(state: State) -> tuple[State, State]:
    arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
    return {name: value for name, value in state.items() if name not in arrays}, arrays


def _read_state(folder: Path) -> tuple[ServerState, dict[str, Any]]:
    from safetensors.numpy import load_file

    numbers = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    vectors = load_file(folder / "state.safetensors")
    more = {name: numbers.pop(name) for name in ("events", "initial_workers", "wanted_workers")}
    numbers["jobs"] = {int(worker): jobs for worker, jobs in numbers["jobs"].items()}
    for part in ("update", "output"):
        prefix = f"{part}."
        numbers[part] |= {
            name.removeprefix(prefix): value for name, value in vectors.items() if name.startswith(prefix)
        }
    return ServerState(params=vectors["params"], **numbers), more


def _write_at(path: Path, offset: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], offset + written)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
