"""Speed of simulations relative to baselines and limits that are measured in alternation with them.

    make bench-simulation

The problem is least squares with 10,000 rows and 400 dimensions, 40 workers with fixed speeds, as in the paper's
experiment except for the batch of 1. The *plain loop* is written by hand with numpy and a heap for this one method and
problem: no queues, no trace, no checks, no joins. The *bare kernel* is a compiled loop over precomputed arrays with the
worker, row and stepsize of every arrival: only the arithmetic. nowait's times are those of a whole call, without
evaluations of the full loss in between. Rounds alternate; medians are shown.
"""

import heapq
import logging
import platform
import resource
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np
from numba import njit

import nowait as nw

WORKERS, ROUNDS, STEPSIZE = 40, 7, 0.01
PLAIN_STEPS, REFERENCE_STEPS, PLANNED_STEPS, STEPS = 40_000, 20_000, 60_000, 1_000_000
SECONDS = np.linspace(1.0, 4.0, WORKERS).tolist()
SPEEDS = nw.speeds.Fixed(SECONDS)
METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(STEPSIZE))
SWEPT = np.geomspace(STEPSIZE / 100, STEPSIZE, 16)


@dataclass
class Undeclared(nw.Method):
    """Asynchronous SGD that does not declare its schedule: its plan is computed in Python, call by call."""

    stepsize: nw.Stepsize

    def on_arrival(self, server, arrival):
        server.apply(arrival, self.stepsize.at(arrival, server))
        server.assign(arrival.worker)


PLANNED = {
    "asynchronous, not declared": Undeclared(nw.DelayAdaptive(STEPSIZE)),
    "MinibatchSGD": nw.MinibatchSGD(nw.Constant(STEPSIZE)),
    "RandomAssignment": nw.RandomAssignment(nw.Constant(STEPSIZE / 10)),
    "RingmasterASGD, cancelling": nw.RingmasterASGD(nw.Constant(STEPSIZE), max_delay=60, cancel_stale=True),
    "RennalaSGD, batch 40": nw.RennalaSGD(nw.Constant(STEPSIZE), batch=40),
    "GradientTable": nw.GradientTable(nw.Constant(STEPSIZE / 10)),
}


def plain_loop(features, targets):
    """Run a minimal asynchronous SGD with delay-adaptive stepsizes."""
    rng = np.random.default_rng(0)
    samples, dimension = features.shape
    params = np.zeros(dimension)
    points, versions = [params] * WORKERS, [0] * WORKERS
    heap = [(seconds, worker) for worker, seconds in enumerate(SECONDS)]
    heapq.heapify(heap)
    for step in range(1, PLAIN_STEPS + 1):
        now, worker = heapq.heappop(heap)
        row = rng.integers(samples)
        features_row = features[row]
        gradient = (features_row @ points[worker] - targets[row]) * features_row
        delay = step - versions[worker]
        params = params - STEPSIZE * min(1.0, WORKERS / delay) * gradient
        points[worker], versions[worker] = params, step
        heapq.heappush(heap, (now + SECONDS[worker], worker))
    return params


@njit(fastmath=True, nogil=True)
def bare_kernel(features, targets, arrivals, params, slopes, pending):
    """Run the arithmetic of asynchronous SGD, fused into one pass over the params per step."""
    rows, workers, stepsizes = arrivals
    for step in range(rows.size):
        worker = workers[step]
        old, new = features[pending[worker]], features[rows[step]]
        factor = slopes[worker] * stepsizes[step]
        margin = 0.0
        for j in range(params.size):
            x = params[j] - factor * old[j]
            params[j] = x
            margin += new[j] * x
        slopes[worker], pending[worker] = margin - targets[rows[step]], rows[step]


def simulate(problem, method, speeds=SPEEDS, **options):
    return nw.simulate(problem, method, speeds, evaluate_every=10**9, progress=False, **options)


def rate_of(work, function):
    began = time.perf_counter()
    function()
    return work / (time.perf_counter() - began)


def compare(title, candidates, rounds=ROUNDS, unit="steps per second"):
    """Run all candidates in alternating rounds; print medians and ratios to the first one."""
    for _, function in candidates.values():
        function()
    rates = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, (work, function) in candidates.items():
            rates[name].append(rate_of(work, function))
    first = next(iter(rates))
    print(f"\n{title:46} {unit:>18} {'relative':>14}")
    for name, values in rates.items():
        ratio = statistics.median(value / base for value, base in zip(values, rates[first], strict=True))
        print(f"{name:46} {statistics.median(values):18,.0f} {ratio:14.2f}", flush=True)
    return rates


