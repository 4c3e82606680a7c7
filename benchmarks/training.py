"""Training to an accuracy with DistributedDataParallel and nowait, with equal workers and with a slow one.

    make bench-training

Four workers train the same MLP on scikit-learn's digits, with batches of 64 per worker, with momentum SGD and with
AdamW: with PyTorch's DistributedDataParallel (gloo), with rounds of nowait that do not wait for slow workers, and with
asynchronous SGD. Every gradient takes at least 50 ms (a pause simulates a larger model, so that four workers can run on
two cores); in the second setting one worker takes ten times as long.

Momentum and stepsize of each are tuned by the same number of trials in virtual time (``nw.tune``), DDP's on minibatch
SGD, which is the same algorithm. A trial ends at the accuracy, and the soonest is the best. Times are medians over
seeds that no trial had. They begin when all workers have been started: at a barrier with DDP, and when the last worker
begins its first gradient with nowait (the others have delivered a few by then). Those of DDP exclude its
evaluations; nowait evaluates concurrently. All begin at the same params, and DDP draws the samples of minibatch SGD.

Last, ``nw.plan`` compares methods in virtual time where gradients have more noise and speeds differ in other ways.
"""

import itertools
import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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

WORKERS, BATCH, SECONDS, SLOWDOWN = 4, 64, 0.05, 10.0
ACCURACY = 0.97
MOST_SECONDS = 90.0
TRIALS, SEEDS = 6, (0, 1, 2)
"""Stepsizes tried with every momentum; the seeds of the runs."""
TRIAL_GRADIENTS = 600
"""The length of a trial that does not reach the accuracy."""
REACHED, GIVEN_UP = 1, 2

PLAN_SPEEDS = {
    "equal workers": nw.speeds.Fixed([1.0, 1.0, 1.0, 1.0]),
    "one worker 10 x slower": nw.speeds.Fixed([1.0, 1.0, 1.0, 10.0]),
    "speeds 1 : 2 : 4 : 8": nw.speeds.Fixed([1.0, 2.0, 4.0, 8.0]),
    "random times, log-normal, σ = 1.5": nw.speeds.LogNormal([1.0] * WORKERS, sigma=1.5),
}
PLAN_GRADIENTS, PLAN_SEEDS = 3_000, 6


@dataclass(frozen=True)
class Optimiser:
    """An optimiser: its class, the first stepsize of the trials, and its options for some momentum."""

    name: str
    kind: type
    start: float
    options: Callable[[float], dict[str, Any]]

    def update(self, momentum):
        return TorchOptimizer(self.kind, **self.options(momentum))


