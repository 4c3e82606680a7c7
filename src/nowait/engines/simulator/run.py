"""Chooses between compiled code and the server for a simulation."""

from __future__ import annotations

from nowait.engines.session import Parts
from nowait.engines.simulator.cold import is_better_not_compiled
from nowait.engines.simulator.compiled import simulate_compiled
from nowait.engines.simulator.plan import NotPlannable
from nowait.engines.simulator.simulator import simulate
from nowait.recording import Run
from nowait.speeds import Faults, Speeds

NOT_WANTED = "the reference simulation was asked for"
NOT_YET = "the run is short, and its code is not compiled yet on this machine"


def run_simulation(
    parts: Parts, speeds: Speeds, faults: Faults, seed: int, progress: bool | None, *, compiled: bool = True
) -> Run:
    """Make a run with compiled code if that is wanted and possible; otherwise ``stats.not_compiled`` says why not."""
    if not compiled:
        reason = NOT_WANTED
    elif is_better_not_compiled(parts, speeds, seed):
        reason = NOT_YET
    else:
        try:
            return simulate_compiled(parts, speeds, faults, seed, progress)
        except NotPlannable as error:
            reason = error.reason
    try:
        return simulate(parts, speeds.clock(seed), faults, seed, progress, not_compiled=reason)
    except NotPlannable as error:
        message = "the method used an arrival or a sum of an earlier run: start() must reset its state"
        raise RuntimeError(message) from error
