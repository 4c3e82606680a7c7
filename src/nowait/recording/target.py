"""The loss or metrics that a run is to reach, and whether it did."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nowait.core.problem import TRAINING_LOSS
from nowait.recording.history import History
from nowait.recording.monitor import Monitor

Goals = Mapping[str, tuple[str, float]]
"""A sign and a value for every metric: ("<=", 20.0)."""


def is_reached(values: Mapping[str, float], target_loss: float | None, goals: Goals | None) -> bool:
    """Return True if the values of one evaluation, with the loss, reach ``target_loss`` or all goals.

    Raises a ValueError if there is no metric of the name of a goal.
    """
    if target_loss is not None and values["loss"] <= target_loss:
        return True
    known = {TRAINING_LOSS: math.nan} | dict(values)
    found = [_is_past(Monitor.of(name).value(known), *goal) for name, goal in (goals or {}).items()]
    return bool(found) and all(found)


def missed_target(config: Mapping[str, Any], history: History) -> str:
    """Return what a run was to reach and did not in any evaluation, in words; empty if there is nothing.

    >>> from nowait.recording.history import HistoryRecorder
    >>> recorder = HistoryRecorder()
    >>> recorder.add(step=10, gradients=10, time=1.0, loss=0.25)
    >>> missed_target({"budget": {"target_loss": 0.1}}, recorder.history())
    'loss <= 0.1'
    """
    loss, goals = _recorded(config.get("budget"))
    values = [dict.fromkeys(goals, math.nan) | row for row in history.rows()]
    if (loss is None and not goals) or any(is_reached(row, loss, goals) for row in values):
        return ""
    words = [] if loss is None else [f"loss <= {loss:g}"]
    if goals:
        words.append(" and ".join(f"{name} {sign} {value:g}" for name, (sign, value) in goals.items()))
    return " or ".join(words)


def _recorded(budget: Any) -> tuple[float | None, dict[str, tuple[str, float]]]:
    """Return ``target_loss`` and the goals in the description of a budget, as far as they are numbers."""
    values: dict[str, Any] = budget if isinstance(budget, dict) else {}
    loss, target = values.get("target_loss"), values.get("target")
    goals: dict[str, Any] = target if isinstance(target, dict) else {}
    return (
        float(loss) if isinstance(loss, int | float) else None,
        {name: (goal[0], float(goal[1])) for name, goal in goals.items() if _is_goal(goal)},
    )


def _is_goal(goal: Any) -> bool:
    return isinstance(goal, list | tuple) and len(goal) == 2 and isinstance(goal[1], int | float)


def _is_past(value: float, sign: str, goal: float) -> bool:
    return value <= goal if sign == "<=" else value >= goal
