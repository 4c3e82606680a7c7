"""Asynchronous SGD against what a practitioner would run: momentum, and waiting for all workers but one.

Two clusters in virtual time: that of ``nowait race --straggler 10`` (40 workers, lognormal times, one ten times slower
than the median, the paper's least squares problem) and that of the Python on the start page of the docs (seven workers
that need 1 s, one that needs 20 s). Stepsize and momentum (0, 0.9 and 0.97 where the method has it) come from the same
grid for all methods, with a factor of 2, on seeds 100 and 101: once for the lowest final error, once for the least time
until the error stays below the final error of tuned minibatch SGD without momentum. Medians and ranges over seeds 0 to
4. A best stepsize at an end of the grid is marked with *.

``python benchmarks/rivals.py`` (ten minutes on two cores; ``--cluster start`` for the smaller one)
"""

from __future__ import annotations

import argparse
import itertools
import logging
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import nowait as nw
from nowait.cli.cluster import mixed_cluster

TUNING, SEEDS = (100, 101), (0, 1, 2, 3, 4)
STEPSIZES = [2.0**-k for k in range(-6, 12)]
MOMENTA = (0.0, 0.9, 0.97)
EVALUATIONS = 200


@dataclass(frozen=True)
class Cluster:
    problem: nw.problems.LeastSquares
    seconds: tuple[float, ...]
    sigma: float
    until: float

    @property
    def speeds(self) -> nw.speeds.Speeds:
        return nw.speeds.LogNormal(self.seconds, sigma=self.sigma) if self.sigma else nw.speeds.Fixed(self.seconds)


def start() -> Cluster:
    problem = nw.problems.LeastSquares.random(samples=2_000, dimension=50, noise=0.01, batch_size=16, seed=0)
    return Cluster(problem, (1.0,) * 7 + (20.0,), 0.0, 600.0)


def race() -> Cluster:
    problem = nw.problems.LeastSquares.random(samples=10_000, dimension=400, noise=1e-5, batch_size=256, seed=42)
    seconds = mixed_cluster(40, 10.0, seed=0)
    return Cluster(problem, tuple(seconds.tolist()), 0.1, 75 * float(seconds.max()))


CLUSTERS = {"start": start, "race": race}
Make = Callable[[float, float, int], nw.Method]
METHODS: dict[str, tuple[Make, tuple[float, ...]]] = {
    "minibatch SGD": (lambda size, _, __: nw.MinibatchSGD(nw.Constant(size)), (0.0,)),
    "minibatch SGD, momentum": (lambda size, _, __: nw.MinibatchSGD(nw.Constant(size)), MOMENTA[1:]),
    "m-synchronous SGD, m = M - 1": (lambda size, _, m: nw.MSynchronousSGD(nw.Constant(size), m=m - 1), (0.0,)),
    "m-synchronous SGD, momentum": (lambda size, _, m: nw.MSynchronousSGD(nw.Constant(size), m=m - 1), MOMENTA[1:]),
    "asynchronous SGD, constant": (lambda size, _, __: nw.AsynchronousSGD(nw.Constant(size)), (0.0,)),
    "asynchronous SGD, delay-adaptive": (lambda size, _, __: nw.AsynchronousSGD(nw.DelayAdaptive(size)), (0.0,)),
    "OrderedMomentum": (lambda size, beta, _: nw.OrderedMomentum(nw.DelayAdaptive(size), beta), MOMENTA[1:]),
}
"""Functions of stepsize, momentum and the number of workers; the momenta that are tried."""
OWN_MOMENTUM = "OrderedMomentum"


