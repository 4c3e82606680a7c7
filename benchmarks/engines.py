"""Speed of the process engine relative to baselines that are measured in alternation with it.

    make bench-engines

1. Least squares, d = 400, batch 1, 40 workers, compared with a bare loop of pipes, shared memory and numpy that does
   the same work with the same gradient code, without versions, trace, checks, fault handling and evaluation. Two
   variants: every worker answers through its own pipe, or all through one (as in the engine).
2. The same with batch 256, compared with the asynchronous parameter server of Ray's documentation (an actor that holds
   params, actors that compute gradients, ``ray.wait``), if Ray is installed.
3. d = 10,000,000 in float32, the gradient a plain copy of the point, 2 workers: bytes of gradients and points per
   second, compared with a plain copy of as many bytes.
4. Starting 40 workers with 32 MB of data, also from a script that has imported torch, if torch is installed.
"""

import importlib.util
import mmap
import os
import platform
import select
import signal
import statistics
import struct
import subprocess
import sys
import time
from functools import partial

import numpy as np
from copying import Copy

import nowait as nw
from nowait.core import sampler

WORKERS, STEPSIZE, ROUNDS = 40, 0.01, 7
LARGE = 10_000_000
ORDER, REPORT = struct.Struct("<qqii"), struct.Struct("<qddii")


def bare_loop(problem, steps, *, one_pipe):
    """Run a minimal asynchronous SGD with processes and return its steps per second.

    Every worker has a pipe for its orders. Answers come through one pipe per worker, which the server polls, or (with
    ``one_pipe``) through a single pipe, which it reads in batches.
    """
    dimension = problem.dimension
    memory = np.frombuffer(mmap.mmap(-1, 2 * WORKERS * dimension * 8)).reshape(2, WORKERS, dimension)
    points, gradients = memory
    problem.prepare()
    answers = [os.pipe() for _ in range(1 if one_pipe else WORKERS)]
    orders = [os.pipe() for _ in range(WORKERS)]
    processes = []
    for worker in range(WORKERS):
        process = os.fork()
        if process == 0:
            pipes = orders[worker][0], answers[worker % len(answers)][1]
            _bare_worker(worker, problem, (points[worker], gradients[worker]), pipes)
        processes.append(process)
    rate = _serve(steps, points, gradients, [ours for _, ours in orders], [ours for ours, _ in answers])
    for process in processes:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    for ends in [*answers, *orders]:
        for end in ends:
            os.close(end)
    return rate


def _serve(steps, points, gradients, orders, answers):
    poller = select.epoll()
    for answer in answers:
        poller.register(answer, select.EPOLLIN)
    params, jobs, step = np.zeros(points.shape[1]), [1] * WORKERS, 0
    began = time.perf_counter()
    for pipe in orders:
        os.write(pipe, ORDER.pack(0, 0, 0, 0))
    while step < steps:
        ready = [answers[0]] if len(answers) == 1 else [answer for answer, _ in poller.poll()]
        for answer in ready:
            for _, _, _, worker, _ in REPORT.iter_unpack(os.read(answer, 2048 * REPORT.size)):
                params -= STEPSIZE * gradients[worker]
                points[worker] = params
                os.write(orders[worker], ORDER.pack(step, jobs[worker], 0, 0))
                jobs[worker] += 1
                step += 1
    seconds = time.perf_counter() - began
    poller.close()
    return step / seconds


def _bare_worker(worker, problem, vectors, pipes):
    (point, gradient), (orders, answers) = vectors, pipes
    samples = sampler(0)
    point.flags.writeable = False
    while len(order := os.read(orders, ORDER.size)) == ORDER.size:
        ticket, job, _, _ = ORDER.unpack(order)
        problem.gradient_into(point, samples.sample(worker, job), gradient)
        os.write(answers, REPORT.pack(ticket, 0.0, 0.0, worker, 0))
    os._exit(0)


def engine(problem, steps, workers=WORKERS):
    """Return the steps per second of the process engine."""
    method = nw.AsynchronousSGD(nw.Constant(STEPSIZE))
    run = nw.train(problem, method, workers=workers, steps=steps, evaluate_every=steps, progress=False)
    return run.stats.steps_per_second


