"""Training on one GPU: steps per second of nowait, relative to a bare PyTorch loop in the same run.

    python benchmarks/gpu.py                          # all models, M = 1, 2, 4, 8 (needs a CUDA device)
    python benchmarks/gpu.py mlp-10m resnet-50 --workers 1,8 --seconds 5
    python benchmarks/gpu.py --checks                 # correctness only: gradients, losses, a replay, memory at the end
    python benchmarks/gpu.py --kills 50               # kill -9 of random workers; then a replay, and memory

Workers that share a GPU take turns unless CUDA's Multi-Process Service runs. Start it with `nvidia-cuda-mps-control -d`
and run this again; the first line says whether it runs.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.core import sampler
from nowait.pytorch import TorchOptimizer, TorchProblem

CLASSES = 10


class Bottleneck(nn.Module):
    """The block of ResNet-50 (He et al. 2016): 1x1, 3x3 and 1x1 convolutions, and the input added to the output."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.path = nn.Sequential(
            *_convolution(inputs, width, 1, 1),
            nn.ReLU(),
            *_convolution(width, width, 3, stride),
            nn.ReLU(),
            *_convolution(width, outputs, 1, 1),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, inputs):
        return torch.relu(self.path(inputs) + self.shortcut(inputs))


def _convolution(inputs, outputs, size, stride):
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)


