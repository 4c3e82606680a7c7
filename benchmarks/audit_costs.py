"""What the guards against wrong workers cost: the time of a run with each of them over that of the run without.

    python benchmarks/audit_costs.py

Two workers on this machine; short gradients (logistic regression in NumPy, microseconds) and longer ones (a network of
half a million params in PyTorch, milliseconds). Runs with and without a guard alternate; a ratio is that of the fastest
run with a guard and the fastest one without. The first gradients are a cost per process, not per step. What the server
spends on a gradient is printed in nanoseconds if it is not compared, and in milliseconds if it is.
"""

import math
import sys
from time import perf_counter

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.core.audit import Chosen, Summary
from nowait.pytorch import TorchProblem

ROUNDS, WORKERS = 7, 2
PLAIN = "without"
GUARDS = {"first gradients": True, "audit=0.001": 0.001, "audit=0.01": 0.01, "audit=0.1": 0.1}


class Regression:
    """Logistic regression with 100 params and 16 rows per gradient."""

    dimension = 100

    def __init__(self):
        rng = np.random.default_rng(0)
        self.rows, self.labels = rng.standard_normal((10_000, 100)), rng.choice([-1.0, 1.0], 10_000)

    def initial(self):
        return np.zeros(self.dimension)

    def gradient(self, point, sample):
        batch = sample.indices(len(self.rows), size=16)
        rows, labels = self.rows[batch], self.labels[batch]
        return rows.T @ (-labels / (1 + np.exp(labels * (rows @ point)))) / len(batch)

    def loss(self, point):
        return float(np.log1p(np.exp(-self.labels * (self.rows @ point))).mean())


def network():
    """Return a problem with half a million params."""
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(512, 512, generator=generator), torch.randint(10, (512,), generator=generator))
    return TorchProblem(build_model, nn.CrossEntropyLoss(), data, batch_size=16)


def build_model():
    return nn.Sequential(nn.Linear(512, 600), nn.ReLU(), nn.Linear(600, 300), nn.ReLU(), nn.Linear(300, 10))


def seconds(problem, steps, audit):
    method = nw.AsynchronousSGD(nw.DelayAdaptive(0.01))
    run = nw.train(
        problem,
        method,
        workers=WORKERS,
        steps=steps,
        audit=audit,
        evaluate_every=steps,
        start="together",
        progress=False,
    )
    return run.stats.seconds


def ratios(problem, steps):
    """Return the ratio of each guard."""
    fastest = dict.fromkeys((PLAIN, *GUARDS), math.inf)
    for _ in range(ROUNDS):
        for name, audit in ((PLAIN, False), *GUARDS.items()):
            fastest[name] = min(fastest[name], seconds(problem, steps, audit))
    return {name: fastest[name] / fastest[PLAIN] for name in GUARDS}


def summary_seconds(size, repetitions=20):
    """Return how long the server needs to summarise a gradient: without its checksum, and with it."""
    gradient = np.random.default_rng(0).standard_normal(size)
    Summary.of(gradient, gradient)  # compiles
    times = []
    for bits_of in (None, gradient):
        began = perf_counter()
        for _ in range(repetitions):
            Summary.of(gradient, bits_of)
        times.append((perf_counter() - began) / repetitions)
    return times


def choosing_seconds(jobs=1_000_000):
    """Return how long server and worker need each to find out that a gradient is not in the share."""
    chosen = Chosen(0, 0.001)
    began = perf_counter()
    for job in range(jobs):
        chosen(1, job)
    return (perf_counter() - began) / jobs


def main():
    sys.stdout.write(f"{1e9 * choosing_seconds():.0f} ns per gradient to find out that it is not in the share\n")
    for name, problem, steps in (("0.1 thousand", Regression(), 10_000), ("0.5 million", network(), 400)):
        for guard, ratio in ratios(problem, steps).items():
            sys.stdout.write(f"{name} params, {guard}: {ratio:.3f} of the time without\n")
    for size in (100, 500_000, 10_000_000):
        rough, exact = summary_seconds(size)
        sys.stdout.write(f"{size} params: {1e3 * rough:.3f} ms to summarise, {1e3 * exact:.3f} ms with a checksum\n")


if __name__ == "__main__":
    main()
