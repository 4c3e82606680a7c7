"""Plans of methods that declare what they do with every arrival, made by compiled code."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nowait.core import ApplyAtOnce, Constant, DelayAdaptive, Outcome, Stepsize
from nowait.core.ledger import Counts, delays_at_end
from nowait.core.outputs import Uses
from nowait.core.types import Floats, Integers
from nowait.engines.budget import Budget
from nowait.engines.simulator.alarms import FOREVER
from nowait.engines.simulator.plan import APPLY, ARRIVE, Moments, NotPlannable, Plan, uses_of
from nowait.recording.rows import ARRIVAL_DTYPE, EVENT_DTYPE, OUTCOME_CODES
from nowait.speeds.formula import Formula

ROWS_AT_A_TIME = 1 << 18
FIRST_ROWS = 1 << 16
"""The initial size of the array of arrivals if their number is unknown; it is doubled when it is full."""
MOST = np.iinfo(np.int64).max
CHECKED = 64
"""How many stepsizes computed with arrays are compared with those computed one by one."""
KNOWN_AT = (Stepsize.at, Constant.at, DelayAdaptive.at)
"""The implementations of ``Stepsize.at`` that are known to agree with the rule itself."""


def scheduled_plan(
    declared: ApplyAtOnce,
    formula: Formula,
    workers: list[int],
    budget: Budget,
    *,
    averaging: bool,
    weigh_in_flight: bool = True,
    most_events: float = math.inf,
    should_continue: Callable[[], bool] = lambda: True,
) -> Plan:
    """Return the plan that the method itself would make. It ends early when ``should_continue()`` returns False."""
    schedule = _start(formula, workers)
    arrivals, out_of_time = _arrivals(schedule, declared, budget, most_events, should_continue)
    if out_of_time and budget.seconds is None:
        raise NotPlannable("no worker will ever finish")
    num_arrivals, num_steps = len(arrivals), int(schedule.counts[0])
    applied: Any = slice(None) if num_arrivals == num_steps else arrivals["step"] > 0
    made_steps = arrivals[applied]
    stepsizes = stepsizes_of(declared.stepsize, made_steps["delay"], len(workers), made_steps["step"])
    arrivals["stepsize"][applied] = stepsizes
    counted = np.arange(1, num_arrivals + 1)
    steps = counted if num_arrivals == num_steps else np.cumsum(applied)
    return Plan(
        arrivals=arrivals,
        events=np.empty(0, EVENT_DTYPE),
        codes=_codes(steps),
        numbers=stepsizes,
        num_sums=0,
        moments=Moments(np.ascontiguousarray(arrivals["time"]), steps, counted),
        counts=Counts(gradients=num_arrivals, dropped=num_arrivals - num_steps),
        num_tickets=num_arrivals + len(workers),
        uses=_uses(made_steps, stepsizes, schedule, declared, weigh_in_flight) if averaging else None,
        seconds=budget.seconds if out_of_time else None,
    )


@cache
def kernels() -> Any:
    """The module ``schedule_kernels``, imported at the first use."""
    from nowait.engines.simulator import schedule_kernels as module

    return module


def _start(formula: Formula, workers: list[int]) -> Any:
    compiled, size = kernels(), len(workers)
    schedule = compiled.Schedule(
        formula=formula,
        workers=np.array(workers, np.int64),
        times=np.empty(size),
        places=np.empty(size, np.int32),
        running=np.empty(size, compiled.TICKET),
        counts=np.zeros(2, np.int64),
    )
    compiled.start_schedule(schedule)
    return schedule


def _arrivals(
    schedule: Any, declared: ApplyAtOnce, budget: Budget, most_events: float, should_continue: Callable[[], bool]
) -> tuple[NDArray[np.void], bool]:
    """Return all arrivals, and whether the time budget ended them."""
    most_rows = int(min(most_events, budget.gradients or MOST))
    most_steps = budget.steps or MOST
    end = FOREVER if budget.seconds is None else budget.seconds
    known = budget.steps is not None or budget.gradients is not None
    arrivals = _room_for(min(most_rows, most_steps if known else FIRST_ROWS))
    rows = 0
    while rows < most_rows and schedule.counts[0] < most_steps and schedule.times[0] <= end and should_continue():
        if rows == len(arrivals):
            arrivals = np.concatenate([arrivals, _room_for(min(len(arrivals), most_rows - rows))])
        rows += kernels().write_arrivals(
            schedule,
            arrivals[rows : rows + ROWS_AT_A_TIME],
            MOST if declared.max_delay is None else declared.max_delay,
            most_steps,
            end,
            OUTCOME_CODES[Outcome.APPLIED],
            OUTCOME_CODES[Outcome.DROPPED],
        )
    out_of_time = rows < most_rows and schedule.counts[0] < most_steps and schedule.times[0] > end
    return arrivals[:rows], bool(out_of_time)


def _room_for(num_arrivals: int) -> NDArray[np.void]:
    """Return an array for this number of arrivals; raise ValueError if it does not fit into memory."""
    try:
        return np.empty(num_arrivals, ARRIVAL_DTYPE)
    except (MemoryError, ValueError):  # NumPy's own limit
        raise ValueError(
            f"the {num_arrivals:,} arrivals of a run do not fit into memory, where the whole run is planned before it "
            f"is simulated: give fewer steps or gradients"
        ) from None


def stepsizes_of(rule: Stepsize, delays: Integers, num_workers: int, steps: Integers, checked: int = CHECKED) -> Floats:
    """Return the stepsizes of all arrivals in one call; ``NotPlannable`` if they differ from those of single calls."""
    if type(rule).at not in KNOWN_AT:
        raise NotPlannable("the stepsize has an at() of its own")
    try:
        stepsizes = np.asarray(rule(delays, num_workers, steps), dtype=np.float64)
    except Exception as error:  # a user's rule that takes numbers only
        raise NotPlannable("the stepsize does not take arrays") from error
    if stepsizes.shape != delays.shape or not ((stepsizes >= 0) & (stepsizes < math.inf)).all():
        raise NotPlannable("the stepsizes are not all finite and at least 0")
    for place in range(0, len(delays), max(1, len(delays) // checked)):
        alone = float(rule(int(delays[place]), num_workers, int(steps[place])))
        if not math.isclose(alone, stepsizes[place], rel_tol=1e-12):
            raise NotPlannable("the stepsize gives other numbers for arrays")
    return np.ascontiguousarray(stepsizes)


def _codes(steps: Integers) -> NDArray[np.int32]:
    """Return ARRIVE for every arrival, followed by APPLY if it makes a step; ``steps`` are the steps after each."""
    num_steps = int(steps[-1]) if len(steps) else 0
    if num_steps == len(steps):
        return np.tile(np.array([ARRIVE, APPLY], np.int32), num_steps)
    codes = np.full(len(steps) + num_steps, ARRIVE, np.int32)
    makes_step = np.diff(steps, prepend=0) > 0
    codes[(np.arange(len(steps)) + steps)[makes_step]] = APPLY
    return codes


def _uses(
    applied: NDArray[np.void], stepsizes: Floats, schedule: Any, declared: ApplyAtOnce, weigh_in_flight: bool
) -> Uses:
    """Return the gradients applied, then those in flight by ticket, as ``Ledger._weigh_in_flight`` weighs them."""
    steps, versions, weights = len(applied), applied["version"], stepsizes
    if steps and weigh_in_flight:
        in_flight = schedule.running["version"][np.argsort(schedule.running["id"])]
        delays = delays_at_end(in_flight, steps)
        pending = stepsizes_of(declared.stepsize, delays, len(in_flight), np.full(len(in_flight), steps))
        if declared.max_delay is not None:
            pending = np.where(delays <= declared.max_delay, pending, 0.0)
        versions, weights = np.concatenate([versions, in_flight]), np.concatenate([weights, pending])
    return uses_of(versions, weights, stepsizes)
