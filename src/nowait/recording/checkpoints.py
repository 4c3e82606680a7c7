"""The checkpoints of a run: folders ``step_N`` with the scalars and vectors of the server's state, and the model."""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from nowait.core.state import PARTS, ServerState, State
from nowait.core.types import Vector
from nowait.recording.errors import DamagedFileError
from nowait.recording.files import (
    Contents,
    check_contents,
    json_bytes,
    read_strictly_sealed,
    read_tensors,
    sealed,
    sync,
    tensor_pieces,
    vector_checksum,
    write_file,
)
from nowait.recording.history import HistoryRecorder
from nowait.recording.identity import RUN, check_run
from nowait.recording.journal import Position
from nowait.recording.model_file import MODEL, ModelFile, read_params, rest_of
from nowait.recording.tally import Tally

NUMBERS, VECTORS = "state.json", "state.safetensors"
REST = "params_rest"
"""The entries of params that ``model.safetensors`` does not have; without that file, the vectors have "params"."""
MORE = (RUN, "initial_workers", "wanted_workers", "evaluations", "losses_checksum", "loss")
"""The entries of a checkpoint's numbers that are not the server's."""
NAME = re.compile(r"step_(0|[1-9][0-9]{0,18})")


@final
@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a step."""

    state: ServerState
    initial_workers: list[int]
    """The workers at the start of the run; ``state.workers`` are those at the checkpoint."""
    wanted: list[int]
    """The workers that a resumed run should have, including those that were being replaced."""
    position: Position
    """The end of the trace at the checkpoint."""
    tally: Tally
    evaluations: int
    """The number of losses in the history."""
    losses_checksum: int
    """The checksum of these losses, see ``HistoryRecorder.checksum``."""
    loss: float
    """The latest loss; NaN if there was none."""
    history: HistoryRecorder = field(default_factory=HistoryRecorder)
    """The losses up to the checkpoint; set when a checkpoint is read."""
    model_file: ModelFile | None = None
    """What to write to ``model.safetensors``; None: there is no such file, as for problems without a model."""
    run: str = ""
    """The id of the run; set when a checkpoint is read."""

    @property
    def is_start(self) -> bool:
        """True for the checkpoint of the start: no worker had a ticket yet."""
        return self.state.next_ticket == 0

    @property
    def num_bytes(self) -> int:
        """The size of the checkpoint's vectors."""
        return sum(array.nbytes for array in _vectors(self.state).values())

    def without_vectors(self) -> Checkpoint:
        """Return the checkpoint without the vectors of its state, which may be large."""
        return replace(self, state=replace(self.state, params=np.empty(0), update={}, output={}, method={}))


class Written(NamedTuple):
    """A checkpoint that was written."""

    path: Path
    step: int
    checksum: int
    """The checksum of its params."""


@final
class CheckpointFolder:
    """The folder ``checkpoints`` of a run. Only files that it wrote itself are deleted. ``run`` is the run's id."""

    def __init__(self, path: Path, keep: int, run: str = "") -> None:
        self.path = path
        self._run = run
        self._keep = keep
        self._losses: dict[int, float] = {}

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, damaged ones included, newest first."""
        names = (NAME.fullmatch(path.name) for path in self.path.glob("step_*") if path.is_dir())
        return sorted((int(name[1]) for name in names if name is not None), reverse=True)

    def folder_of(self, step: int) -> Path:
        """Return the path of this step's checkpoint."""
        return self.path / f"step_{step}"

    def write(self, checkpoint: Checkpoint, sync_trace: Callable[[], None]) -> Written | None:
        """Write a checkpoint; return None if this step already has one.

        A crash at any moment leaves the earlier checkpoints unchanged.
        """
        target = self.folder_of(checkpoint.state.steps)
        sync_trace()
        if target.exists():
            return None
        unfinished = self.path / f".{target.name}"
        _remove(unfinished)
        unfinished.mkdir(exist_ok=True)
        checksum = _write_state(unfinished, checkpoint, self._run)
        sync(unfinished)
        os.rename(unfinished, target)
        sync(self.path)
        self._losses[checkpoint.state.steps] = checkpoint.loss
        self._remove_old()
        return Written(target, checkpoint.state.steps, checksum)

    def read(self, step: int) -> Checkpoint:
        """Read a checkpoint; raise ``DamagedFileError`` if it is damaged, ``OtherRunError`` if another run wrote it."""
        checkpoint = _read_state(self.folder_of(step))
        check_run(self.folder_of(step), checkpoint.run, self._run)
        if checkpoint.state.steps != step:
            raise DamagedFileError(self.folder_of(step), f"it contains step {checkpoint.state.steps}")
        self._losses[step] = checkpoint.loss
        return checkpoint

    def remove_later(self, step: int) -> None:
        """Remove the checkpoints after this step."""
        for later in self.steps():
            if later > step:
                _remove(self.folder_of(later))
                self._losses.pop(later, None)

    def remove_all(self) -> None:
        """Remove all checkpoints, and the folder if it is empty then."""
        unfinished = [path for path in self.path.glob(".step_*") if NAME.fullmatch(path.name[1:])]
        for folder in (*map(self.folder_of, self.steps()), *unfinished):
            _remove(folder)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def _remove_old(self) -> None:
        """Keep the newest, and the one with the lowest loss: checkpoints after a divergence are useless."""
        steps = self.steps()
        best = min(steps, key=lambda step: (_comparable(self._losses.get(step, math.nan)), -step))
        for step in steps[self._keep :]:
            if step != best:
                _remove(self.folder_of(step))
                self._losses.pop(step, None)


