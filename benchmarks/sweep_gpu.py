"""Sweeps on a GPU: steps per second of the kernel and of a whole call, beside the CPU, and the largest difference.

    python benchmarks/sweep_gpu.py                            (needs a CUDA GPU, PyTorch and Triton)
    python benchmarks/sweep_gpu.py --runs 1024 --dtypes float32 --tune      (all shapes of a launch)

Least squares with 10,000 rows and 400 dimensions, batch 1, 40 workers with fixed speeds, 32,000 steps per run, 64
stepsizes and as many seeds as the number of runs needs. *Kernel* is the time of the steps alone, *with losses* includes
20 evaluations over all rows, *whole call* everything that ``nw.sweep`` does. Times are those of the best of three
rounds, after one that compiles. With TRITON_INTERPRET=1 and small numbers it runs without a GPU, to be tested.
"""

import argparse
import logging
import math
import time

import numpy as np
import torch

import nowait as nw
from nowait.core.capabilities import Capabilities
from nowait.engines.budget import Budget, EvaluationPlan
from nowait.engines.simulator.compiled import data_of
from nowait.engines.simulator.gpu import sweep as gpu_sweep
from nowait.engines.simulator.gpu.device import find_device, synchronise
from nowait.engines.simulator.gpu.execution import DeviceExecution, DeviceProblem, LaunchShape
from nowait.engines.simulator.gpu.operations import batch_of, operations_of
from nowait.engines.simulator.sweep_plans import Planning, SweepParts
from nowait.speeds import Faults

WORKERS, EVALUATIONS, ROUNDS = 40, 20, 3
SPEEDS = nw.speeds.Fixed(np.linspace(1.0, 4.0, WORKERS).tolist())
METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(0.01))


def problem_of(samples, dimension, dtype):
    made = nw.problems.LeastSquares.random(samples=samples, dimension=dimension, noise=1e-5, seed=42)
    return nw.problems.LeastSquares(made.features.astype(dtype), made.targets.astype(dtype))


def grid_of(runs, stepsizes):
    """Return stepsizes and a number of seeds that make this many runs."""
    sizes = math.gcd(runs, stepsizes)
    return np.geomspace(1e-4, 1e-2, sizes), runs // sizes


def best_seconds(action, rounds=ROUNDS):
    action()
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


class Prepared:
    """The runs of a sweep with everything on the GPU, ready to be executed again and again."""

    def __init__(self, problem, sizes, seeds, steps, device):
        budget = Budget(steps, None, None)
        data = data_of(Capabilities.of(problem))
        make = lambda size: nw.AsynchronousSGD(nw.DelayAdaptive(size))  # noqa: E731
        evaluations = EvaluationPlan.of(None, budget, EVALUATIONS)
        parts = SweepParts(problem, data, make, SPEEDS, Faults([]), budget, evaluations, problem.initial())
        planning = Planning(parts)
        plans = [planning.plan(float(sizes[0]), seed) for seed in range(seeds)]
        operations = [operations_of(plan.plan, plan.events, data, plan.seed) for plan in plans]
        self.problem = DeviceProblem(data, problem.shards.weights, problem.initial().dtype, device)
        self.batch = batch_of([self.problem.upload(each) for each in operations], [sizes / sizes[0]] * seeds)
        self.initial, self.device = problem.initial(), device
        self.evaluations = len(self.batch.bounds) - 1

    def seconds(self, shape):
        """Return the seconds of the steps alone, and with losses."""
        execution = DeviceExecution(self.problem, self.batch, self.initial, shape)

        def steps():
            for place in range(1, self.evaluations + 1):
                execution.run_to(place)
            synchronise(self.device)

        def losses():
            execution.start(1.0, lambda: None)
            execution.curves()

        return best_seconds(steps), best_seconds(losses)


def show(name, steps, seconds):
    print(f"{name:52} {seconds:9.4f} s {steps / seconds:12.3e} steps/s", flush=True)


def tune(prepared, steps):
    print(f"  {'runs in a block':>16} {'warps':>6} {'neighbours':>11} {'kernel, steps/s':>16} {'with losses':>14}")
    for runs in (1, 2, 4, 8):
        for warps in (1, 2, 4):
            for neighbours in (False, True):
                kernel, losses = prepared.seconds(LaunchShape(runs, warps, neighbours))
                print(
                    f"  {runs:16} {warps:6} {neighbours!s:>11} {steps / kernel:16.3e} {steps / losses:14.3e}",
                    flush=True,
                )


def measure(arguments, runs, dtype, device):
    problem = problem_of(arguments.samples, arguments.dimension, dtype)
    sizes, seeds = grid_of(runs, arguments.stepsizes)
    steps = runs * arguments.steps
    print(f"\n{runs:,} runs ({len(sizes)} stepsizes, {seeds} seeds), {dtype}")
    prepared = Prepared(problem, sizes, seeds, arguments.steps, device)
    shape = prepared.problem.launch_shape(runs, len(sizes))
    kernel, losses = prepared.seconds(shape)
    show(f"kernel ({shape.runs} runs in a block, {shape.warps} warps)", steps, kernel)
    show("kernel with losses", steps, losses)
    if arguments.tune:
        tune(prepared, steps)
    del prepared
    options = {"stepsizes": sizes, "steps": arguments.steps, "progress": False}
    whole = best_seconds(lambda: nw.sweep(problem, METHOD, SPEEDS, seeds=seeds, device="cuda", **options))
    show("whole call, GPU", steps, whole)
    compare(problem, options, min(seeds, arguments.host_seeds))


def compare(problem, options, seeds):
    """Time the CPU with fewer seeds, and print the largest difference of the losses."""
    runs = seeds * len(options["stepsizes"])
    on_gpu = nw.sweep(problem, METHOD, SPEEDS, seeds=seeds, device="cuda", **options)
    nw.sweep(problem, METHOD, SPEEDS, seeds=1, **options | {"steps": 100})
    began = time.perf_counter()
    on_cpu = nw.sweep(problem, METHOD, SPEEDS, seeds=seeds, **options)
    show(f"whole call, all cores of the CPU, {runs:,} runs", runs * options["steps"], time.perf_counter() - began)
    both = np.isfinite(on_cpu.curves) & np.isfinite(on_gpu.curves)
    difference = np.abs(on_gpu.curves[both] / on_cpu.curves[both] - 1).max()
    same = np.array_equal(on_gpu.diverged, on_cpu.diverged)
    print(f"largest relative difference of losses {difference:.2e}; the same runs diverged: {same}")


def main():
    logging.getLogger("nowait").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default="1024,4096")
    parser.add_argument("--dtypes", default="float32,float64")
    parser.add_argument("--stepsizes", type=int, default=64)
    parser.add_argument("--steps", type=int, default=32_000)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--dimension", type=int, default=400)
    parser.add_argument("--host-seeds", type=int, default=8)
    parser.add_argument("--together", type=int, default=gpu_sweep.RUNS_TOGETHER, help="runs of a whole call in a batch")
    parser.add_argument("--tune", action="store_true", help="measure all shapes of a launch")
    arguments = parser.parse_args()
    gpu_sweep.RUNS_TOGETHER = arguments.together
    device = find_device("cuda")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "interpreted on the CPU"
    print(f"torch {torch.__version__}, {name}")
    for runs in arguments.runs.split(","):
        for dtype in arguments.dtypes.split(","):
            measure(arguments, int(runs), dtype, device)


if __name__ == "__main__":
    main()
