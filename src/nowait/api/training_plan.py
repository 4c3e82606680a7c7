"""The settings of a training run that ``config.json`` keeps, so that ``nw.resume`` can use them again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, final

from nowait.api.parts import checked_kept
from nowait.api.recorded import (
    budget_of,
    check_complete,
    count,
    count_or_none,
    engine_of,
    entry,
    flag,
    monitor_of,
    seconds_or_none,
    slowdown_keys,
)
from nowait.api.train_arguments import (
    IMMEDIATELY,
    check_slowed_workers,
    checked_slowdown,
    checked_speeds,
    checked_start,
    speeds_of,
    workers_of,
)
from nowait.core import Audit, checks
from nowait.core.audit import checked_audit
from nowait.core.randomness import checked_seed
from nowait.engines.budget import Budget
from nowait.fleet.options import Elsewhere, checked_engine
from nowait.problems.encodings import checked_encoding
from nowait.recording.monitor import Monitor
from nowait.speeds import Speeds


@final
@dataclass(frozen=True)
class TrainingPlan:
    """The checked settings of a training run: everything ``nw.resume`` needs besides problem, method and rules."""

    workers: int | tuple[int, int] | None
    """A number; the fewest and the most; or None for as many as the cluster has room for."""
    engine: Elsewhere | None
    """None for processes on this machine."""
    budget: Budget
    evaluate_every: int | None
    seed: int
    slowdown: dict[int, float]
    speeds: Speeds | None
    replace_hung: bool
    max_failures: int
    checkpoint_every: int | None
    checkpoint_seconds: float | None
    keep_checkpoints: int
    trace: str
    keep_best: Monitor | None = None
    wire: str | None = None
    """How gradients are sent to other machines. A run that is resumed keeps it, on any engine."""
    points_wire: str | None = None
    audit: Audit | None = None
    """Which gradients a second worker computes again; None: none."""
    start: str = IMMEDIATELY
    """When workers start: each as soon as it is ready, or all together."""

    def __post_init__(self) -> None:
        if self.checkpoint_every is not None:
            checks.at_least(1, self.checkpoint_every, "checkpoint_every", "it counts the steps between two of them")
        if self.checkpoint_seconds is not None:
            checks.positive(self.checkpoint_seconds, "checkpoint_seconds", "it is the time between two of them")

    @property
    def fewest(self) -> int:
        """The number of workers the run starts with."""
        return self.workers[0] if isinstance(self.workers, tuple) else self.workers or 1

    @property
    def most(self) -> int | None:
        """The largest number of workers wanted; None if that depends on the room in the cluster."""
        return self.workers[1] if isinstance(self.workers, tuple) else self.workers

    @classmethod
    def of(cls, config: dict[str, Any], speeds: Speeds | None, engine: str | Elsewhere | None) -> TrainingPlan:
        """Read the settings from a ``config.json``; ``speeds`` and ``engine`` replace its own where given."""
        added = {"engine": None, "trace": "full", "keep_best": None, "wire": None, "points_wire": None}
        config = added | {"start": IMMEDIATELY, "audit": True} | config
        needed = [*(field.name for field in fields(cls)), "method", "update", "output", "fingerprint"]
        check_complete(config, needed)
        cluster = entry(config, "engine", engine_of) if engine is None else checked_engine(engine)
        workers = entry(config, "workers", lambda value: workers_of(value, cluster))
        values = {name: entry(config, name, check) for name, check in _CHECKS.items()}
        plan = cls(
            workers=workers,
            engine=cluster,
            speeds=entry(config, "speeds", speeds_of) if speeds is None else checked_speeds(speeds),
            **values,
        )
        entry(config, "slowdown", lambda _: check_slowed_workers(plan.slowdown, plan.most))
        _check_wires(plan)
        return plan


def wires_of(engine: Elsewhere | None) -> dict[str, str | None]:
    """Return the settings ``wire`` and ``points_wire`` of an engine."""
    return {name: getattr(engine, name, None) for name in ("wire", "points_wire")}


def _check_wires(plan: TrainingPlan) -> None:
    """Raise if the engine of a resumed run would send vectors in another way than before: its trace has one way."""
    for name, given in wires_of(plan.engine).items():
        kept = getattr(plan, name)
        if given not in (None, kept):
            raise ValueError(f"the run began with {name}={kept!r}, which a resumed run keeps: engine= has {given!r}")


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "budget": budget_of,
    "evaluate_every": count_or_none,
    "seed": checked_seed,
    "slowdown": lambda value: checked_slowdown(slowdown_keys(value)),
    "replace_hung": flag,
    "max_failures": count(0),
    "checkpoint_every": count_or_none,
    "checkpoint_seconds": seconds_or_none,
    "keep_checkpoints": count(1),
    "trace": checked_kept,
    "keep_best": monitor_of,
    "wire": lambda value: checked_encoding(value, "it", points=False),
    "points_wire": lambda value: checked_encoding(value, "it", points=True),
    "start": checked_start,
    "audit": checked_audit,
}
"""How each entry of ``config.json`` that is a field of the same name is checked."""
