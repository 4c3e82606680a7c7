"""Sweeps on one core against all cores of this machine.

    python benchmarks/sweep_cores.py                 (a minute or two on 16 cores)

Least squares with 10,000 rows and 400 dimensions, batch 1, 40 workers. The same 512 runs are made as one seed with many
stepsizes, as many seeds with one stepsize, and in between. *Processor time* is that of all threads, relative to one
core: above 1, cores slow each other down (memory, hyperthreads, the interpreter's lock). If it stays near 1 and the
speedup is low, cores were idle. *Serial* is the fraction of the work that would explain the speedup by itself (Amdahl).
Most of the work are the losses: ``--evaluations 1`` measures the steps. ``--together`` changes how runs are shared out.
"""

import argparse
import logging
import math
import time

import numpy as np

import nowait as nw
from nowait.engines.simulator import sweep as sweeps

WORKERS = 40
SPEEDS = nw.speeds.Fixed(np.linspace(1.0, 4.0, WORKERS).tolist())
METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(0.01))


def timed(action):
    """Return wall-clock and processor seconds."""
    began, before = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - began, time.process_time() - before


def compare(problem, stepsizes, seeds, arguments):
    def sweep(threads):
        sizes = np.geomspace(1e-4, 1e-2, stepsizes)
        options = {"steps": arguments.steps, "threads": threads, "progress": False}
        options["evaluate_every"] = math.ceil(arguments.steps / arguments.evaluations)
        nw.sweep(problem, METHOD, SPEEDS, stepsizes=sizes, seeds=seeds, **options)

    many = arguments.threads
    rounds = [(timed(lambda: sweep(1)), timed(lambda: sweep(many))) for _ in range(arguments.rounds)]
    one, alone = (float(np.median([first[i] for first, _ in rounds])) for i in range(2))
    all_cores, together = (float(np.median([second[i] for _, second in rounds])) for i in range(2))
    speedup = one / all_cores
    serial = (many / speedup - 1) / (many - 1) if many > 1 else 0.0
    rate = stepsizes * seeds * arguments.steps / all_cores
    print(
        f"{stepsizes:10} {seeds:6} {one:10.2f} {all_cores:10.2f} {speedup:9.1f} {together / alone:15.2f} {serial:8.1%} "
        f"{rate:12.2e}",
        flush=True,
    )


def main():
    logging.getLogger("nowait").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=512)
    parser.add_argument("--steps", type=int, default=16_000)
    parser.add_argument("--threads", type=int, default=sweeps.num_cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--evaluations", type=int, default=20, help="evaluations of the loss in each run")
    parser.add_argument(
        "--together", type=int, default=sweeps.RUNS_TOGETHER, help="runs that a thread executes together"
    )
    arguments = parser.parse_args()
    sweeps.RUNS_TOGETHER = arguments.together
    problem = nw.problems.LeastSquares.random(samples=10_000, dimension=400, noise=1e-5, seed=42)
    nw.sweep(problem, METHOD, SPEEDS, stepsizes=[1e-4, 1e-3], steps=100, progress=False)
    print(f"{arguments.runs} runs of {arguments.steps:,} steps on 1 core and on {arguments.threads}")
    print(" stepsizes  seeds  1 core, s   cores, s   speedup  processor time   serial      steps/s")
    stepsizes = arguments.runs
    while stepsizes >= 1:
        compare(problem, stepsizes, arguments.runs // stepsizes, arguments)
        stepsizes //= 8


if __name__ == "__main__":
    main()
