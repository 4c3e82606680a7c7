"""``nw.train(..., resume=True)``: the same call starts a run, continues it, or reads it if it is finished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, final

from nowait.api.recorded import read_config
from nowait.api.resume import resume
from nowait.api.same_parts import check_same_part, difference, plain
from nowait.api.training_plan import TrainingPlan
from nowait.core import Problem
from nowait.recording import Run
from nowait.recording.errors import OtherSettingsError
from nowait.recording.folder import RunFolder
from nowait.recording.identity import run_in
from nowait.recording.run import CONFIG
from nowait.recording.unfinished import load

MAY_CHANGE = {"audit", "budget", "engine", "speeds", "wire", "points_wire"}
"""The settings of a run that ``nw.resume`` may be given anew."""


@final
@dataclass(frozen=True)
class ExistingRun:
    """The run that a folder has already, when a call of ``nw.train`` starts, resumes or reads it."""

    folder: Path
    config: dict[str, Any]
    limits: Mapping[str, Any]
    """The budget of the call, for ``nw.resume``; empty if it is that of the run."""
    is_finished: bool
    """True if the run reached the end of the budget of the call."""

    @classmethod
    def of(cls, folder: Path, plan: TrainingPlan) -> ExistingRun | None:
        """Return the run in a folder; None if there is none. Its settings must be those of the call.

        ``plan.workers`` is None if the call does not say how many there are.
        """
        if not (folder / CONFIG).is_file():
            return None
        config = read_config(folder)
        TrainingPlan.of(config, plan.speeds, plan.engine or "processes")  # raises if nw.train did not make the run
        run = run_in(config, folder)
        for setting in fields(plan):
            if setting.name not in MAY_CHANGE and not (setting.name == "workers" and plan.workers is None):
                _check_same_setting(config, setting.name, getattr(plan, setting.name), folder)
        is_same = difference(config.get("budget"), plain(plan.budget), "budget") is None
        limits = {name: limit for name, limit in asdict(plan.budget).items() if limit is not None}
        finished = is_same and RunFolder(folder, plan.keep_checkpoints, run).is_finished()
        return cls(folder, config, {} if is_same else limits, finished)

    def run(self, problem: Problem, parts: Mapping[str, Any], options: Mapping[str, Any]) -> Run:
        """Return the run if it is finished, else resume it. ``parts`` are method, update and output of the call."""
        for name, part in parts.items():
            if part is not None and not options["allow_changes"]:
                check_same_part(self.config, name, part, self.folder)
        if self.is_finished:
            return replace(load(self.folder), problem=problem)
        return resume(self.folder, problem, **parts, **options, **self.limits)


def _check_same_setting(config: dict[str, Any], name: str, given: Any, folder: Path) -> None:
    found = difference(config.get(name), plain(given), name)
    if found is not None:
        entry, was, now = found
        raise OtherSettingsError(
            f"{entry} of the run in {folder} is {was}, this call has {now}: a run that is resumed keeps its settings, "
            f"so pass those of its first call, or choose another folder"
        )
