"""A plan: the arrivals of a run and what its method does with each, made before any gradient is computed.

When gradients arrive does not depend on their values. So a run whose method does not read vectors can be split into a
plan, made by the method itself, and its execution, which is arithmetic only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from nowait.core.ledger import Counts
from nowait.core.notes import Note
from nowait.core.outputs import Uses
from nowait.core.types import Floats, Integers

ARRIVE, EVENT, APPLY, STEP, ADD, MERGE, CLEAR, FIRST_SUM = range(8)
"""The instructions. ARRIVE begins those of an arrival and EVENT those of another event. In ``codes``, ADD, CLEAR and
STEP are followed by a sum and MERGE by two: the one numbered n is FIRST_SUM + n. In ``numbers``, APPLY has a stepsize,
ADD and MERGE a weight, STEP a stepsize and a scale."""


READS_PARAMS, READS_POINTS = "the method reads params", "the method reads points"
READS_GRADIENTS, READS_SUMS = "the method reads gradients", "the method reads a sum of gradients"
READS_UPDATE = "the method reads server.update"
MAKES_DIRECTIONS = "the method makes directions of its own"
NO_PROGRESS = "the method makes no progress, which the reference simulation notices"
READING_VECTORS = (READS_PARAMS, READS_POINTS, READS_GRADIENTS, READS_SUMS, MAKES_DIRECTIONS)
"""The reasons why a method that needs the values of vectors has no plan."""


class NotPlannable(BaseException):
    """A run cannot be made from a plan. ``reason`` is the text for ``stats.not_compiled``.

    A ``BaseException``, so that a method that catches errors does not catch it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@final
@dataclass(frozen=True, eq=False)
class Plan:
    """The arrivals of a run and the instructions of its method."""

    arrivals: NDArray[np.void]
    """The rows of the trace, complete but for the norms of the gradients."""
    events: NDArray[np.void]
    """The other events of the trace."""
    codes: NDArray[np.int32]
    numbers: Floats
    num_sums: int
    moments: Moments
    counts: Counts
    num_tickets: int
    uses: Uses | None
    """What an averaging output needs; None if it was not asked for."""
    seconds: float | None = None
    """The virtual seconds of the run, if the time budget ended it."""
    advice: str = ""
    """Why there are no more events, if that ended the run."""
    notes: tuple[Note, ...] = ()
    """What the method noted."""

    @property
    def num_steps(self) -> int:
        """The number of steps of the plan."""
        return self.moments.steps_after(len(self.moments) - 1)


@final
@dataclass(frozen=True, eq=False)
class Moments:
    """Time, steps and gradients after each event."""

    time: Floats
    steps: Integers
    gradients: Integers
    codes: Integers | None = None
    """How many entries of the plan's codes are executed. None: one for every event, and one for every step."""

    @classmethod
    def of(cls, codes: NDArray[np.int32], arrivals: NDArray[np.void], events: NDArray[np.void]) -> Moments:
        """Compute them from the instructions of a plan."""
        begins = np.flatnonzero((codes == ARRIVE) | (codes == EVENT))
        ends = np.append(begins[1:], len(codes)) if len(begins) else begins
        is_arrival = codes[begins] == ARRIVE
        time = np.empty(len(begins))
        time[is_arrival], time[~is_arrival] = arrivals["time"], events["time"]
        steps = np.cumsum((codes == APPLY) | (codes == STEP))[ends - 1]
        return cls(time, steps, np.cumsum(is_arrival), ends)

    def __len__(self) -> int:
        return len(self.time)

    def steps_after(self, event: int) -> int:
        """The number of steps after an event; -1 is the start."""
        return int(self.steps[event]) if event >= 0 else 0

    def codes_after(self, event: int) -> int:
        """How many entries of the plan's codes are executed after an event."""
        return event + 1 + self.steps_after(event) if self.codes is None else int(self.codes[event])

    def stepped_at(self, event: int) -> float:
        """The time of the latest step after an event."""
        steps = self.steps_after(event)
        return float(self.time[np.searchsorted(self.steps, steps)]) if steps else 0.0

    def first_due(self, start: int, steps: float, gradients: float, time: float) -> int:
        """Return the first event from ``start`` on that reaches one of these limits; the last one if none does."""
        places = [
            int(column[start:].searchsorted(_as_entry(column, limit)))
            for column, limit in ((self.steps, steps), (self.gradients, gradients), (self.time, time))
            if limit < math.inf
        ]
        return min(start + min(places, default=len(self)), len(self) - 1)


def _as_entry(column: NDArray[Any], limit: float) -> float:
    """Return the limit, rounded up for integers: to search for a float, numpy would convert the whole column."""
    return math.ceil(limit) if column.dtype.kind == "i" else limit


def uses_of(versions: Integers, weights: Floats, stepsizes: Floats) -> Uses:
    """Return what an averaging output needs, of gradients at ``versions`` that were used with stepsizes ``weights``.

    ``stepsizes`` are those of all steps. The initial params (version 0) have no share in an average.
    """
    later = versions > 0
    sums = np.concatenate([[0.0], np.cumsum(stepsizes)])
    return Uses(versions[later], weights[later], sums[versions[later]], len(stepsizes))


def as_array(values: Any, dtype: Any) -> NDArray[Any]:
    """Return a view of a Python array as a numpy array."""
    return np.frombuffer(values, dtype=dtype) if len(values) else np.empty(0, dtype)