def curve(task: tuple[str, str, float, float, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the times and losses of a run."""
    cluster_name, name, beta, size, seed = task
    logging.getLogger("nowait").setLevel(logging.ERROR)
    cluster = CLUSTERS[cluster_name]()
    make, _ = METHODS[name]
    momentum = beta and name != OWN_MOMENTUM
    try:
        run = nw.simulate(
            cluster.problem,
            make(size, beta, len(cluster.seconds)),
            cluster.speeds,
            seconds=cluster.until,
            evaluate_every=evaluate_every(name, cluster),
            update=nw.Momentum(beta) if momentum else None,
            seed=seed,
            progress=False,
        )
    except nw.DivergedError:
        return np.array([0.0]), np.array([np.inf])
    losses = np.where(np.isfinite(run.history.loss), run.history.loss, np.inf)
    return run.history.time, losses


def evaluate_every(name: str, cluster: Cluster) -> int:
    """Return the steps between evaluations, about 200 of which are in the run."""
    seconds = sorted(cluster.seconds)
    if name.startswith("minibatch"):
        steps = cluster.until / seconds[-1]
    elif name.startswith("m-synchronous"):
        steps = cluster.until / seconds[-2]
    else:
        steps = cluster.until * sum(1 / each for each in seconds)
    return max(1, int(steps / EVALUATIONS))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cluster", nargs="+", choices=list(CLUSTERS), default=list(CLUSTERS))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(asked.processes) as pool:
        for cluster in asked.cluster:
            show(cluster, pool)


def show(cluster: str, pool: multiprocessing.pool.Pool) -> None:
    until, (_, minimum) = CLUSTERS[cluster]().until, CLUSTERS[cluster]().problem.minimum()
    print(f"\n{cluster}: error of the initial params {errors_at_start(cluster):.3g}\n")
    print("| method | momentum, stepsize | error at the end | momentum, stepsize | sooner than minibatch SGD |")
    print("|---|---|---|---|---|", flush=True)
    target = None
    for name in METHODS:
        trials = tried(cluster, name, pool)
        lowest = min(trials, key=lambda choice: np.median([losses[-1] for _, losses in trials[choice]]))
        ends = [losses[-1] - minimum for _, losses in raced(cluster, name, lowest, pool)]
        cells = [named(lowest), ranged(ends, ".2g"), "", "1"]
        if target is not None:
            reach = {choice: np.median([first_time(*each, target) for each in trials[choice]]) for choice in trials}
            soonest = min(trials, key=lambda choice: reach[choice])
            gains = [until / first_time(*each, target) for each in raced(cluster, name, soonest, pool)]
            cells[2:] = [named(soonest), ranged(gains, ".3g")]
        target = target or minimum + float(np.median(ends))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def named(choice: tuple[float, float]) -> str:
    beta, size = choice
    return f"{beta:g}, {size:.3g}{'*' * (size in (STEPSIZES[0], STEPSIZES[-1]))}"


def errors_at_start(cluster: str) -> float:
    problem = CLUSTERS[cluster]().problem
    return problem.loss(problem.initial()) - problem.minimum()[1]


Curve = tuple[np.ndarray, np.ndarray]


def tried(cluster: str, name: str, pool: multiprocessing.pool.Pool) -> dict[tuple[float, float], list[Curve]]:
    """Return the curves of the tuning seeds for every momentum and stepsize."""
    choices = list(itertools.product(METHODS[name][1], STEPSIZES))
    curves = pool.imap(curve, [(cluster, name, beta, size, seed) for beta, size in choices for seed in TUNING])
    return {choice: [next(curves) for _ in TUNING] for choice in choices}


def raced(cluster: str, name: str, choice: tuple[float, float], pool: multiprocessing.pool.Pool) -> list[Curve]:
    return pool.map(curve, [(cluster, name, *choice, seed) for seed in SEEDS])


def first_time(times: np.ndarray, losses: np.ndarray, target: float) -> float:
    """Return the time from which the loss is below the target, infinity if it is not."""
    above = np.flatnonzero(losses > target)
    if not len(above):
        return float(times[0])
    return float("inf") if above[-1] == len(times) - 1 else float(times[above[-1] + 1])


def ranged(values: list[float], form: str) -> str:
    return f"{np.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


if __name__ == "__main__":
    main()
