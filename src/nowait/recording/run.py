"""A finished run, and the folder it is saved in."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from nowait.core import checks
from nowait.core.capabilities import Capabilities
from nowait.core.types import Floats, Vector
from nowait.recording.diagnosis import diagnosis, table_of_workers
from nowait.recording.errors import DamagedFileError, NotARunError
from nowait.recording.files import (
    Contents,
    read_sealed,
    read_strictly_sealed,
    read_tensors,
    replace_by_pieces,
    sealed,
    tensor_pieces,
    write_json,
)
from nowait.recording.fresh import is_taken
from nowait.recording.history import History
from nowait.recording.identity import RUN, check_run, check_version, new_run_id, run_in
from nowait.recording.metrics import read_history, write_metrics
from nowait.recording.old_names import ENGINE_WAS, with_current_names
from nowait.recording.target import missed_target
from nowait.recording.trace import Trace
from nowait.recording.worker_stats import WorkerStats

logger = logging.getLogger("nowait")

CONFIG, METRICS, TRACE = "config.json", "metrics.jsonl", "trace.rows"
STATS, PARAMS = "stats.json", "params.safetensors"
STILL_RUNNING = "the run is still running"
"""How ``stats.advice`` of a run begins that another process is running."""
FILES = "files"
"""The entry of ``stats.json`` that has the checksums of other files."""


@final
@dataclass(frozen=True, eq=False)
class Stats:
    """The totals of a run. ``seconds`` is virtual in a simulation; ``wall_seconds`` is how long the call took."""

    steps: int
    """Steps that the server made."""
    gradients: int
    """Valid gradients that arrived: applied, held or dropped."""
    dropped: int
    """Valid gradients that the method did not use."""
    rejected: int
    """Gradients that were not finite, or of a wrong size or type; not counted in ``gradients``."""
    late: int
    """Gradients whose ticket had been cancelled; not counted in ``gradients``."""
    lost: int
    """Tickets lost with workers that left or died."""
    cancelled: int
    """Tickets that the method cancelled."""
    seconds: float
    """How long the run took; virtual in a simulation."""
    wall_seconds: float
    """How long the call took."""
    work_share: Floats
    """Each worker's share of the valid gradients, by worker number."""
    engine: str
    """What computed the run: "compiled" or "reference" (the two simulators), "processes", "ray" or "replay"."""
    diverged: bool
    """True if params, gradients or the loss were not finite, or the loss grew by a factor of 10²⁰."""
    advice: str = ""
    """What to do if the run did not go well; else empty."""
    interrupted: bool = False
    """Whether a signal ended it; such a run can be resumed."""
    bytes_up: int = 0
    """Bytes of the gradients that workers sent, in their compressed size."""
    bytes_down: int = 0
    """Bytes of the params sent to workers: one copy per ticket, but not the same version twice in a row."""
    not_compiled: str = ""
    """Why a simulation was not compiled; empty if it was, and for runs with real workers."""
    notes: int = 0
    """How many decisions the method noted; they are in ``trace.notes``."""
    last_note: str = ""
    """The last decision that the method noted, in a sentence; empty if it noted none."""
    by_worker: tuple[WorkerStats, ...] = field(default=(), repr=False)
    """Where each worker was, how much it delivered and where its time went; empty for simulations."""

    @property
    def way(self) -> str:
        """The former name of ``engine``."""
        return self.engine

    @property
    def diagnosis(self) -> str:
        """Who is slow, and why, in a sentence; empty for simulations."""
        return diagnosis(self.by_worker)

    @property
    def decision(self) -> str:
        """The method's last decision and how many there were, in a sentence; empty if it noted none."""
        return f"{self.last_note} (the last of {self.notes:,} decisions)" if self.notes > 1 else self.last_note

    def worker_table(self) -> str:
        """Return ``by_worker`` as a table: of each worker, how much it delivered and the share of each phase."""
        return table_of_workers(self.by_worker)

    @property
    def steps_per_second(self) -> float:
        """Steps per second of ``seconds``."""
        return self.steps / self.seconds if self.seconds > 0 else 0.0


