"""Training to an accuracy with DistributedDataParallel and nowait, with equal workers and with a slow one.

    make bench-training

Four workers train the same MLP on scikit-learn's digits, with batches of 64 per worker, with momentum SGD and with
AdamW, once with PyTorch's DistributedDataParallel (gloo), once with methods of nowait. Every gradient takes at least
100 ms (a pause simulates a larger model, so that four workers can run on two cores); in the second setting one worker
takes ten times as long. Every stepsize is tuned by the same number of trials in virtual time (``nw.tune``); DDP uses
that of minibatch SGD, which is the same algorithm. Batches of 8, whose gradients have more noise, are compared in
virtual time only. Times are medians over seeds and exclude the start. Those of DDP exclude its evaluations as well;
nowait evaluates concurrently.
"""

import logging
import math
import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.core import sampler
from nowait.pytorch import TorchOptimizer, TorchProblem

WORKERS, BATCH, SECONDS, SLOWDOWN = 4, 64, 0.1, 10.0
ACCURACY = 0.95
MOST_SECONDS = 90.0
TRIALS, SEEDS = 6, (0, 1, 2)
EVALUATE_EVERY = 4
SMALL_BATCH = 8
"""Gradients with more noise: then asynchrony costs less progress per gradient. Only simulated."""
TRIAL_GRADIENTS = 1_500
"""The length of a trial that does not reach the accuracy."""
REACHED, GIVEN_UP = 1, 2


@dataclass(frozen=True)
class Optimiser:
    """An optimiser with its options: asynchronous steps get less momentum, since delays act like momentum."""

    name: str
    kind: type
    start: float
    """The first stepsize of the trials."""
    synchronous: dict[str, Any]
    asynchronous: dict[str, Any]


OPTIMISERS = (
    Optimiser("SGD, momentum 0.9", torch.optim.SGD, 0.05, {"momentum": 0.9}, {"momentum": 0.6}),
    Optimiser("AdamW", torch.optim.AdamW, 0.003, {"betas": (0.9, 0.999)}, {"betas": (0.6, 0.999)}),
)


@dataclass(frozen=True)
class Contender:
    """A method of nowait, a function of the stepsize, and whether its steps are synchronous."""

    name: str
    make: Any
    synchronous: bool

    def options(self, optimiser):
        return optimiser.synchronous if self.synchronous else optimiser.asynchronous


DDP = "DDP (gloo)"
CONTENDERS = (
    Contender(DDP, lambda size: nw.MinibatchSGD(nw.Constant(size)), synchronous=True),
    Contender("nowait, Rennala", lambda size: nw.RennalaSGD(nw.Constant(size), batch=WORKERS), synchronous=True),
    Contender("nowait, asynchronous", lambda size: nw.AsynchronousSGD(nw.DelayAdaptive(size)), synchronous=False),
)


@dataclass(frozen=True)
class Setting:
    """An optimiser, and whether one worker is slow."""

    optimiser: Optimiser
    slow: bool

    @property
    def seconds(self):
        """Seconds per gradient of every worker."""
        return [SECONDS] * (WORKERS - 1) + [SECONDS * (SLOWDOWN if self.slow else 1.0)]

    @property
    def title(self):
        return f"{self.optimiser.name}, {'one worker slowed 10 x' if self.slow else 'equal workers'}"


SETTINGS = [Setting(optimiser, slow) for optimiser in OPTIMISERS for slow in (False, True)]


@dataclass(frozen=True)
class Result:
    """Medians over the seeds: seconds to the accuracy, gradients per second, and how many runs reached it."""

    tuning: nw.Tuning
    seconds: float
    rate: float
    reached: int


def build_model():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean()


def data():
    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    inputs, targets = torch.tensor(images[order] / 16, dtype=torch.float32), torch.tensor(digits[order])
    return TensorDataset(inputs[:1400], targets[:1400]), TensorDataset(inputs[1400:], targets[1400:])


