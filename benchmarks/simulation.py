"""Speed of the simulator, as ratios to a plain numpy heap loop measured in the same minute.

    make bench-simulation

The problem is least squares with 400 dimensions, batch 1, 40 workers with fixed speeds. The plain loop is what
one would write by hand for this one method and problem: no queues, no trace, no checks, no joins. The second table
shows that the work per arrival does not grow with the number of workers (least squares with 10 dimensions).
"""

import heapq
import platform
import statistics
import time

import numpy as np

import nowait as nw

WORKERS, STEPS, ROUNDS, STEPSIZE = 40, 40_000, 9, 0.01
SECONDS = np.linspace(1.0, 4.0, WORKERS).tolist()
PLAIN = "plain numpy heap loop"
METHODS = {
    "AsynchronousSGD": nw.AsynchronousSGD(nw.DelayAdaptive(STEPSIZE)),
    "RingmasterASGD, cancelling": nw.RingmasterASGD(nw.Constant(STEPSIZE), max_delay=60, cancel_stale=True),
    "RennalaSGD, batch 40": nw.RennalaSGD(nw.Constant(STEPSIZE), batch=40),
    "GradientTable": nw.GradientTable(nw.Constant(STEPSIZE)),
}


def plain_loop(features, targets):
    """Asynchronous SGD with delay-adaptive stepsizes, as short as it gets."""
    rng = np.random.default_rng(0)
    samples, dimension = features.shape
    params = np.zeros(dimension)
    points, versions = [params] * WORKERS, [0] * WORKERS
    heap = [(seconds, worker) for worker, seconds in enumerate(SECONDS)]
    heapq.heapify(heap)
    for step in range(1, STEPS + 1):
        now, worker = heapq.heappop(heap)
        row = rng.integers(samples)
        features_row = features[row]
        gradient = (features_row @ points[worker] - targets[row]) * features_row
        delay = step - versions[worker]
        params = params - STEPSIZE * min(1.0, WORKERS / delay) * gradient
        points[worker], versions[worker] = params, step
        heapq.heappush(heap, (now + SECONDS[worker], worker))
    return params


def simulate(problem, method, speeds, gradients=STEPS):
    """One run; evaluations of the full loss are left out of what is measured."""
    return nw.simulate(problem, method, speeds, gradients=gradients, evaluate_every=10**9, progress=False)


def seconds_of(function, *arguments):
    began = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - began


def compare_methods():
    problem = nw.problems.LeastSquares.random(samples=10_000, dimension=400, noise=1e-5, batch_size=1, seed=42)
    speeds = nw.speeds.Fixed(SECONDS)
    rates = {name: [] for name in (PLAIN, *METHODS)}
    for method in METHODS.values():
        simulate(problem, method, speeds, 100)
    for _ in range(ROUNDS):
        rates[PLAIN].append(STEPS / seconds_of(plain_loop, problem.features, problem.targets))
        for name, method in METHODS.items():
            rates[name].append(STEPS / seconds_of(simulate, problem, method, speeds))
    print(f"{'arrivals per second, median of ' + str(ROUNDS):40} {'':>12} of the plain loop")
    for name, values in rates.items():
        ratio = statistics.median(value / base for value, base in zip(values, rates[PLAIN], strict=True))
        print(f"{name:40} {statistics.median(values):12,.0f} {ratio:10.2f}")


def growth():
    problem = nw.problems.LeastSquares.random(samples=1_000, dimension=10, seed=0)
    print(f"\n{'workers':>10} {'start, s':>10} {'arrivals per second after it':>30}")
    for workers in (10, 1_000, 100_000, 1_000_000):
        speeds = nw.speeds.LogNormal(1.0, sigma=0.5, workers=workers)
        start = seconds_of(simulate, problem, METHODS["AsynchronousSGD"], speeds, 1)
        whole = seconds_of(simulate, problem, METHODS["AsynchronousSGD"], speeds, 200_001)
        print(f"{workers:10,} {start:10.2f} {200_000 / max(whole - start, 1e-9):30,.0f}")


def main():
    print(f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}\n")
    compare_methods()
    growth()


if __name__ == "__main__":
    main()
