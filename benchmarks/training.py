"""Training to a validation loss with DistributedDataParallel and nowait, with equal workers and with a slow one.

    make bench-training

Four workers train the same MLP on scikit-learn's digits, with batches of 64 per worker, once with PyTorch's
DistributedDataParallel (gloo), once with nowait. Every gradient takes at least 20 ms (a pause simulates a larger model,
so that four workers can run on two cores); in the second setting one worker takes ten times as long. Stepsizes are
tuned for each method in virtual time; DDP uses that of minibatch SGD, which is the same algorithm. Times of DDP exclude
its evaluations; nowait evaluates concurrently. Start-up is not included.
"""

import math
import os
import time

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
from nowait.pytorch import TorchProblem

WORKERS, BATCH, SECONDS, SLOWDOWN = 4, 64, 0.02, 10.0
TARGET = 0.2
MOST_SECONDS = 60.0
EVALUATE_EVERY = 5


def build_model():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def data():
    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    inputs, targets = torch.tensor(images[order] / 16, dtype=torch.float32), torch.tensor(digits[order])
    return TensorDataset(inputs[:1400], targets[:1400]), TensorDataset(inputs[1400:], targets[1400:])


def ddp_worker(rank, port, stepsize, slow, results):
    """Run the loop of a DDP tutorial, with a pause that simulates a slower gradient."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=WORKERS)
    torch.manual_seed(0)
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=stepsize)
    train_set, validation = data()
    inputs, targets = train_set.tensors
    pause = SECONDS * (SLOWDOWN if slow and rank == WORKERS - 1 else 1.0)
    samples, began, evaluating = sampler(0), time.perf_counter(), 0.0
    for step in range(1, 1_000_000):
        ticket = time.perf_counter()
        rows = samples.sample(rank, step).indices(len(train_set), BATCH)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
        time.sleep(max(0.0, pause - (time.perf_counter() - ticket)))  # before backward, which averages gradients
        loss.backward()
        optimizer.step()
        if step % EVALUATE_EVERY == 0:
            look = time.perf_counter()
            reached = torch.zeros(1)
            if rank == 0:
                with torch.no_grad():
                    error = nn.functional.cross_entropy(model.module(validation.tensors[0]), validation.tensors[1])
                reached[0] = float(error <= TARGET or look - began - evaluating > MOST_SECONDS)
            dist.broadcast(reached, 0)
            evaluating += time.perf_counter() - look
            if reached[0]:
                break
    if rank == 0:
        results.put((time.perf_counter() - began - evaluating, step))
    dist.destroy_process_group()


def run_ddp(stepsize, slow):
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    port = 29_500 + os.getpid() % 1_000
    processes = [
        context.Process(target=ddp_worker, args=(rank, port, stepsize, slow, results)) for rank in range(WORKERS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    seconds, steps = results.get()
    return seconds, steps, steps * WORKERS


def methods():
    return {
        "nowait, minibatch": (1.0, lambda size: nw.MinibatchSGD(nw.Constant(size))),
        "nowait, constant": (1 / WORKERS, lambda size: nw.AsynchronousSGD(nw.Constant(size))),
        "nowait, delay-adaptive": (1 / WORKERS, lambda size: nw.AsynchronousSGD(nw.DelayAdaptive(size))),
        "nowait, Ringmaster": (1 / WORKERS, lambda size: nw.RingmasterASGD(nw.Constant(size), max_delay=2 * WORKERS)),
    }


def tuned(problem, scale, make, seconds):
    """Return the stepsize that reaches the target first in virtual time."""
    best, best_time = 0.5 * scale, math.inf
    for size in (scale * 2.0**power for power in range(-2, 3)):
        speeds = nw.speeds.Fixed(seconds)
        run = nw.simulate(problem, make(size), speeds, seconds=30.0, target_loss=TARGET, evaluate_every=20)
        reached = run.history.time[run.history.loss <= TARGET]
        if len(reached) and reached[0] < best_time:
            best, best_time = size, float(reached[0])
    return best


def setting(problem, slow):
    seconds = [SECONDS] * (WORKERS - 1) + [SECONDS * (SLOWDOWN if slow else 1.0)]
    gain = nw.theory.speedup(seconds).speedup
    print(f"\n{'one worker slowed 10 x' if slow else 'equal workers'}: predicted speedup s_max/HM {gain:.2f} x")
    print(f"{'':26}{'stepsize':>10}{'seconds':>10}{'steps/s':>10}{'gradients/s':>13}{'time vs DDP':>13}{'gain':>8}")
    sizes = {name: tuned(problem, scale, make, seconds) for name, (scale, make) in methods().items()}
    ddp = run_ddp(sizes["nowait, minibatch"], slow)
    show("DDP (gloo)", sizes["nowait, minibatch"], *ddp, ddp)
    for name, (_, make) in methods().items():
        run = nw.train(
            problem,
            make(sizes[name]),
            speeds=nw.speeds.Fixed(seconds),
            seconds=MOST_SECONDS,
            target_loss=TARGET,
            evaluate_every=EVALUATE_EVERY,
            progress=False,
        )
        reached = run.history.time[run.history.loss <= TARGET]
        took = float(reached[0]) if len(reached) else math.inf
        share = took / run.stats.seconds if math.isfinite(took) else 1.0
        show(name, sizes[name], took, run.stats.steps * share, run.stats.gradients * share, ddp)


def show(name, size, seconds, steps, gradients, ddp):
    ddp_seconds, _, ddp_gradients = ddp
    rate, usual = gradients / seconds, ddp_gradients / ddp_seconds
    print(
        f"{name:26}{size:10.3g}{seconds:10.2f}{steps / seconds:10.1f}{rate:13.1f}"
        f"{ddp_seconds / seconds:11.2f} x{rate / usual:6.2f} x",
        flush=True,
    )


def main():
    train_set, validation = data()
    problem = TorchProblem(build_model, nn.functional.cross_entropy, train_set, batch_size=BATCH, validation=validation)
    print(
        f"{problem}, {WORKERS} workers, at least {SECONDS * 1000:.0f} ms per gradient, to a validation loss of {TARGET}"
    )
    print("gain: gradients per second relative to DDP; the prediction is for asynchronous methods")
    for slow in (False, True):
        setting(problem, slow)


if __name__ == "__main__":
    main()