def ddp_worker(rank, port, jobs, results):
    """Make all runs, one after the other: start-up is not part of the comparison."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=WORKERS)
    for setting, stepsize, seed in jobs:
        measured = ddp_run(rank, setting, stepsize, seed)
        if rank == 0:
            results.put(measured)
    dist.destroy_process_group()


def ddp_run(rank, setting, stepsize, seed):
    """Run the loop of a DDP tutorial, with a pause that simulates a slower gradient.

    Return seconds, gradients, and whether the accuracy was reached.
    """
    torch.manual_seed(seed)
    model = DistributedDataParallel(build_model())
    optimizer = setting.optimiser.kind(model.parameters(), lr=stepsize, **setting.optimiser.synchronous)
    train_set, validation = data()
    inputs, targets = train_set.tensors
    pause, samples, evaluating, end = setting.seconds[rank], sampler(seed), 0.0, torch.zeros(1)
    dist.barrier()
    began = time.perf_counter()
    for step in range(1, 1_000_000):
        ticket = time.perf_counter()
        rows = samples.sample(rank, step).indices(len(train_set), BATCH)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
        time.sleep(max(0.0, pause - (time.perf_counter() - ticket)))  # before backward, which averages gradients
        loss.backward()
        optimizer.step()
        look = time.perf_counter()
        if rank == 0:
            with torch.no_grad():
                good = accuracy(model.module(validation.tensors[0]), validation.tensors[1]) >= ACCURACY
            end[0] = REACHED if good else GIVEN_UP if look - began - evaluating > MOST_SECONDS else 0
        dist.broadcast(end, 0)
        evaluating += time.perf_counter() - look
        if end[0]:
            break
    return time.perf_counter() - began - evaluating, step * WORKERS, end[0].item() == REACHED


def run_ddp(jobs):
    """Return what ``ddp_run`` returns for every job."""
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    port = 29_500 + os.getpid() % 1_000
    processes = [context.Process(target=ddp_worker, args=(rank, port, jobs, results)) for rank in range(WORKERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode != 0 for process in processes):
        raise RuntimeError("a process of DDP failed")
    return [results.get() for _ in jobs]


def run_nowait(problem, contender, setting, stepsize, seed):
    """Return seconds, gradients, and whether the accuracy was reached."""
    run = nw.train(
        problem,
        contender.make(stepsize),
        speeds=nw.speeds.Fixed(setting.seconds),
        seconds=MOST_SECONDS,
        target={"accuracy": ACCURACY},
        evaluate_every=1 if contender.synchronous else EVALUATE_EVERY,
        update=TorchOptimizer(setting.optimiser.kind, **contender.options(setting.optimiser)),
        seed=seed,
        progress=False,
    )
    good = np.flatnonzero(run.history.metrics["accuracy"] >= ACCURACY)
    place = int(good[0]) if len(good) else -1
    return float(run.history.time[place]), int(run.history.gradients[place]), bool(len(good))


def tuned(problem, contender, setting):
    """Return the trials of the stepsize in virtual time; the one that reaches the accuracy first is the best."""
    start = setting.optimiser.start
    return nw.tune(
        problem,
        contender.make,
        speeds=nw.speeds.Fixed(setting.seconds),
        trials=TRIALS,
        start=start if contender.synchronous else start / math.sqrt(WORKERS),
        gradients=TRIAL_GRADIENTS,
        target={"accuracy": ACCURACY},
        evaluate_every=2 if contender.synchronous else 2 * EVALUATE_EVERY,
        update=TorchOptimizer(setting.optimiser.kind, **contender.options(setting.optimiser)),
        seed=max(SEEDS) + 1,
        progress=False,
    )


def result_of(tuning, measured):
    """Return the medians of (seconds, gradients, reached) over the seeds; runs that did not reach it took forever."""
    times = [seconds if reached else math.inf for seconds, _, reached in measured]
    rates = [gradients / seconds for seconds, gradients, _ in measured]
    return Result(tuning, float(np.median(times)), float(np.median(rates)), sum(one[2] for one in measured))


def show(name, found, ddp, gain):
    sooner, rate = ddp.seconds / found.seconds, found.rate / ddp.rate
    share = "" if gain is None else f"{sooner / gain:19.2f}"
    virtual = ddp.tuning.best.seconds_to_target / found.tuning.best.seconds_to_target
    print(
        f"{name:24}{found.tuning.stepsize:10.3g}{found.seconds:10.2f}{found.reached:6} / {len(SEEDS)}{found.rate:12.1f}"
        f"{sooner:8.2f} x{virtual:8.2f} x{rate:9.2f} x{share}",
        flush=True,
    )


def show_setting(problem, setting, tunings, ddp):
    """Run the methods of nowait, and print the table of a setting."""
    gain = nw.theory.speedup(setting.seconds).speedup
    print(f"\n{setting.title}: predicted speedup {gain:.2f} x", flush=True)
    print(
        f"{'':24}{'stepsize':>10}{'seconds':>10}{'reached':>9}{'gradients/s':>13}{'sooner':>10}{'virtual':>10}"
        f"{'gradients':>11}{'share of prediction':>21}"
    )
    show(DDP, ddp, ddp, None)
    for one in CONTENDERS[1:]:
        size = tunings[one.name].stepsize
        measured = [run_nowait(problem, one, setting, size, seed) for seed in SEEDS]
        show(one.name, result_of(tunings[one.name], measured), ddp, gain)


def show_virtual(setting, tunings):
    """Print how much sooner the best trials of nowait's methods reached the accuracy in virtual time."""
    gain, ddp = nw.theory.speedup(setting.seconds).speedup, tunings[DDP].best.seconds_to_target
    for one in CONTENDERS[1:]:
        sooner = ddp / tunings[one.name].best.seconds_to_target
        print(f"{setting.title + ', ' + one.name:64}{sooner:8.2f} x, {sooner / gain:.2f} of the prediction", flush=True)


