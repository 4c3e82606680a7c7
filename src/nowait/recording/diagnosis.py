"""Who is slow, and why: a sentence and a table, from what a run knows of its workers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from nowait.recording.phases import BUSY, PHASES
from nowait.recording.worker_stats import WorkerStats, nodes_of, others_of, stragglers_of

MOST_OF_IT = 0.5
"""A phase with at least this share of all workers' time is named if no single worker is slow."""
LONGEST_NODE = 24
"""Characters of a node's name in the table."""
EVEN = "no worker is much slower than the others"
ADVICE = {
    "receiving": "tickets and params take long to reach it: check its network and the load of its host",
    "loading": "loading its data is slow: check its disk, or use more loader_workers",
    "computing": "its processor is slow or shared with others",
    "sending": "its gradients take long to arrive: check its network",
}
"""What the largest excess of a slow worker means."""
ADVICE_FOR_ALL = {
    "starting": "processes take long to start: this matters less in a longer run",
    "waiting": "the method lets fast workers wait for slow ones: an asynchronous method does not",
    "receiving": "tickets and params take long to arrive: check the network, or use fewer workers on each machine",
    "loading": "loading data is slow: check the disks, or use more loader_workers",
    "sending": "gradients wait for the server or the network: fewer workers, or larger batches, would be as fast",
    "unfinished": "tickets are cancelled or lost: check the method, and the log for failures",
}
"""What it means if all workers together spend most of their time in a phase. Computing is as it should be."""


class Slow(NamedTuple):
    """A straggler."""

    worker: WorkerStats
    times: float
    """How many times as long as those of the median worker its gradients take."""
    phase: str
    """The phase that takes the most seconds more than in the median worker; "unfinished" if it has not delivered."""


def slowest(workers: Sequence[WorkerStats]) -> Slow | None:
    """Return the slowest worker if it is a straggler, or else None."""
    stragglers = stragglers_of(workers)
    if not stragglers:
        return None
    worker = stragglers[0]
    others = others_of(worker, workers)
    usual = median(other.pace for other in others)
    times = worker.pace / usual if usual > 0 else float("inf")
    if not worker.gradients:
        return Slow(worker, times, "unfinished")
    return Slow(worker, times, max(BUSY, key=lambda phase: _excess(worker, others, phase)))


def _excess(worker: WorkerStats, others: Sequence[WorkerStats], phase: str) -> float:
    """Return by how many seconds per gradient a phase of a worker exceeds that of the median one."""
    return _mean(worker, phase) - median(_mean(other, phase) for other in others)


def _mean(worker: WorkerStats, phase: str) -> float:
    seconds: float = getattr(worker.phases, phase)
    return seconds / worker.gradients


def diagnosis(workers: Sequence[WorkerStats]) -> str:
    """Return one sentence on who is slow and why, or on what all workers spend their time; empty without workers."""
    delivering = [worker for worker in workers if worker.gradients]
    if not delivering:
        return "no worker has delivered a gradient" if workers else ""
    slow = slowest(workers)
    if slow is not None:
        return _about(slow)
    phase, share = _largest(delivering)
    if share >= MOST_OF_IT and phase in ADVICE_FOR_ALL:
        return f"{EVEN}; {share:.0%} of their time is {phase}: {ADVICE_FOR_ALL[phase]}"
    return EVEN


def _about(slow: Slow) -> str:
    worker, phase = slow.worker, slow.phase
    if not worker.gradients:
        return f"{_named(worker)} is slow: it has delivered no gradient in {worker.pace:.3g} s"
    share = getattr(worker.phases, phase) / worker.phases.busy
    seconds = f"a gradient takes {worker.seconds_per_gradient:.3g} s, {slow.times:.3g} times as long as usual"
    return f"{_named(worker)} is slow: {seconds}, and {share:.0%} of that is {phase}: {ADVICE[phase]}"


def _named(worker: WorkerStats) -> str:
    return f"worker {worker.worker} on {worker.node}" if worker.node else f"worker {worker.worker}"


def _largest(workers: Sequence[WorkerStats]) -> tuple[str, float]:
    """Return the phase on which workers spend the most time, and its share."""
    sums = {phase: sum(getattr(worker.phases, phase) for worker in workers) for phase in PHASES}
    phase = max(sums, key=lambda name: sums[name])
    return phase, sums[phase] / max(sum(sums.values()), 1e-300)


def table_of_workers(workers: Sequence[WorkerStats]) -> str:
    """Return a table with a line for each worker, and the diagnosis below it. Phases without seconds are left out."""
    nodes, devices = nodes_of(workers), {worker.device for worker in workers}
    phases = [name for name in PHASES if any(getattr(worker.phases, name) > 0 for worker in workers)]
    header = ["worker", *(["node"] * (len(nodes) > 1)), *(["device"] * (len(devices) > 1))]
    rows = [[*header, "gradients", "share", "s/gradient", *phases]]
    for worker in workers:
        where = [*([worker.node[:LONGEST_NODE]] * (len(nodes) > 1)), *([worker.device] * (len(devices) > 1))]
        numbers = [f"{worker.gradients:,}", f"{worker.share:.1%}", f"{worker.seconds_per_gradient:.3g}"]
        rows.append([str(worker.worker), *where, *numbers, *(f"{worker.share_of(name):.0%}" for name in phases)])
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([*lines, diagnosis(workers)]).rstrip()
