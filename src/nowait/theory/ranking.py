"""Methods ranked by the time after which an accuracy is guaranteed, for given speeds and constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.core import checks
from nowait.core.types import Floats
from nowait.theory.constants import Constants, constants_of
from nowait.theory.durations import (
    longest_delay,
    ringleader_gradients_each,
    time_for,
    time_for_started,
    time_of_malenia_round,
)
from nowait.theory.goal import fewest_steps
from nowait.theory.guarantee import Prescription
from nowait.theory.limited import prescribe_ringleader, prescribe_ringmaster
from nowait.theory.rivals import prescribe_constant, prescribe_minibatch
from nowait.theory.rounds import (
    prescribe_m_synchronous,
    prescribe_malenia,
    prescribe_quantile,
    prescribe_rennala,
)
from nowait.theory.speedup import checked_seconds
from nowait.theory.theorems import known_case, prescribe

MOST_SIZES = 24
"""The number of group sizes that are compared where the best number of workers is looked for."""
Row = tuple[float, Prescription]
NEVER = math.inf


@final
@dataclass(frozen=True)
class RankedMethod:
    """A method with the time after which it is guaranteed to reach an accuracy."""

    method: str
    seconds: float
    """Infinite if no number of steps guarantees the accuracy."""
    prescription: Prescription | None
    """Parameters, stepsize, output, steps and guarantee; None if there is no guarantee."""


@final
@dataclass(frozen=True)
class _Cluster:
    """What all rows are computed from."""

    setting: str
    constants: Constants
    seconds: Floats
    """Sorted."""
    accuracy: float

    @property
    def workers(self) -> int:
        return len(self.seconds)

    @property
    def sizes(self) -> list[int]:
        """Numbers of workers to compare, from 1 to all."""
        return sorted({round(size) for size in np.geomspace(1, self.workers, MOST_SIZES).tolist()})


def ranking(
    seconds: Iterable[float], constants: Constants, accuracy: float, setting: str = "nonconvex"
) -> list[RankedMethod]:
    """Return all methods with a known guarantee, the one that reaches the accuracy first at the front.

    ``seconds`` are the workers' seconds per gradient, which are taken as fixed. The accuracy is in terms of the
    guarantees: F − F*, or ‖∇F‖² in the non-convex settings. Every method has the parameters and the stepsize that its
    prescription gives for the accuracy. The times are guaranteed, with the constants of the proofs: they are upper
    bounds, and two methods whose times differ by less than about 3 times may differ by their proofs only.

    >>> c = Constants(L=1.0, sigma=0.0, Delta=1.0)
    >>> first, *_, last = ranking([1.0, 1.0, 100.0], c, 0.01)
    >>> first.method, first.seconds, last.method, last.seconds
    ('m-synchronous SGD', 200.0, 'Ringleader ASGD', 125400.0)
    """
    case = known_case(setting, constants_of(constants), 1, 1)
    aim = checks.positive(accuracy, "accuracy", "it is the error to reach")
    cluster = _Cluster(setting, case.constants, np.sort(checked_seconds(seconds)), aim)
    rows = [
        RankedMethod(name, *(found if found is not None else (NEVER, None)))
        for name, find in METHODS.items()
        if name in _covering(setting)
        for found in [find(cluster)]
    ]
    return sorted(rows, key=lambda row: row.seconds)


def _least(rows: Iterator[Row | None]) -> Row | None:
    known = [row for row in rows if row is not None]
    return min(known, key=lambda row: row[0]) if known else None


def _found(make: Callable[[int], Prescription], accuracy: float, time: Callable[[int], float], least: int = 1) -> Any:
    """Return the time and the prescription with the fewest steps for the accuracy; None if there is none."""
    p = fewest_steps(make, accuracy, least)
    return None if p is None else (time(p.steps), p)


def _minibatch(c: _Cluster) -> Row | None:
    def make(steps: int) -> Prescription:
        return prescribe_minibatch(c.setting, c.constants, workers=c.workers, steps=steps)

    found: Row | None = _found(make, c.accuracy, lambda steps: steps * float(c.seconds[-1]))
    return found


def _m_synchronous(c: _Cluster) -> Row | None:
    def row(m: int) -> Row | None:
        def make(steps: int) -> Prescription:
            return prescribe_m_synchronous(c.setting, c.constants, workers=c.workers, m=m, cancel=True, steps=steps)

        found: Row | None = _found(make, c.accuracy, lambda steps: steps * float(c.seconds[m - 1]))
        return found

    return _least(row(m) for m in c.sizes)


def _rennala(c: _Cluster) -> Row:
    p = prescribe_rennala(c.setting, c.constants, workers=c.workers, accuracy=c.accuracy)
    return p.steps * time_for(p.parameters["batch"], c.seconds), p


def _malenia(c: _Cluster) -> Row:
    p = prescribe_malenia(c.setting, c.constants, workers=c.workers, accuracy=c.accuracy)
    return p.steps * time_of_malenia_round(p.parameters["batch"], c.seconds), p


def _quantile(c: _Cluster) -> Row | None:
    def row(m: int) -> Row:
        delay = longest_delay(c.seconds, float(c.seconds[m - 1]))
        share = float((1 / c.seconds[:m]).sum() / (1 / c.seconds).sum())
        p = prescribe_quantile(
            c.setting, c.constants, workers=c.workers, quantile=share, delay=delay, accuracy=c.accuracy
        )
        return time_for(p.steps * (2 * delay - 1) + delay - 1, c.seconds[:m]), p

    return _least(row(m) for m in c.sizes)


def _ringmaster(c: _Cluster) -> Row:
    p = prescribe_ringmaster(c.setting, c.constants, workers=c.workers, accuracy=c.accuracy)
    limit, longest = int(p.parameters["max_delay"]), longest_delay(c.seconds)
    if limit >= longest:  # nothing is dropped
        p = prescribe_ringmaster(c.setting, c.constants, workers=c.workers, max_delay=longest, accuracy=c.accuracy)
        return time_for(p.steps, c.seconds), p
    return math.ceil(p.steps / limit) * time_for_started(limit, c.seconds), p


def _ringleader(c: _Cluster) -> Row:
    each = ringleader_gradients_each(c.seconds)
    p = prescribe_ringleader(c.setting, c.constants, workers=c.workers, gradients_each=each, accuracy=c.accuracy)
    return math.ceil(p.steps / c.workers) * 2 * float(c.seconds[-1]), p


def _constant(c: _Cluster) -> Row | None:
    longest = longest_delay(c.seconds)

    def make(steps: int) -> Prescription:
        return prescribe_constant(c.setting, c.constants, workers=c.workers, steps=steps, max_delay=longest)

    found: Row | None = _found(make, c.accuracy, lambda steps: time_for(steps, c.seconds), 3 * c.workers)
    return found


def _adaptive(c: _Cluster, size: int | None = None) -> Row | None:
    workers = c.workers if size is None else size
    most = 2.4 if c.setting == "strongly-convex" else None

    def make(steps: int) -> Prescription:
        return prescribe(c.setting, c.constants, workers=workers, steps=steps, log_factor=most)

    found: Row | None = _found(make, c.accuracy, lambda steps: time_for(steps, c.seconds[:workers]), 3 * workers)
    return found


def _fastest(c: _Cluster) -> Row | None:
    return _least(_adaptive(c, size) for size in c.sizes)


METHODS: dict[str, Callable[[_Cluster], Row | None]] = {
    "Minibatch SGD": _minibatch,
    "m-synchronous SGD": _m_synchronous,
    "Constant-stepsize ASGD": _constant,
    "Delay-adaptive ASGD": _adaptive,
    "Delay-adaptive ASGD, fastest": _fastest,
    "Rennala SGD": _rennala,
    "Ringmaster ASGD": _ringmaster,
    "Asynchronous mini-batching": _quantile,
    "Malenia SGD": _malenia,
    "Ringleader ASGD": _ringleader,
}
FOR_DIFFERENT_DATA = (
    "Minibatch SGD",
    "Constant-stepsize ASGD",
    "Delay-adaptive ASGD",
    "Malenia SGD",
    "Ringleader ASGD",
)
ONLY_IN = {"Ringmaster ASGD": ("convex", "nonconvex"), "Ringleader ASGD": ("nonconvex", "heterogeneous")}


def _covering(setting: str) -> list[str]:
    """Return the methods that have a guarantee in a setting."""
    names = FOR_DIFFERENT_DATA if setting == "heterogeneous" else tuple(METHODS)
    return [name for name in names if setting in ONLY_IN.get(name, (setting,))]