@final
@dataclass(frozen=True, eq=False)
class Run:
    """The result of a run: the output rule's answer, the last iterate, the event log, the losses and the totals."""

    params: Vector
    """The answer of the output rule: ``last`` itself by default, an average of the iterates with an averaging rule."""
    last: Vector
    """x_K, the iterate after the last step, whatever the output rule."""
    trace: Trace
    """Every arrival and other event, in order."""
    history: History
    """Losses of iterates x_k, never of the output rule's answer."""
    stats: Stats
    """The totals: steps, gradients, seconds and each worker's share."""
    config: dict[str, Any] = field(default_factory=dict)
    """What was run, as text and numbers."""
    problem: Any = field(default=None, repr=False)
    """What was trained; None for a run that was loaded or unpickled."""

    def model(self, problem: Any = None) -> Any:
        """Return the model with ``params``, in evaluation mode, if the problem is a ``TorchProblem``.

        A run that was loaded does not know its problem: pass it.
        """
        problem = self.problem if problem is None else problem
        if problem is None:
            raise ValueError("a run that was loaded does not know its problem: write run.model(problem)")
        make = Capabilities.of(problem).model
        if make is None:
            raise TypeError(f"{type(problem).__name__} has no model: its result is run.params")
        return make(self.params)

    @property
    def missed_target(self) -> str:
        """What ``target_loss`` and ``target`` asked for if no evaluation reached it, such as "loss <= 0.1"; else empty.

        Empty as well for a run that a signal ended, or that has not finished.
        """
        is_over = not self.stats.interrupted and not self.stats.advice.startswith(STILL_RUNNING)
        return missed_target(self.config, self.history) if is_over else ""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the problem, whose data may be large."""
        return self.__dict__ | {"problem": None}

    def save(self, folder: str | Path) -> Path:
        """Write everything into a new or empty folder, completely or not at all."""
        target = Path(checks.path(folder))
        if is_taken(target):
            raise FileExistsError(
                f"{target} exists, and nothing is overwritten: choose another folder, such as "
                f"nw.fresh_folder({str(folder)!r})"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            config = {RUN: new_run_id()} | self.config
            self.trace.write(unfinished / TRACE, config[RUN])
            replace(self, config=config).write_results(unfinished)
            unfinished.chmod(0o755)
            os.rename(unfinished, target)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        return target

    def write_results(self, folder: Path) -> None:
        """Write everything but the trace into a folder. ``stats.json`` comes last: it marks the folder as complete.

        The configuration must have the id of the run.
        """
        contents = replace_by_pieces(folder / PARAMS, tensor_pieces({"params": self.params, "last": self.last}))
        write_metrics(folder / METRICS, self.config[RUN], self.history)
        write_json(folder / CONFIG, sealed(self.config))
        stats = asdict(self.stats) | {"work_share": self.stats.work_share.tolist()}
        more = {RUN: self.config[RUN], "evaluations": len(self.history), FILES: {PARAMS: contents._asdict()}}
        write_json(folder / STATS, sealed(stats | more))

    def _repr_html_(self) -> str:
        from nowait.recording.notebook import html_of_run

        return html_of_run(self)

    @property
    def _loss_step(self) -> str:
        """The step of the last loss if it is not the last step, because a signal ended the run before an evaluation."""
        step = int(self.history.step[-1])
        return "" if step == self.stats.steps else f" at step {step}"

    def __repr__(self) -> str:
        stats = self.stats
        loss = f", loss {self.history.loss[-1]:.6g}{self._loss_step}" if len(self.history) else ""
        end = ", diverged" if stats.diverged else f", target {self.missed_target} missed" if self.missed_target else ""
        note = f", {self.trace.notes[-1].short}" if self.trace.notes else ""
        return f"Run({stats.steps} steps, {stats.gradients} gradients, {stats.seconds:.6g} s{loss}{note}{end})"


def load_finished(source: Path, *, with_params: bool = True) -> Run:
    """Read the folder of a run whose results are written. Without params, theirs are empty and the file is not read."""
    needed = (*([PARAMS] if with_params else []), TRACE, METRICS, STATS, CONFIG)
    missing = [name for name in needed if not (source / name).is_file()]
    if missing:
        raise NotARunError(f"{source} is not a saved run: it has no {', no '.join(missing)}")
    config = read_config(source)
    run = run_in(config, source)
    stats, contents, evaluations = read_stats(source / STATS, run)
    params, last = _read_params(source / PARAMS, contents) if with_params else (np.empty(0), np.empty(0))
    history = read_history(source / METRICS, run).history()
    if len(history) < evaluations:
        logger.warning("%s is damaged: %d losses are missing", source / METRICS, evaluations - len(history))
    trace = Trace.load(source / TRACE)
    check_run(source / TRACE, trace.run, run)
    return Run(params=params, last=last, trace=trace, history=history, stats=stats, config=config)


def _read_params(path: Path, contents: Contents) -> tuple[Vector, Vector]:
    vectors = read_tensors(path, contents)
    if not {"params", "last"} <= set(vectors):
        raise DamagedFileError(path, "it has no params")
    return vectors["params"], vectors["last"]


def read_config(folder: Path) -> dict[str, Any]:
    """Return the entries of ``config.json``; raise ``DamagedFileError`` if its checksum differs."""
    config, has_checksum = read_sealed(folder / CONFIG)
    check_version(config, folder)
    if not has_checksum and (folder / TRACE).exists():
        logger.warning("%s has no checksum: it was changed by hand, or is damaged", folder / CONFIG)
    current: dict[str, Any] = with_current_names(config)
    return current


def read_stats(path: Path, run: str) -> tuple[Stats, Contents, int]:
    """Return the totals of a run, the recorded contents of ``params.safetensors``, and the number of evaluations."""
    values = read_strictly_sealed(path)
    check_run(path, values.pop(RUN, None), run)
    files, evaluations = values.pop(FILES, {}), values.pop("evaluations", 0)
    if ENGINE_WAS in values:
        values["engine"] = values.pop(ENGINE_WAS)
    unknown = set(values) - {field.name for field in fields(Stats)}
    if unknown:
        raise ValueError(f"{path} has unknown entries {sorted(unknown)}: was it written by another version?")
    try:
        values["work_share"] = np.array(values["work_share"], dtype=np.float64)
        values["by_worker"] = tuple(WorkerStats.of_dict(entry) for entry in values.get("by_worker", ()))
        return Stats(**values), Contents(**files[PARAMS]), int(evaluations)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(path, f"it does not hold the totals of a run ({error!r})") from None