def resnet_50():
    layers = [*_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


def mlp(width, hidden):
    layers = [nn.Flatten(), nn.Linear(768, width), nn.ReLU()]
    for _ in range(hidden):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def mlp_10m():
    return mlp(2048, 2)


def mlp_99m():
    return mlp(4096, 6)


@dataclass(frozen=True)
class Case:
    """A model and its batches: pictures of ``side`` x ``side`` pixels."""

    build: object
    side: int
    batch: int


CASES = {"mlp-10m": Case(mlp_10m, 16, 256), "mlp-99m": Case(mlp_99m, 16, 256), "resnet-50": Case(resnet_50, 64, 64)}


def pictures(count, side):
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(0, CLASSES, (count,), generator=generator)
    inputs = torch.randn(count, 3, side, side, generator=generator)
    inputs[torch.arange(count), 0, targets, targets] += 8.0
    return TensorDataset(inputs, targets)


def problem_of(case, device="cuda", **options):
    data = pictures(4_096, case.side)
    validation = TensorDataset(*(tensor[:256] for tensor in data.tensors))
    return TorchProblem(
        case.build, cross_entropy, data, batch_size=case.batch, validation=validation, device=device, **options
    )


def bare_loop(case, seconds):
    """Return the steps per second of an ordinary PyTorch loop with data in host memory."""
    torch.manual_seed(0)
    model, data = case.build().cuda(), pictures(4_096, case.side)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    torch.backends.cudnn.deterministic = True
    generator = torch.Generator().manual_seed(1)

    def step():
        places = torch.randint(0, len(data), (case.batch,), generator=generator)
        inputs, targets = (tensor[places].pin_memory().cuda(non_blocking=True) for tensor in data.tensors)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    for _ in range(10):
        step()
    torch.cuda.synchronize()
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(10):
            step()
        torch.cuda.synchronize()
        steps += 10
    return steps / (time.perf_counter() - began)


def nowait_steps(problem, workers, seconds, update=None):
    """Return the steps per second after the first ones, in which processes start and memory is allocated."""
    times = []
    nw.train(
        problem,
        nw.AsynchronousSGD(nw.DelayAdaptive(0.001)),
        workers=workers,
        seconds=seconds + 2.0,
        evaluate_every=10**9,
        update=update,
        callbacks=[lambda control: times.append(control.time)],
        progress=False,
    )
    late = np.array(times)[len(times) // 3 :]
    return (len(late) - 1) / (late[-1] - late[0])


def has_mps():
    return os.path.exists(os.path.join(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control"))


def table(names, workers, seconds):
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA MPS {'on' if has_mps() else 'off'}")
    print(f"{'model':12} {'params':>12} {'bare loop':>12} " + " ".join(f"{f'M = {m}':>16}" for m in workers))
    for name in names:
        case = CASES[name]
        problem = problem_of(case)
        bare = bare_loop(case, seconds)
        cells = []
        for count in workers:
            rate = nowait_steps(problem, count, seconds, update=nw.Sgd())
            cells.append(f"{rate:8.0f} ({rate / bare:4.2f} x)")
        print(f"{name:12} {problem.dimension:12,} {bare:10.0f}/s " + " ".join(cells), flush=True)


def check(case):
    """Compare gradients with the processor's, train with a killed worker's replacement, replay, and look at memory."""
    host, device = problem_of(case, "cpu"), problem_of(case, deterministic=True)
    sample = sampler(0).sample(1, 3)
    first, second = (one.gradient(one.initial(), sample) for one in (host, device))
    print(f"gradient on GPU and CPU: largest difference {np.abs(first - second).max():.2e}")
    assert np.allclose(first, second, rtol=1e-2, atol=1e-3)
    free = torch.cuda.mem_get_info()[0]
    for update in (nw.Sgd(), TorchOptimizer(torch.optim.AdamW, betas=(0.5, 0.99))):
        method = nw.AsynchronousSGD(nw.DelayAdaptive(0.0005))
        run = nw.train(device, method, workers=4, steps=100, update=update, slowdown={3: 5.0}, progress=False)
        losses = f"loss {run.history.loss[0]:.3f} to {run.history.loss[-1]:.3f}"
        print(f"4 workers, {update}: {losses}, {run.stats.steps_per_second:.0f} steps/s")
        replayed = nw.replay(run.trace, device, method, update=update, progress=False)
        same = np.array_equal(replayed.last, run.last)
        print("replay:", "the same bits" if same else f"differs by {np.abs(replayed.last - run.last).max():.2e}")
    check_stall(device)
    torch.cuda.empty_cache()
    print(f"memory on the GPU that is not free again: {(free - torch.cuda.mem_get_info()[0]) / 2**20:.0f} MiB")


def check_stall(problem):
    """Print the longest time between two steps, with and without checkpoints of params and AdamW's moments."""
    method, update = nw.AsynchronousSGD(nw.DelayAdaptive(0.0005)), TorchOptimizer(torch.optim.AdamW)
    for every in (10**9, 100):
        with tempfile.TemporaryDirectory() as folder:
            options = {"folder": f"{folder}/run", "checkpoint_every": every, "evaluate_every": 10**9}
            run = nw.train(problem, method, workers=2, steps=400, update=update, progress=False, **options)
        gaps = np.diff(run.trace.arrivals["time"])[50:]
        print(
            f"checkpoints {'every 100 steps' if every == 100 else 'none':16} longest gap between steps "
            f"{1e3 * gaps.max():7.1f} ms, median {1e3 * np.median(gaps):.2f} ms"
        )


def parents():
    """Return the parent of every process of this machine."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
                found[int(name)] = int(file.read().rpartition(")")[2].split()[1])
    return found


def workers_of_this_process():
    """Return the process ids of workers: the children of our child, the zygote."""
    parent = parents()
    return sorted(process for process in parent if parent.get(parent[process]) == os.getpid())


def used_mib():
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])


def check_kills(case, kills):
    """Kill a random process of the run every few steps, with kill -9; then replay the run, and look at memory."""
    chance, killed = random.Random(0), []
    problem, method = problem_of(case, deterministic=True), nw.AsynchronousSGD(nw.DelayAdaptive(0.0005))
    problem.gradient(problem.initial(), sampler(0).sample(0, 0))  # what this process itself keeps on the GPU
    before = used_mib()

    def kill(control):
        running = workers_of_this_process()
        if control.steps % 20 == 0 and running and len(killed) < kills:
            killed.append(chance.choice(running))
            with contextlib.suppress(ProcessLookupError):
                os.kill(killed[-1], signal.SIGKILL)
        if len(killed) == kills and control.steps % 100 == 0:
            control.stop()

    options = {"workers": 4, "steps": 10**6, "evaluate_every": 50, "max_failures": 10 * kills, "update": nw.Sgd()}
    run = nw.train(problem, method, callbacks=[kill], progress=False, **options)
    losses = f"loss {run.history.loss[0]:.3f} to {run.history.loss[-1]:.3f}"
    print(f"{len(killed)} processes killed, {run.stats.lost} gradients lost, {run.stats.steps} steps, {losses}")
    replayed = nw.replay(run.trace, problem, method, update=nw.Sgd(), progress=False)
    print("replay:", "the same bits" if np.array_equal(replayed.last, run.last) else "OTHER BITS")
    torch.cuda.empty_cache()
    print(f"nvidia-smi: {before} MiB used before the run, {used_mib()} MiB after it")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", choices=[*CASES, []], help="default: all")
    parser.add_argument("--workers", default="1,2,4,8")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--checks", action="store_true")
    parser.add_argument("--kills", type=int, default=0)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device here")
    if asked.kills:
        check_kills(CASES[asked.models[0] if asked.models else "mlp-10m"], asked.kills)
        return
    if asked.checks:
        for name in asked.models or CASES:
            print(name)
            check(CASES[name])
        return
    table(asked.models or list(CASES), [int(count) for count in asked.workers.split(",")], asked.seconds)


if __name__ == "__main__":
    main()
