"""Where a plan's speeds come from: given, simulated, recorded, or measured on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np

from nowait.api.simulate import simulate
from nowait.api.train import train
from nowait.core import Constant, checks
from nowait.core.types import Floats
from nowait.methods import AsynchronousSGD
from nowait.problems import NoisyQuadratic
from nowait.recording import Trace
from nowait.speeds import Fixed, Recorded, Speeds
from nowait.theory import speedup

STANDING_STILL = AsynchronousSGD(Constant(1e-12))
"""Speeds are measured without going anywhere."""
GRADIENTS_EACH = 200
NEVER = 2**40


@final
@dataclass(frozen=True, eq=False)
class Source:
    """Speeds, and what is known of them."""

    speeds: Speeds
    seconds: Floats
    """The mean seconds per gradient of every worker."""
    words: str
    rate: float
    """Gradients per second of all workers together."""

    @classmethod
    def of_seconds(cls, seconds: Iterable[float]) -> Self:
        """Seconds per gradient of every worker."""
        values = speedup(seconds).seconds
        words = f"{len(values)} workers with the seconds per gradient given"
        return cls(Fixed(values.tolist()), values, words, float((1 / values).sum()))

    @classmethod
    def of_speeds(cls, speeds: Speeds, seed: int) -> Self:
        """Any speeds; the means are those of a short simulation."""
        checks.instance(speeds, Speeds, "speeds", "nw.speeds.Fixed([1.0, 1.0, 10.0])")
        count = GRADIENTS_EACH * speeds.num_workers
        still = NoisyQuadratic(dimension=2)
        run = simulate(still, STANDING_STILL, speeds, gradients=count, seed=seed, progress=False)
        words = f"{speeds.num_workers} workers, {speeds!r}"
        return cls(speeds, mean_seconds(run.trace), words, len(run.trace) / run.stats.seconds)

    @classmethod
    def of_trace(cls, trace: Trace, words: str = "a recorded run") -> Self:
        """The trace of a run, whose times are taken over and over again."""
        seconds = mean_seconds(checks.instance(trace, Trace, "trace", "run.trace"))
        words = f"{words}: {trace.num_workers} workers, {len(trace.worker):,} gradients"
        return cls(Recorded(trace), seconds, words, _settled_rate(trace))

    @classmethod
    def of_probe(
        cls,
        problem: Any,
        workers: int | None,
        probe_seconds: float,
        *,
        slowdown: Any = None,
        speeds: Speeds | None = None,
        seed: int = 0,
    ) -> Self:
        """Real workers on this machine, which compute the problem's gradients for a while."""
        if problem is None:
            raise ValueError(
                "a probe measures your problem's gradients: pass the problem, or give the speeds by seconds="
            )
        run = train(
            problem,
            STANDING_STILL,
            workers=workers,
            seconds=checks.positive(probe_seconds, "probe_seconds", "workers need time to be measured"),
            evaluate_every=NEVER,
            slowdown=slowdown,
            speeds=speeds,
            seed=seed,
            progress=False,
        )
        return cls.of_trace(run.trace, f"a probe of this machine for {probe_seconds:g} s")


def _settled_rate(trace: Trace) -> float:
    """Gradients per second in the second half of a run: at first all workers start together."""
    last = float(trace.time[-1])
    settled = trace.time > last / 2
    return float(settled.sum() / (last / 2)) if last > 0 else 1.0


def mean_seconds(trace: Trace) -> Floats:
    """The mean seconds per gradient of every worker; of one that delivered nothing, all the time there was."""
    if not len(trace.worker):
        raise ValueError("no gradient arrived, so there are no speeds to plan with: probe or record for longer")
    means = []
    for worker in trace.initial_workers.tolist():
        mine = trace.compute_seconds[trace.worker == worker]
        means.append(float(mine.mean()) if len(mine) else float(max(trace.seconds, trace.time.max())))
    return np.asarray(np.maximum(means, 1e-12), dtype=np.float64)