class Batch:
    """A minibatch gradient of least squares."""

    def __init__(self, features, targets, seed):
        self.features, self.targets, self.rng = features, targets, np.random.default_rng(seed)

    def __call__(self, params):
        rows = self.rng.integers(len(self.targets), size=256)
        batch = self.features[rows]
        return (batch @ params - self.targets[rows]) @ batch / 256


def ray_pattern(features, targets, steps):
    """Return the steps per second of Ray's asynchronous parameter server with least squares as the model."""
    import ray
    from parameter_server import steps_per_second

    ray.init(address="local", include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    shared = ray.put(features), ray.put(targets)
    workers = [(*shared, seed) for seed in range(WORKERS)]
    rate = steps_per_second(np.zeros(features.shape[1]), STEPSIZE, steps, Batch, workers)
    ray.shutdown()
    return rate


def plain_copy():
    """Return the bytes per second of a plain copy."""
    source, target = np.ones(LARGE, np.float32), np.empty(LARGE, np.float32)
    np.copyto(target, source)
    began = time.perf_counter()
    for _ in range(20):
        np.copyto(target, source)
    return 20 * source.nbytes / (time.perf_counter() - began)


def large_params():
    """Return the bytes of gradients and points per second."""
    method = nw.AsynchronousSGD(nw.Constant(1e-6))
    run = nw.train(Copy(LARGE, np.float32), method, workers=2, steps=60, evaluate_every=60, progress=False)
    return run.stats.steps_per_second * 2 * 4 * LARGE


START = """
{first}
import time
import numpy as np
import nowait as nw
rng = np.random.default_rng(0)
problem = nw.problems.LeastSquares(rng.normal(size=(10_000, 400)), rng.normal(size=10_000))
began = time.perf_counter()
run = nw.train(problem, nw.MinibatchSGD(nw.Constant(0.01)), workers=40, steps=1, progress=False)
print(time.perf_counter() - began)
"""


def start_up(first=""):
    """Return the seconds of a whole call that makes one step with 40 workers."""
    result = subprocess.run(
        [sys.executable, "-c", START.format(first=first)], capture_output=True, text=True, check=True
    )
    return float(result.stdout)


def ratios(ours, baseline, rounds=ROUNDS):
    """Measure both in alternating rounds; return both medians and the median of the ratios."""
    pairs = [(ours(), baseline()) for _ in range(rounds)]
    ours_median, baseline_median = (statistics.median(values) for values in zip(*pairs, strict=True))
    return ours_median, baseline_median, statistics.median(mine / theirs for mine, theirs in pairs)


def main():
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores; medians of {ROUNDS} alternating rounds\n")
    problem = nw.problems.LeastSquares.random(10_000, 400, batch_size=1)
    for name, one_pipe in (("a pipe each", False), ("one pipe", True)):
        baseline = partial(bare_loop, problem, 40_000, one_pipe=one_pipe)
        ours, bare, ratio = ratios(partial(engine, problem, 40_000), baseline)
        rate = f"{ours:10,.0f} steps/s"
        print(f"batch 1, 40 workers:    {rate}   bare loop, {name} {bare:10,.0f} steps/s   ratio {ratio:.2f}")
    large = nw.problems.LeastSquares.random(10_000, 400, batch_size=256)
    if importlib.util.find_spec("ray") is None:
        print(f"batch 256, 40 workers:  {engine(large, 20_000):10,.0f} steps/s   (Ray is not installed)")
    else:
        baseline = partial(ray_pattern, large.features, large.targets, 2_000)
        ours, theirs, ratio = ratios(partial(engine, large, 20_000), baseline, rounds=3)
        print(
            f"batch 256, 40 workers:  {ours:10,.0f} steps/s   Ray's pattern {theirs:6,.0f} steps/s   ratio {ratio:.1f}"
        )
    ours, copy, ratio = ratios(large_params, plain_copy, rounds=5)
    print(
        f"d = 10^7, 2 workers:    {ours / 1e9:10.2f} GB/s      plain copy {copy / 1e9:6.2f} GB/s      ratio {ratio:.2f}"
    )
    print(f"start of 40 workers:    {statistics.median(start_up() for _ in range(5)):10.2f} s (32 MB of data)")
    if importlib.util.find_spec("torch") is not None:
        seconds = statistics.median(start_up("import torch") for _ in range(3))
        print(f"the same, with torch:   {seconds:10.2f} s")


if __name__ == "__main__":
    main()