def compare_ways(problem):
    trace = simulate(problem, METHOD, steps=STEPS).trace
    workers, stepsizes = trace.worker.copy(), trace.stepsize.copy()
    rows = np.random.default_rng(0).integers(problem.samples, size=STEPS)
    del trace

    def bare():
        params, slopes = np.zeros(problem.dimension), -problem.targets[:WORKERS]
        arrivals = (rows, workers, stepsizes)
        bare_kernel(problem.features, problem.targets, arrivals, params, slopes, np.arange(WORKERS))

    rates = compare(
        "d = 400, batch 1, 40 workers",
        {
            "plain numpy heap loop": (PLAIN_STEPS, lambda: plain_loop(problem.features, problem.targets)),
            "reference simulation": (
                REFERENCE_STEPS,
                lambda: simulate(problem, METHOD, steps=REFERENCE_STEPS, engine="reference"),
            ),
            "compiled simulation": (STEPS, lambda: simulate(problem, METHOD, steps=STEPS)),
            "bare kernel": (STEPS, bare),
            "sweep of 16 stepsizes and 2 seeds, all cores": (
                32 * STEPS // 5,
                lambda: nw.sweep(
                    problem,
                    METHOD,
                    SPEEDS,
                    stepsizes=SWEPT,
                    seeds=range(2),
                    steps=STEPS // 5,
                    evaluate_every=STEPS // 5,
                    progress=False,
                ),
            ),
        },
    )
    pairs = zip(rates["bare kernel"], rates["compiled simulation"], strict=True)
    ratio = statistics.median(bare / ours for bare, ours in pairs)
    print(f"the bare kernel is {ratio:.2f} times as fast as the compiled simulation")


def compare_planned(problem):
    candidates = {"plain numpy heap loop": (PLAIN_STEPS, lambda: plain_loop(problem.features, problem.targets))}
    for name, method in PLANNED.items():
        run = lambda method=method: simulate(problem, method, gradients=PLANNED_STEPS)  # noqa: E731
        assert run().stats.engine == "compiled"
        candidates[name] = (PLANNED_STEPS, run)
    compare("methods whose plan is computed in Python", candidates, unit="arrivals per second")


def compare_batches(problem):
    """Compare the paper's batch of 256 with the two matrix products of its gradients on contiguous rows."""
    gradients = 32_000 // 4
    batches = [problem.features[start : start + 256] for start in range(0, problem.samples - 256, 256)]
    point = np.ones(problem.dimension)

    def products():
        for number in range(gradients):
            batch = batches[number % len(batches)]
            (batch @ point) @ batch

    candidates = {
        "the matrix products alone": (gradients, products),
        "compiled simulation": (gradients, lambda: simulate(problem, METHOD, gradients=gradients)),
    }
    compare("d = 400, batch 256, 40 workers", candidates, unit="gradients per second")


def compare_recorded():
    """Compare the times of a recorded job with random times; the problem is small, so that times are what counts."""
    problem = nw.problems.LeastSquares.random(samples=1_000, dimension=10, seed=0)
    job = nw.speeds.alibaba(4)
    for recorded in (job, job.bootstrapped(1_000)):
        workers = recorded.num_workers
        lognormal = nw.speeds.LogNormal(1.0, sigma=1.0, workers=workers)
        candidates = {
            name: (STEPS, lambda speeds=speeds: simulate(problem, METHOD, speeds, steps=STEPS))
            for name, speeds in (("lognormal times", lognormal), ("recorded times", recorded))
        }
        compare(f"d = 10, batch 1, {workers:,} workers", candidates)


def growth():
    """Print the speed for growing numbers of workers and dimensions."""
    print(f"\n{'workers':>12} {'dimension':>12} {'steps per second':>18}")
    small = nw.problems.LeastSquares.random(samples=1_000, dimension=10, seed=0)
    for workers in (10, 1_000, 100_000, 1_000_000):
        speeds = nw.speeds.LogNormal(1.0, sigma=1.0, workers=workers)
        show_growth(small, speeds, 2_000_000)
    for dimension, steps in ((10, 2_000_000), (100, 2_000_000), (1_000, 500_000), (10_000, 50_000), (100_000, 5_000)):
        problem = nw.problems.LeastSquares.random(samples=300, dimension=dimension, seed=0)
        show_growth(problem, SPEEDS, steps)


def show_growth(problem, speeds, steps):
    method = nw.AsynchronousSGD(nw.DelayAdaptive(1e-6))
    run = lambda: simulate(problem, method, speeds, steps=steps)  # noqa: E731
    run()
    rate = statistics.median(rate_of(steps, run) for _ in range(3))
    print(f"{speeds.num_workers:12,} {problem.dimension:12,} {rate:18,.0f}", flush=True)


def huge_cluster():
    """Simulate a million workers; runs in its own process, whose peak memory is measured."""
    problem = nw.problems.LeastSquares.random(samples=2_000, dimension=1_000, seed=0)
    method = nw.AsynchronousSGD(nw.DelayAdaptive(1e-6))
    steps, rates = 3_000_000, []

    def run():
        speeds = nw.speeds.LogNormal(1.0, sigma=1.0, workers=1_000_000)
        simulate(problem, method, speeds, steps=steps)

    for _ in range(3):
        rates.append(rate_of(steps, run))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"\na million workers, d = 1,000: {statistics.median(rates):,.0f} steps per second, {memory:.2f} GB in total")


def main():
    logging.getLogger("nowait").setLevel(logging.ERROR)
    if sys.argv[1:] == ["huge"]:
        huge_cluster()
        return
    print(f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}")
    problem = nw.problems.LeastSquares.random(samples=10_000, dimension=400, noise=1e-5, batch_size=1, seed=42)
    compare_ways(problem)
    compare_planned(problem)
    compare_batches(nw.problems.LeastSquares.random(samples=10_000, dimension=400, batch_size=256, seed=42))
    compare_recorded()
    growth()


if __name__ == "__main__":
    main()
