"""Auto against DistributedDataParallel with four real processes: time to a loss, and the gain a simulation predicts.

A convolutional network with batch normalisation (157,000 params) on generated images, or on Fashion-MNIST with
``--data FOLDER`` (its four ``idx`` files, ``.gz`` or not). Both use SGD with Nesterov's momentum, the same learning
rate and batches of 16. A gradient takes at least 30 ms, multiplied by the worker's factor: a pause makes it that long,
so that four workers run on two cores. Three settings: equal workers, one ten times slower, and factors 1, 2, 4 and 8.

The loss is that of 1,000 validation items, averaged over the latest tenth of the run. DDP (gloo) and ``nw.train`` run
in turns with new seeds. Time begins when all workers are ready, and that of DDP excludes its evaluations; nowait
evaluates in a process of its own, on the same cores. Printed: seconds of both, the geometric mean of their ratio with a
bootstrap interval over repeats, the same ratio of two simulations (``nw.simulate``) with the same speeds and seeds, and
achieved / predicted. Targets: 0.95 with equal workers, 0.85 elsewhere.

``python benchmarks/auto_real.py`` on a quiet machine (ten minutes; ``--quick`` for a short try)
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import logging
import math
import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.core import sampler
from nowait.pytorch import TorchProblem

WORKERS, BATCH, SECONDS, MOMENTUM = 4, 16, 0.03, 0.9
SETTINGS = {
    "equal workers": (1.0, 1.0, 1.0, 1.0),
    "one ten times slower": (1.0, 1.0, 1.0, 10.0),
    "speeds 1 : 2 : 4 : 8": (1.0, 2.0, 4.0, 8.0),
}
EVALUATE_EVERY = 4
"""Steps of minibatches."""
MOST_STEPS = 600


@dataclass(frozen=True)
class Task:
    """What is trained, and up to which loss."""

    data: str | None
    rate: float
    target: float

    def problem(self) -> TorchProblem:
        train_set, validation = loaded(self.data)
        options: dict[str, Any] = {"validation": validation, "evaluation_batch_size": len(validation)}
        return TorchProblem(network, nn.functional.cross_entropy, train_set, batch_size=BATCH, **options)


def network() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise((1, 16, 32, 64)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 10))


@cache
def loaded(folder: str | None) -> tuple[TensorDataset, TensorDataset]:
    """Return the data set for training and 1,000 items for validation."""
    images, labels = generated() if folder is None else fashion(Path(folder))
    inputs, targets = torch.tensor(images, dtype=torch.float32).unsqueeze(1), torch.tensor(labels)
    return TensorDataset(inputs[1_000:], targets[1_000:]), TensorDataset(inputs[:1_000], targets[:1_000])


def generated() -> tuple[np.ndarray, np.ndarray]:
    """Return images of ten classes: one of three patterns of a class, moved a little, with noise."""
    random = np.random.default_rng(0)
    patterns = random.normal(size=(10, 3, 7, 7)).repeat(4, axis=2).repeat(4, axis=3)
    labels, kinds = random.integers(10, size=7_000), random.integers(3, size=7_000)
    shifts = random.integers(-4, 5, size=(7_000, 2))
    rows = zip(labels, kinds, shifts, strict=True)
    images = np.stack([np.roll(patterns[label, kind], shift, axis=(0, 1)) for label, kind, shift in rows])
    return images + random.normal(scale=1.5, size=images.shape), labels


def fashion(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the images of Fashion-MNIST, between -1 and 1, and their labels."""
    parts = [read_idx(folder, f"train-{name}") for name in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    return parts[0] / 127.5 - 1.0, parts[1].astype(np.int64)


def read_idx(folder: Path, name: str) -> np.ndarray:
    packed = folder / f"{name}.gz"
    contents = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / name).read_bytes()
    dimensions = contents[3]
    shape = np.frombuffer(contents, ">i4", dimensions, offset=4)
    return np.frombuffer(contents, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def is_reached(times: list[float], losses: list[float], target: float) -> bool:
    """Return True if the loss, averaged over the latest tenth, is at the target."""
    latest = np.asarray(times) >= 0.9 * times[-1]
    return len(times) > 3 and float(np.asarray(losses)[latest].mean()) <= target


class StopAt(nw.Callback):
    """Stops a run at its target, and keeps the time."""

    def __init__(self, target: float) -> None:
        self.target, self.time = target, math.inf

    def on_evaluate(self, control: Any) -> None:
        if self.time == math.inf and is_reached(list(control.history.time), list(control.history.loss), self.target):
            self.time = float(control.history.time[-1])
            control.stop()


def simulated(task: Task, method: nw.Method, seconds: list[float], seed: int, every: float) -> float:
    """Return the time to the target in a simulation that is evaluated after every so many seconds."""
    stop, update = StopAt(task.target), None if isinstance(method, nw.Auto) else nw.Nesterov(MOMENTUM)
    nw.simulate(
        task.problem(),
        method,
        nw.speeds.Fixed(seconds),
        seconds=MOST_STEPS * max(seconds),
        seed=seed,
        update=update,
        evaluate_seconds=every,
        callbacks=[stop],
        progress=False,
    )
    return stop.time


@cache
def minibatch_steps(task: Task, seed: int) -> float:
    method = nw.MinibatchSGD(nw.Constant(task.rate))
    return simulated(task, method, [1.0] * WORKERS, seed, float(EVALUATE_EVERY))


def predicted(task: Task, seconds: list[float], seed: int) -> tuple[float, float]:
    """Return the seconds of minibatches and of Auto to the target in simulations."""
    own = simulated(task, nw.Auto(task.rate, MOMENTUM), seconds, seed, EVALUATE_EVERY * SECONDS)
    return max(seconds) * minibatch_steps(task, seed), own


def auto_run(task: Task, seconds: list[float], seed: int, cap: float) -> float:
    """Return the time to the target; about a hundred evaluations are spread over ``cap`` seconds."""
    stop, speeds = StopAt(task.target), nw.speeds.Fixed(seconds)
    method = nw.Auto(task.rate, MOMENTUM)
    options: dict[str, Any] = {"start": "together", "callbacks": [stop], "progress": False}
    nw.train(task.problem(), method, speeds=speeds, seconds=cap, seed=seed, **options)
    return stop.time


# DistributedDataParallel


def ddp_worker(rank: int, port: int, task: Task, jobs: Any, results: Any) -> None:
    """Make a run for every job: the seconds of a gradient of each worker, and a seed. None ends the process."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=WORKERS)
    while (job := jobs.get()) is not None:
        measured = ddp_run(rank, task, *job)
        if rank == 0:
            results.put(measured)
    dist.destroy_process_group()


def ddp_run(rank: int, task: Task, seconds: list[float], seed: int) -> float:
    """Run the loop of a DDP tutorial, with a pause before the gradients are averaged."""
    torch.manual_seed(0)
    model, pause = DistributedDataParallel(network()), Pause()
    model.register_comm_hook(None, pause.wait_and_reduce)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.rate, momentum=MOMENTUM, nesterov=True)
    (inputs, targets), samples = loaded(task.data)[0].tensors, sampler(seed)
    times, losses, end, evaluating = [], [], torch.zeros(1), 0.0
    dist.barrier()
    began = time.perf_counter()
    for step in range(MOST_STEPS):
        pause.until = time.perf_counter() + seconds[rank]
        rows = samples.sample(rank, step).indices(len(inputs), BATCH)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
        loss.backward()
        optimizer.step()
        if step % EVALUATE_EVERY == EVALUATE_EVERY - 1:
            look = time.perf_counter()
            if rank == 0:
                times.append(look - began - evaluating)
                losses.append(validation_loss(model.module, task.data))
                end[0] = is_reached(times, losses, task.target)
            dist.broadcast(end, 0)
            evaluating += time.perf_counter() - look
            if end[0]:
                break
    return times[-1] if rank == 0 and end[0] else math.inf


class Pause:
    """Waits in DDP's hook, after the local gradient and before it is averaged, until a gradient may be complete."""

    def __init__(self) -> None:
        self.until = 0.0

    def wait_and_reduce(self, _, bucket):  # DDP refuses annotations that are texts
        time.sleep(max(0.0, self.until - time.perf_counter()))
        return default_hooks.allreduce_hook(None, bucket)


@torch.no_grad()
def validation_loss(model: nn.Module, folder: str | None) -> float:
    inputs, targets = loaded(folder)[1].tensors
    model.eval()
    loss = float(nn.functional.cross_entropy(model(inputs), targets))
    model.train()
    return loss


class Ddp:
    """Four processes of DistributedDataParallel, which wait for jobs."""

    def __init__(self, task: Task) -> None:
        context = mp.get_context("spawn")
        port = 29_500 + os.getpid() % 1_000
        self._results = context.SimpleQueue()
        self._jobs = [context.SimpleQueue() for _ in range(WORKERS)]
        self._processes = [
            context.Process(target=ddp_worker, args=(rank, port, task, jobs, self._results), daemon=True)
            for rank, jobs in enumerate(self._jobs)
        ]
        for process in self._processes:
            process.start()

    def run(self, seconds: list[float], seed: int) -> float:
        for jobs in self._jobs:
            jobs.put((seconds, seed))
        while self._results.empty():
            if any(process.exitcode is not None for process in self._processes):
                raise RuntimeError("a process of DDP failed")
            time.sleep(0.05)
        return float(self._results.get())

    def close(self) -> None:
        for jobs, process in zip(self._jobs, self._processes, strict=True):
            jobs.put(None)
            process.join()


# What is printed


def interval(ratios: list[float]) -> str:
    """Return the geometric mean with a 95 % bootstrap interval over repeats."""
    logs = np.log(ratios)
    draws = np.random.default_rng(0).choice(logs, (2_000, len(logs))).mean(axis=1)
    low, high = np.exp(np.quantile(draws, (0.025, 0.975)))
    return f"{math.exp(logs.mean()):.2f} [{low:.2f}, {high:.2f}]"


def show(name: str, task: Task, ddp: Ddp, repeats: int) -> None:
    seconds = [SECONDS * factor for factor in SETTINGS[name]]
    measured, expected = [], []
    for seed in range(repeats):
        prediction = predicted(task, seconds, seed)
        in_turns = (ddp.run(seconds, seed), auto_run(task, seconds, seed, 4 * prediction[1]))
        print(f"  {name}, seed {seed}: DDP {in_turns[0]:.2f} s, Auto {in_turns[1]:.2f} s", flush=True)
        if all(map(math.isfinite, in_turns)):
            measured.append(in_turns)
            expected.append(prediction)
    if len(measured) < repeats:
        print(f"  {name}: {repeats - len(measured)} of {repeats} repeats missed the target", flush=True)
    if measured:
        medians = np.median(measured, axis=0)
        gains, predictions = ([slow / fast for slow, fast in rows] for rows in (measured, expected))
        achieved = [gain / prediction for gain, prediction in zip(gains, predictions, strict=True)]
        cells = (f"{medians[0]:.1f} s", f"{medians[1]:.1f} s", *map(interval, (gains, predictions, achieved)))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="one repeat")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--data", help="a folder with train-images-idx3-ubyte and train-labels-idx1-ubyte, .gz or not")
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--target", type=float, help="the validation loss; by default 0.45, with --data 0.5")
    chosen = parser.parse_args()
    logging.getLogger("nowait").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    target = chosen.target or (0.45 if chosen.data is None else 0.5)
    task = Task(chosen.data, chosen.rate, target)
    ddp = Ddp(task)
    print(
        "| setting | DDP | Auto | DDP / Auto | predicted | achieved / predicted |\n|---|---|---|---|---|---|",
        flush=True,
    )
    for name in chosen.settings:
        show(name, task, ddp, 1 if chosen.quick else chosen.repeats)
    ddp.close()


if __name__ == "__main__":
    main()
