"""Speed of the server with large params on the host, by its number of threads.

    python benchmarks/large_params.py [dimension] [workers]

1. The server's passes over vectors of float32: milliseconds with 1, 2, 4, … threads, and the speedup over one thread.
2. The process engine: bytes of gradients per second with ``server_threads=1`` and with the default, in alternating
   rounds. The gradient is a plain copy of the point. The first steps, which write to new memory, are not counted.

The defaults are 10,000,000 entries and 4 workers.
"""

import os
import platform
import statistics
import sys
import time

import numpy as np
from copying import Copy

import nowait as nw
from nowait.fleet.platform import available_cores, server_threads
from nowait.numerics import vectors
from nowait.numerics.parallel import using_threads

ROUNDS, STEPS, FIRST_STEPS = 3, 250, 50


def milliseconds(function, threads, repeats=10):
    """Return the shortest of several calls."""
    times = []
    with using_threads(threads):
        for _ in range(repeats):
            began = time.perf_counter()
            function()
            times.append(time.perf_counter() - began)
    return 1e3 * min(times)


def passes(dimension):
    """Return the passes to measure, by name."""
    params, direction, mean, square, out = np.random.default_rng(0).random((5, dimension), dtype=np.float32)
    average, step = np.zeros(dimension), np.float32(1e-6)
    adam = {"betas": (0.9, 0.999), "epsilon": 1e-8, "stepsize": 1e-6, "square_bias": 0.1}
    return {
        "step of Sgd": lambda: vectors.sgd_step(params, direction, step, out),
        "squared norm": lambda: vectors.squared_norm(direction),
        "add to a sum": lambda: vectors.add_scaled(mean, direction, step),
        "average": lambda: vectors.move_towards(average, params, 1e-3),
        "step of Momentum": lambda: vectors.momentum_step(params, direction, mean, out, beta=0.9, stepsize=1e-6),
        "step of Adam": lambda: vectors.adam_step(params, direction, mean, square, out, **adam),
    }


def compare_passes(dimension, counts):
    """Print how long each pass takes with each number of threads."""
    print(f"{'milliseconds (speedup), threads:':32}" + "".join(f"{count:>16}" for count in counts))
    for name, function in passes(dimension).items():
        rounds = [[milliseconds(function, count) for count in counts] for _ in range(ROUNDS)]
        times = [min(values) for values in zip(*rounds, strict=True)]
        print(f"{name:32}" + "".join(f"{took:9.2f} ({times[0] / took:4.2f})" for took in times))


def gradient_bytes_per_second(dimension, workers, threads):
    """Return the bytes of gradients per second of the process engine, after the first steps."""
    method = nw.AsynchronousSGD(nw.Constant(1e-6))
    problem = Copy(dimension, np.float32)
    options = {"steps": STEPS, "evaluate_every": STEPS, "server_threads": threads, "progress": False}
    times = nw.train(problem, method, workers=workers, **options).trace.arrivals["time"]
    return (STEPS - FIRST_STEPS) * 4 * dimension / (times[-1] - times[FIRST_STEPS - 1])


def compare_engine(dimension, workers):
    """Print the speed of the process engine with one thread and with the default."""
    pairs = [[gradient_bytes_per_second(dimension, workers, threads) for threads in (1, None)] for _ in range(ROUNDS)]
    one, default = (statistics.median(values) for values in zip(*pairs, strict=True))
    ratio = statistics.median(second / first for first, second in pairs)
    chosen = server_threads(None, length=dimension, workers=workers, cores=available_cores())
    print(
        f"process engine, {workers} workers: {one / 1e9:.2f} GB/s of gradients with 1 thread, {default / 1e9:.2f} GB/s "
        f"with the default ({chosen}), ratio {ratio:.2f}"
    )


def main():
    dimension = int(float(sys.argv[1])) if len(sys.argv) > 1 else 10_000_000
    workers = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {dimension:,} params of float32\n")
    counts = [count for count in (1, 2, 4, 8, 16) if count <= max(2, available_cores())]
    compare_passes(dimension, counts)
    print()
    compare_engine(dimension, workers)


if __name__ == "__main__":
    main()
