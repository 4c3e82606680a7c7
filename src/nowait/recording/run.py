"""A finished run, and the folder it is saved in."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, final

import numpy as np

from nowait.core.types import Floats, Vector
from nowait.recording.history import History, HistoryRecorder
from nowait.recording.trace import Trace


@final
@dataclass(frozen=True, eq=False)
class Stats:
    """The totals of a run. ``seconds`` are virtual in a simulation; ``wall_seconds`` are those you waited."""

    steps: int
    gradients: int
    dropped: int
    rejected: int
    late: int
    lost: int
    cancelled: int
    seconds: float
    wall_seconds: float
    work_share: Floats
    """Each worker's share of the valid gradients, by worker number."""
    way: str
    diverged: bool
    advice: str = ""
    """What to do about it, where the run did not go well."""
    interrupted: bool = False
    """Whether a signal ended it; such a run can be resumed."""
    bytes_up: int = 0
    """What the gradients that workers sent take, as compressed as they were."""
    bytes_down: int = 0
    """What the params take that workers were given: a copy per ticket, but not twice in a row of the same version."""

    @property
    def steps_per_second(self) -> float:
        """Steps per second of ``seconds``."""
        return self.steps / self.seconds if self.seconds > 0 else 0.0


@final
@dataclass(frozen=True, eq=False)
class Run:
    """What a run leaves behind: the answer, the last params, the event log, the losses, the totals."""

    params: Vector
    """The output rule's answer."""
    last: Vector
    """x_K, the params after the last step."""
    trace: Trace
    history: History
    stats: Stats
    config: dict[str, Any] = field(default_factory=dict)
    """What was run, in plain words and numbers."""

    def save(self, folder: str | Path) -> Path:
        """Write everything into a new folder, completely or not at all."""
        target = Path(folder)
        if target.exists():
            raise FileExistsError(f"{target} exists: nothing is overwritten; choose another folder or remove it")
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            self.write(unfinished)
            unfinished.chmod(0o755)
            os.rename(unfinished, target)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        return target

    def write(self, folder: Path) -> None:
        """Write everything into a folder that is there; ``stats.json`` comes last, and says that it is complete."""
        from safetensors.numpy import save

        replace_file(folder / "params.safetensors", save({"params": self.params, "last": self.last}))
        self.trace.save(folder / "trace.npz")
        lines = "".join(json.dumps(row) + "\n" for row in self.history.rows())
        replace_file(folder / "metrics.jsonl", lines.encode())
        write_json(folder / "config.json", self.config)
        stats = asdict(self.stats) | {"work_share": self.stats.work_share.tolist()}
        write_json(folder / "stats.json", stats)

    @property
    def _loss_step(self) -> str:
        """Which step the last loss is of, if it is not the last one: a signal ended the run before it was evaluated."""
        step = int(self.history.step[-1])
        return "" if step == self.stats.steps else f" at step {step}"

    def __repr__(self) -> str:
        stats = self.stats
        loss = f", loss {self.history.loss[-1]:.6g}{self._loss_step}" if len(self.history) else ""
        diverged = ", diverged" if stats.diverged else ""
        return f"Run({stats.steps} steps, {stats.gradients} gradients, {stats.seconds:.6g} s{loss}{diverged})"


def load(folder: str | Path) -> Run:
    """Read a run that ``Run.save`` wrote. No pickle is loaded."""
    from safetensors.numpy import load_file

    source = Path(folder)
    needed = ("params.safetensors", "trace.npz", "metrics.jsonl", "stats.json", "config.json")
    missing = [name for name in needed if not (source / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{source} is not a saved run: it has no {', no '.join(missing)}")
    vectors = load_file(source / "params.safetensors")
    return Run(
        params=vectors["params"],
        last=vectors["last"],
        trace=Trace.load(source / "trace.npz"),
        history=read_history(source / "metrics.jsonl").history(),
        stats=_read_stats(source / "stats.json"),
        config=json.loads((source / "config.json").read_text(encoding="utf-8")),
    )


def read_history(path: Path) -> HistoryRecorder:
    """The evaluations in a file of metrics; a last line that was cut off in a crash is left out."""
    recorder = HistoryRecorder()
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            recorder.add(**json.loads(line))
    return recorder


def _read_stats(path: Path) -> Stats:
    values = json.loads(path.read_text(encoding="utf-8"))
    unknown = set(values) - {field.name for field in fields(Stats)}
    if unknown:
        raise ValueError(f"{path} has unknown entries {sorted(unknown)}: was it written by another version?")
    values["work_share"] = np.array(values["work_share"], dtype=np.float64)
    return Stats(**values)


def write_json(path: Path, value: Any) -> None:
    """Write a file of JSON that people can read."""
    replace_file(path, (json.dumps(value, indent=2) + "\n").encode())


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: a crash leaves what was there before."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    with open(unfinished, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
