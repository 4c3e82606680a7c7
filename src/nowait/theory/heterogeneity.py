"""How far from the minimum asynchronous SGD stops when workers have different data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from nowait.core import Stepsize, checks
from nowait.core.types import Floats
from nowait.theory.speedup import speedup


def worker_weights(seconds: Iterable[float], stepsize: Stepsize) -> Floats:
    """Return each worker's share of the sum of all stepsizes, if a gradient takes it a constant number of seconds.

    Worker m sends 1/s_m gradients per second, each with a delay of about τ_m = s_m·Σ 1/s. So its share is proportional
    to γ(τ_m)/s_m. Equal shares would be 1/M. Rules that shrink the stepsizes of old gradients make the shares of slow
    workers smaller still. A stepsize that changes with the steps has the shares of its first step.

    >>> from nowait.core import Constant, DelayAdaptive
    >>> worker_weights([1.0, 1.0, 4.0], Constant(0.1)).round(3).tolist()
    [0.444, 0.444, 0.111]
    >>> worker_weights([1.0, 1.0, 4.0], DelayAdaptive(0.1)).round(3).tolist()
    [0.48, 0.48, 0.04]
    """
    checks.instance(stepsize, Stepsize, "stepsize", "nw.DelayAdaptive(0.01)")
    gain = speedup(seconds)
    sizes = np.asarray(stepsize(np.maximum(gain.delays, 1.0), gain.workers, 1), dtype=np.float64)
    shares = np.broadcast_to(sizes, gain.seconds.shape) / gain.seconds
    if not shares.sum() > 0:
        raise ValueError(f"{stepsize!r} is 0 for every worker: nothing would move")
    return np.asarray(shares / shares.sum())


def heterogeneity_floor(seconds: Iterable[float], differences: Any, stepsize: Stepsize) -> float:
    """Return the ‖∇F‖² at which asynchronous SGD stops because fast workers' data have more weight than 1/M.

    ``differences`` has a row for each worker m: b_m = ∇F_m − ∇F, at a point near the answer. Where the weighted sum of
    the workers' gradients is zero, ∇F = −Σ w_m·b_m, with the shares w_m of ``worker_weights``. So the floor is
    ‖Σ w_m·b_m‖². This is exact, up to noise, if the differences are the same everywhere. The rule γ·min(1, M/τ)
    *raises* the floor: it gives slow workers even less weight. ``GradientTable`` and ``RingleaderASGD`` have none.

    >>> from nowait.core import Constant, DelayAdaptive
    >>> opposite = [[1.0], [1.0], [-2.0]]
    >>> [
    ...     round(heterogeneity_floor([1.0, 1.0, 4.0], opposite, rule), 3)
    ...     for rule in (Constant(0.1), DelayAdaptive(0.1))
    ... ]
    [0.444, 0.774]
    """
    weights = worker_weights(seconds, stepsize)
    try:
        rows = np.asarray(differences, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"differences must be a table of numbers, ∇F_m − ∇F for every worker: {error}") from None
    if rows.ndim != 2 or len(rows) != len(weights):
        raise ValueError(
            f"differences must have a row for each of the {len(weights)} workers, ∇F_m − ∇F, got shape {rows.shape}"
        )
    if not np.isfinite(rows).all():
        raise ValueError("differences must be finite: they are gradients")
    return float(((weights @ rows) ** 2).sum())