def _comparable(loss: float) -> float:
    return math.inf if math.isnan(loss) else loss


def _remove(folder: Path) -> None:
    """Remove the files of a checkpoint, and its folder if it is empty then."""
    for name in (NUMBERS, VECTORS, MODEL):
        with contextlib.suppress(OSError):
            (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _write_state(folder: Path, checkpoint: Checkpoint, run: str) -> int:
    """Write the files of a checkpoint and return the checksum of its params."""
    state, model_file = checkpoint.state.on_host(), checkpoint.model_file
    vectors = _vectors(state)
    model = None
    if model_file is not None:
        model = write_file(folder / MODEL, model_file.pieces(state.params))._asdict() | {"params": model_file.places}
        if model_file.places:  # all params but a few are in that file: they are not written twice
            vectors = {REST: rest_of(vectors.pop("params"), model_file.places)} | vectors
    contents = write_file(folder / VECTORS, tensor_pieces(vectors))
    numbers: dict[str, Any] = {
        entry.name: getattr(state, entry.name) for entry in fields(state) if entry.name != "params"
    }
    for part in PARTS:
        numbers[part] = {name: value for name, value in numbers[part].items() if not _is_vector(value)}
    numbers |= {
        RUN: run,
        "initial_workers": checkpoint.initial_workers,
        "wanted_workers": checkpoint.wanted,
        "trace": checkpoint.position._asdict(),
        "tally": checkpoint.tally.state(),
        "evaluations": checkpoint.evaluations,
        "losses_checksum": checkpoint.losses_checksum,
        "loss": checkpoint.loss,
        "vectors": contents._asdict(),
    } | ({} if model is None else {"model": model})
    write_file(folder / NUMBERS, [json_bytes(sealed(numbers))])
    return vector_checksum(state.params)


def _is_vector(value: Any) -> bool:
    return hasattr(value, "shape") and not isinstance(value, np.generic)


def _vectors(state: ServerState) -> dict[str, Any]:
    vectors: dict[str, Any] = {"params": state.params}
    for part in PARTS:
        vectors |= {f"{part}.{name}": value for name, value in getattr(state, part).items() if _is_vector(value)}
    return vectors


def _read_state(folder: Path) -> Checkpoint:
    numbers = read_strictly_sealed(folder / NUMBERS)
    try:
        vectors = read_tensors(folder / VECTORS, Contents(**numbers.pop("vectors")))
        params = _read_params(folder, vectors, numbers.pop("model", None))
        trace, tally = Position(**numbers.pop("trace")), Tally.restored(numbers.pop("tally"))
        more = {name: numbers.pop(name) for name in MORE}
        numbers["jobs"] = {int(worker): jobs for worker, jobs in numbers["jobs"].items()}
        for part in PARTS:
            numbers[part] = numbers.get(part, {}) | _part(vectors, f"{part}.")
        state = ServerState(params=params, **numbers)
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedFileError(folder / NUMBERS, f"an entry is missing or has the wrong type ({error!r})") from None
    workers = more.pop("initial_workers"), more.pop("wanted_workers")
    return Checkpoint(state, *workers, trace, tally, **more)


def params_in(folder: Path) -> Vector:
    """Return the params of a complete checkpoint."""
    params: Vector = _read_state(folder).state.params
    return params


def _read_params(folder: Path, vectors: State, model: dict[str, Any] | None) -> Any:
    """Return the params, and check ``model.safetensors``, if the checkpoint has it."""
    if model is None:
        return vectors["params"]
    contents = Contents(model["bytes"], model["crc32"])
    try:
        places = {name: (int(start), int(stop)) for name, (start, stop) in model["params"].items()}
    except ValueError:
        raise DamagedFileError(folder / NUMBERS, "a place in params is not a pair of numbers") from None
    if not places:
        check_contents(folder / MODEL, contents)
        return vectors["params"]
    return read_params(folder / MODEL, contents, places, vectors[REST])


def _part(vectors: State, prefix: str) -> State:
    return {name.removeprefix(prefix): value for name, value in vectors.items() if name.startswith(prefix)}


@final
class BackgroundWrite:
    """Writes one checkpoint in a background thread."""

    def __init__(self, write: Callable[[], Written | None]) -> None:
        self._write = write
        self._written: Written | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nowait-checkpoint", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """True once the checkpoint has been written or writing has failed."""
        return self._done.is_set()

    def result(self, timeout_seconds: float | None = None) -> Written | None:
        """Wait for the thread and return what it has written; re-raise the thread's exception."""
        self._thread.join(timeout_seconds)
        if self._error is not None:
            raise self._error
        return self._written

    def _run(self) -> None:
        try:
            self._written = self._write()
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()


def newest_whole(
    folder: CheckpointFolder, positions: Sequence[Position], trouble: str
) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest intact checkpoint whose trace is intact too, and what is wrong with the newer ones.

    ``positions`` are the ends of the intact frames of the trace. Raises ``OtherRunError`` if another run wrote the
    newest intact checkpoint.
    """
    damages = []
    for step in folder.steps():
        try:
            checkpoint = folder.read(step)
        except DamagedFileError as error:
            damages.append(str(error))
            continue
        length, frames, checksum = checkpoint.position
        if not 0 < frames <= len(positions) or positions[frames - 1].length != length:
            damages.append(trouble or f"the trace ends before the checkpoint of step {step}")
        elif positions[frames - 1].checksum != checksum:
            damages.append(
                f"the trace is damaged: before the checkpoint of step {step} it has another history of the run"
            )
        elif checkpoint.wanted:
            return checkpoint, damages
    return None, damages
