"""How accurate is ``nw.plan`` with real workers? The gain predicted beside the gain measured with worker processes.

The workers are slowed like three kinds of clusters. The plan gets their speeds and simulates; then minibatch SGD and
the best asynchronous method of the plan run with real processes and the plan's stepsizes, three seeds each, and the
times to the plan's target are compared. Needs a quiet machine: ``python benchmarks/plan_real_workers.py``, about ten
minutes.
"""

from __future__ import annotations

import math

import numpy as np

import nowait as nw
from nowait.cli.cluster import spread_cluster
from nowait.recording.until import until
from nowait.speeds import Speeds
from nowait.studies.advice import Simulated
from nowait.studies.candidates import Candidate, candidates
from nowait.studies.smoothing import smoothed
from nowait.studies.sources import Source

WORKERS, RATE, SEEDS = 8, 800.0, (100, 101, 102)
EVALUATIONS, HALF_WIDTH = 25, 5
LONG = 2.0
"""Runs last this many times as long as the plan expects."""


def clusters() -> dict[str, Speeds]:
    """Return speeds with about ``RATE`` gradients per second in total."""
    straggler = np.array([1.0] * (WORKERS - 1) + [20.0])
    spread = spread_cluster(WORKERS, 1.0)
    equal = WORKERS / RATE
    return {
        "straggler x 20": nw.speeds.LogNormal((straggler * (1 / straggler).sum() / RATE).tolist(), sigma=0.2),
        "spread 1": nw.speeds.LogNormal((spread * (1 / spread).sum() / RATE).tolist(), sigma=0.2),
        "Pareto": nw.speeds.Pareto(equal * 0.8 / 1.8, shape=1.8, workers=WORKERS),
    }


def measured(problem: nw.Problem, speeds: Speeds, candidate: Candidate, planned: Simulated, target: float) -> float:
    """Return the mean time to the target with real workers."""
    steps = planned.gradients / (1 if candidate.kind == "asynchronous" else len(candidate.workers))
    times = []
    for seed in SEEDS:
        run = nw.train(
            problem,
            candidate.make(planned.stepsize),
            workers=WORKERS,
            speeds=speeds,
            seconds=LONG * planned.seconds,
            evaluate_every=max(1, int(steps / EVALUATIONS)),
            start="together",
            seed=seed,
        )
        history = run.history
        times.append(until(history.time, smoothed(history.loss, HALF_WIDTH), history.step, target))
    return float(np.mean(times)) if np.isfinite(times).all() else math.inf


def main() -> None:
    problem = nw.problems.NoisyQuadratic(dimension=100, L=1.0, mu=0.02, sigma=0.05)
    print("| cluster | predicted | measured | predicted / measured | method |")
    print("|---|---|---|---|---|")
    for name, speeds in clusters().items():
        advice = nw.plan(problem, speeds=speeds, gradients=3_000, progress=False)
        source = Source.of_speeds(speeds, 0)
        known = {one.name: one for one in candidates(nw.theory.speedup(source.seconds.tolist()), False, source.errors)}
        everybody = [one for one in advice.simulated if one.kind == "asynchronous" and len(one.workers) == WORKERS]
        both = (advice.minibatch, min(everybody, key=lambda one: one.seconds))
        waiting, running = (measured(problem, speeds, known[one.method], one, advice.target_loss) for one in both)
        predicted, gain = both[0].seconds / both[1].seconds, waiting / running
        print(f"| {name} | {predicted:.3g} | {gain:.3g} | {predicted / gain:.2f} | {both[1].method} |", flush=True)


if __name__ == "__main__":
    main()