def problem_of(batch):
    train_set, validation = data()
    options = {"batch_size": batch, "validation": validation, "metrics": {"accuracy": accuracy}}
    return TorchProblem(build_model, nn.functional.cross_entropy, train_set, **options)


def tune_all(problem):
    """Return the tuning of every contender by name, for every setting."""
    return [{one.name: tuned(problem, one, setting) for one in CONTENDERS} for setting in SETTINGS]


def main():
    logging.getLogger("nowait").setLevel(logging.ERROR)  # the momentum is chosen for the delays
    print(f"{WORKERS} workers, to an accuracy of {ACCURACY}; {TRIALS} trials of every stepsize")
    print(
        f"\nBatches of {SMALL_BATCH}, in virtual time: time to the accuracy relative to minibatch SGD, which is DDP's"
    )
    for setting, tunings in zip(SETTINGS, tune_all(problem_of(SMALL_BATCH)), strict=True):
        show_virtual(setting, tunings)
    problem = problem_of(BATCH)
    print(f"\n{problem}, at least {SECONDS * 1000:.0f} ms per gradient, medians of {len(SEEDS)} seeds")
    print("sooner: time to the accuracy, gradients: gradients per second, both relative to DDP")
    print("virtual: sooner in virtual time; predicted: s_max/HM, for asynchronous methods; share: sooner / predicted")
    all_tunings = tune_all(problem)
    sizes = [tunings[DDP].stepsize for tunings in all_tunings]
    jobs = [(setting, size, seed) for setting, size in zip(SETTINGS, sizes, strict=True) for seed in SEEDS]
    measured = run_ddp(jobs)
    for place, (setting, tunings) in enumerate(zip(SETTINGS, all_tunings, strict=True)):
        runs = measured[place * len(SEEDS) : (place + 1) * len(SEEDS)]
        show_setting(problem, setting, tunings, result_of(tunings[DDP], runs))


if __name__ == "__main__":
    main()