OPTIMISERS = (
    Optimiser("SGD with momentum", torch.optim.SGD, 0.2, lambda momentum: {"momentum": momentum}),
    Optimiser("AdamW", torch.optim.AdamW, 0.01, lambda momentum: {"betas": (momentum, 0.999)}),
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
    def speeds(self):
        return nw.speeds.Fixed(self.seconds)

    @property
    def title(self):
        return f"{self.optimiser.name}, {'one worker 10 x slower' if self.slow else 'equal workers'}"


SETTINGS = [Setting(optimiser, slow) for optimiser in OPTIMISERS for slow in (False, True)]


@dataclass(frozen=True)
class Contender:
    """A method as a function of setting and stepsize, the momenta to try, and the steps between evaluations."""

    name: str
    make: Callable[[Setting, float], nw.Method]
    momenta: tuple[float, ...]
    evaluate_every: int = 1


def rounds(setting, size):
    """Return a method that waits for the workers that are worth keeping by the theory."""
    slow = nw.theory.speedup(setting.seconds).worth_removing
    return nw.MSynchronousSGD(nw.Constant(size), m=WORKERS - len(slow))


DDP = Contender("DDP (gloo)", lambda _, size: nw.MinibatchSGD(nw.Constant(size)), (0.8, 0.9, 0.95))
NOWAIT = (
    Contender("nowait, rounds", rounds, DDP.momenta),
    Contender(
        "nowait, asynchronous",
        lambda _, size: nw.AsynchronousSGD(nw.Constant(size)),
        momenta=(0.0, 0.3, 0.6),  # less, because delays act like momentum
        evaluate_every=WORKERS,
    ),
)


@dataclass(frozen=True)
class Tuned:
    """A contender in a setting, with its best momentum and stepsize."""

    contender: Contender
    setting: Setting
    momentum: float
    tuning: nw.Tuning

    @property
    def arguments(self):
        """The arguments that ``nw.simulate`` and ``nw.train`` share."""
        return {
            "speeds": self.setting.speeds,
            "target": {"accuracy": ACCURACY},
            "evaluate_every": self.contender.evaluate_every,
            "update": self.setting.optimiser.update(self.momentum),
            "progress": False,
        }


@dataclass(frozen=True)
class Result:
    """Medians over the seeds: seconds to the accuracy, real and virtual, and gradients per second."""

    seconds: float
    virtual: float
    rate: float
    reached: int
    """How many runs reached the accuracy."""


def build_model():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean()


def data():
    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    inputs, targets = torch.tensor(images[order] / 16, dtype=torch.float32), torch.tensor(digits[order])
    return TensorDataset(inputs[:1400], targets[:1400]), TensorDataset(inputs[1400:], targets[1400:])


def digits_problem():
    train_set, validation = data()
    options = {"validation": validation, "metrics": {"accuracy": accuracy}, "evaluation_batch_size": len(validation)}
    return TorchProblem(build_model, nn.functional.cross_entropy, train_set, batch_size=BATCH, **options)


# Tuning


def tuned(problem, contender, setting):
    """Return the best of the trials of all momenta."""
    found = []
    for momentum in contender.momenta:
        tuning = nw.tune(
            problem,
            partial(contender.make, setting),
            speeds=setting.speeds,
            trials=TRIALS,
            start=setting.optimiser.start,
            gradients=TRIAL_GRADIENTS,
            target={"accuracy": ACCURACY},
            evaluate_every=contender.evaluate_every,
            update=setting.optimiser.update(momentum),
            seed=max(SEEDS) + 1,
            progress=False,
        )
        found.append(Tuned(contender, setting, momentum, tuning))
    return min(found, key=lambda one: one.tuning.score)


def virtual_seconds(problem, chosen):
    """Return the median time to the accuracy in virtual time."""
    runs = (
        nw.simulate(problem, chosen.tuning.method, gradients=2 * TRIAL_GRADIENTS, seed=seed, **chosen.arguments)
        for seed in SEEDS
    )
    return float(np.median([until_accurate(run)[0] for run in runs]))


def until_accurate(run):
    """Return seconds and gradients to the accuracy; infinite seconds if it was not reached."""
    good = np.flatnonzero(run.history.metrics["accuracy"] >= ACCURACY)
    place = int(good[0]) if len(good) else -1
    return float(run.history.time[place]) if len(good) else math.inf, int(run.history.gradients[place])


# Real runs: each returns seconds, infinite if the accuracy was not reached, and gradients per second


def ddp_worker(rank, port, jobs, results):
    """Make all runs, one after the other: start-up is not part of the comparison."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=WORKERS)
    for job in jobs:
        measured = ddp_run(rank, *job)
        if rank == 0:
            results.put(measured)
    dist.destroy_process_group()


def ddp_run(rank, pauses, make_optimizer, seed):
    """Run the loop of a DDP tutorial, with a pause that simulates a slower gradient."""
    network = build_model()
    nn.utils.vector_to_parameters(torch.tensor(digits_problem().initial()), network.parameters())
    model = DistributedDataParallel(network)
    optimizer = make_optimizer(model.parameters())
    train_set, validation = data()
    inputs, targets = train_set.tensors
    pause, samples, evaluating, end = pauses[rank], sampler(seed), 0.0, torch.zeros(1)
    dist.barrier()
    began = time.perf_counter()
    for step in itertools.count():
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
    seconds = time.perf_counter() - began - evaluating
    return seconds if end[0] == REACHED else math.inf, (step + 1) * WORKERS / seconds


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


def ddp_jobs(chosen):
    optimiser = chosen.setting.optimiser
    make_optimizer = partial(optimiser.kind, lr=chosen.tuning.stepsize, **optimiser.options(chosen.momentum))
    return [(chosen.setting.seconds, make_optimizer, seed) for seed in SEEDS]


def run_nowait(problem, chosen, seed):
    run = nw.train(problem, chosen.tuning.method, seconds=MOST_SECONDS, seed=seed, **chosen.arguments)
    (seconds, gradients), began = until_accurate(run), start_of(run.trace)
    end = float(run.history.time[-1]) if math.isinf(seconds) else seconds
    return seconds - began, gradients / (end - began)


def start_of(trace):
    """Return when the last worker began its first gradient."""
    _, first_rows = np.unique(trace.worker, return_index=True)
    return float(trace.started[first_rows].max())


# What is printed


def result_of(problem, chosen, measured):
    """Return the medians of (seconds, gradients per second) over the seeds."""
    seconds, rates = map(np.array, zip(*measured, strict=True))
    virtual = virtual_seconds(problem, chosen)
    return Result(float(np.median(seconds)), virtual, float(np.median(rates)), int(np.isfinite(seconds).sum()))


def show_setting(problem, ddp_chosen, ddp_measured):
    """Tune and run the methods of nowait in the setting of DDP, and print the table."""
    setting = ddp_chosen.setting
    gain = nw.theory.speedup(setting.seconds).speedup
    print(f"\n{setting.title}: predicted speedup {gain:.2f} x", flush=True)
    print(
        f"{'':22}{'momentum':>10}{'stepsize':>10}{'seconds':>9}{'reached':>9}{'gradients/s':>13}{'sooner':>9}{'virtual':>9}"
        f"{'gradients':>11}{'share of prediction':>21}"
    )
    ddp = result_of(problem, ddp_chosen, ddp_measured)
    show(ddp_chosen, ddp, ddp, None)
    for contender in NOWAIT:
        chosen = tuned(problem, contender, setting)
        measured = [run_nowait(problem, chosen, seed) for seed in SEEDS]
        show(chosen, result_of(problem, chosen, measured), ddp, gain)


def show(chosen, found, ddp, gain):
    sooner, rate = ddp.seconds / found.seconds, found.rate / ddp.rate
    share = "" if gain is None else f"{sooner / gain:21.2f}"
    print(
        f"{chosen.contender.name:22}{chosen.momentum:10}{chosen.tuning.stepsize:10.3g}{found.seconds:9.2f}"
        f"{found.reached:5} / {len(SEEDS)}{found.rate:13.1f}{sooner:7.2f} x{ddp.virtual / found.virtual:7.2f} x"
        f"{rate:9.2f} x{share}",
        flush=True,
    )


def show_plans():
    """Print how much sooner methods reach a loss than minibatch SGD, where gradients have a batch of 1."""
    images, digits = load_digits(return_X_y=True)
    problem = nw.problems.LogisticRegression(images / 16, digits % 2 == 1, batch_size=1, l2=1e-3)
    print(f"\nnw.plan, in virtual time, on {problem}: sooner at the same loss than minibatch SGD, as DDP")
    for title, speeds in PLAN_SPEEDS.items():
        advice = nw.plan(problem, speeds=speeds, gradients=PLAN_GRADIENTS, seeds=PLAN_SEEDS, progress=False)
        print(f"\n{title}, to a loss of {advice.target_loss:.3g}; s_max/HM = {advice.speedup.speedup:.2f}")
        for one in advice.simulated:
            sooner, error = advice.minibatch.seconds / one.seconds, one.error / one.seconds
            print(f"{one.method:54}{sooner:7.2f} x, standard error {100 * error:.0f} %", flush=True)


def main():
    logging.getLogger("nowait").setLevel(logging.ERROR)  # the momentum is chosen for the delays
    torch.set_num_threads(1)
    problem = digits_problem()
    print(f"{WORKERS} workers, {problem}, to an accuracy of {ACCURACY}, at least {SECONDS * 1000:.0f} ms per gradient")
    print(f"{TRIALS * len(DDP.momenta)} trials for each; medians of {len(SEEDS)} seeds")
    print("sooner: time to the accuracy, gradients: gradients per second, both relative to DDP")
    print("virtual: sooner in virtual time; predicted: s_max/HM; share of prediction: sooner / predicted")
    chosen = [tuned(problem, DDP, setting) for setting in SETTINGS]
    measured = iter(run_ddp([job for one in chosen for job in ddp_jobs(one)]))
    for one in chosen:
        show_setting(problem, one, [next(measured) for _ in SEEDS])
    show_plans()


if __name__ == "__main__":
    main()
