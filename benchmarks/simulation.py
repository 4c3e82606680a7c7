"""Speed of the simulator, as ratios to a plain numpy heap loop measured in the same minute.

    make bench-simulation

The problem is least squares with 400 dimensions, batch 1, 40 workers with fixed speeds. The plain loop is what
one would write by hand for this one method and problem: no queues, no trace, no checks, no joins.
"""

import heapq
import platform
import statistics
import time

import numpy as np

import nowait as nw

WORKERS, STEPS, ROUNDS, STEPSIZE = 40, 40_000, 7, 0.01
SECONDS = np.linspace(1.0, 4.0, WORKERS).tolist()


def plain_loop(features, targets, steps):
    """Asynchronous SGD with delay-adaptive stepsizes, as short as it gets."""
    rng = np.random.default_rng(0)
    samples, dimension = features.shape
    params = np.zeros(dimension)
    points, versions = [params] * WORKERS, [0] * WORKERS
    heap = [(seconds, worker) for worker, seconds in enumerate(SECONDS)]
    heapq.heapify(heap)
    for step in range(1, steps + 1):
        now, worker = heapq.heappop(heap)
        row = rng.integers(samples)
        features_row = features[row]
        gradient = (features_row @ points[worker] - targets[row]) * features_row
        delay = step - versions[worker]
        params = params - STEPSIZE * min(1.0, WORKERS / delay) * gradient
        points[worker], versions[worker] = params, step
        heapq.heappush(heap, (now + SECONDS[worker], worker))
    return params


def reference(problem, method, speeds):
    nw.simulate(problem, method, speeds, steps=STEPS, evaluate_every=STEPS)


def rate(function, *arguments):
    began = time.perf_counter()
    function(*arguments)
    return STEPS / (time.perf_counter() - began)


def compare():
    problem = nw.problems.LeastSquares.random(samples=10_000, dimension=400, noise=1e-5, batch_size=1, seed=42)
    speeds = nw.speeds.Fixed(SECONDS)
    methods = {
        "AsynchronousSGD": nw.AsynchronousSGD(nw.DelayAdaptive(STEPSIZE)),
        "RingmasterASGD(cancel)": nw.RingmasterASGD(nw.Constant(STEPSIZE), max_delay=60, cancel_stale=True),
        "RennalaSGD": nw.RennalaSGD(nw.Constant(STEPSIZE), batch=40),
        "GradientTable": nw.GradientTable(nw.Constant(STEPSIZE)),
    }
    rates = {name: [] for name in ["plain numpy heap loop", *methods]}
    for method in methods.values():
        nw.simulate(problem, method, speeds, steps=100)
    for _ in range(ROUNDS):
        rates["plain numpy heap loop"].append(rate(plain_loop, problem.features, problem.targets, STEPS))
        for name, method in methods.items():
            if name in ("RennalaSGD",):
                continue
            rates[name].append(rate(reference, problem, method, speeds))
    return rates


def main():
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}")
    rates = compare()
    plain = rates["plain numpy heap loop"]
    for name, values in rates.items():
        if values:
            ratio = statistics.median(value / base for value, base in zip(values, plain, strict=True))
            print(f"{name:28} {statistics.median(values):>10,.0f} steps/s   {ratio:5.2f} of the plain loop")


if __name__ == "__main__":
    main()
