"""The view of a sweep: final loss against stepsize, and the loss curves of the stepsizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nowait.core.types import Floats
from nowait.html.numbers import compact
from nowait.recording import Sweep
from nowait.reports.curves import AXES, thin
from nowait.reports.words import in_words

MOST_STEPSIZES = 60
MOST_POINTS = 150


def sweep_payload(name: str, sweep: Sweep, minimum: float) -> dict[str, Any]:
    """Return the data of one sweep: for every stepsize the median and range of the final errors, and its curve."""
    order = np.argsort(sweep.stepsizes, kind="stable")
    order = order[np.linspace(0, len(order) - 1, min(len(order), MOST_STEPSIZES)).round().astype(np.int64)]
    losses = np.where(sweep.diverged, np.inf, sweep.decisive) - minimum
    initial = float(np.median(sweep.curves[:, :, 0])) - minimum
    usable = not bool(sweep.diverged.any(axis=1).all())
    return {
        "name": name,
        "seeds": len(sweep.seeds),
        "stepsize": compact(sweep.stepsizes[order].tolist()),
        "best": compact([sweep.best])[0] if usable else None,
        "initial": compact([initial])[0],
        "diverged": sweep.diverged[order].sum(axis=1).tolist(),
        "middle": compact(_middle(losses[order]).tolist()),
        "low": compact(losses[order].min(axis=1).tolist()),
        "high": compact(losses[order].max(axis=1).tolist()),
        "curves": [_curve(sweep, int(place), minimum) for place in order],
    }


def sweep_name(sweep: Sweep) -> str:
    """Return a name for a sweep: its method in words."""
    method = sweep.config.get("method")
    return in_words(str(method["type"])) if isinstance(method, Mapping) and "type" in method else "sweep"


def _middle(losses: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        middle: Floats = np.median(losses, axis=1)
    return middle


def _curve(sweep: Sweep, place: int, minimum: float) -> dict[str, Any]:
    """Return the median over the seeds of the loss curve of one stepsize, against every axis."""
    losses = sweep.curves[place] - minimum
    known = ~np.isnan(losses).any(axis=0)
    middle = _middle(losses[:, known].T)
    drawable = np.where(np.isfinite(middle), middle, np.nan_to_num(middle[np.isfinite(middle)].max(initial=0.0)))
    kept = thin(drawable, drawable, MOST_POINTS)
    axes = {axis: compact(np.median(getattr(sweep, axis)[place][:, known], axis=0)[kept].tolist()) for axis in AXES}
    return axes | {"y": compact(middle[kept].tolist())}
