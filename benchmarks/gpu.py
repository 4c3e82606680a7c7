"""PyTorch problems on a GPU: compares gradients with the CPU, trains with several workers, and measures the time.

python benchmarks/gpu.py        (needs a CUDA device)
"""

import time

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.core import sampler
from nowait.pytorch import TorchOptimizer, TorchProblem

CLASSES, SIDE = 10, 16


def small():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * SIDE**2, CLASSES)
    )


def large():
    layers = [nn.Flatten()]
    for inputs, outputs in ((3 * SIDE**2, 2048), (2048, 2048), (2048, 2048)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(2048, CLASSES))


def pictures(count):
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(0, CLASSES, (count,), generator=generator)
    inputs = torch.randn(count, 3, SIDE, SIDE, generator=generator)
    inputs[torch.arange(count), 0, targets, targets] += 8.0
    return TensorDataset(inputs, targets)


def problem_of(build, device, batch_size=64):
    data = pictures(4_096)
    validation = TensorDataset(*(tensor[:1_024] for tensor in data.tensors))
    return TorchProblem(build, cross_entropy, data, batch_size=batch_size, validation=validation, device=device)


def check_gradients():
    host, device = problem_of(small, "cpu"), problem_of(small, "cuda")
    sample = sampler(0).sample(1, 3)
    first, second = (one.gradient(one.initial(), sample) for one in (host, device))
    print(f"gradient on GPU and CPU: largest difference {np.abs(first - second).max():.2e}")
    assert np.allclose(first, second, rtol=1e-3, atol=1e-4)
    assert abs(host.loss(host.initial()) - device.loss(device.initial())) < 1e-3


def check_training():
    problem = problem_of(small, "cuda")
    method = nw.AsynchronousSGD(nw.DelayAdaptive(0.01))
    for update in (None, TorchOptimizer(torch.optim.AdamW, betas=(0.5, 0.99))):
        size = 0.05 if update is None else 0.002
        method = nw.AsynchronousSGD(nw.DelayAdaptive(size))
        run = nw.train(problem, method, workers=4, steps=400, update=update, slowdown={3: 5.0}, progress=False)
        name = "SGD" if update is None else "AdamW"
        losses = f"loss {run.history.loss[0]:.3f} to {run.history.loss[-1]:.3f}"
        print(f"4 workers on one GPU, {name}: {losses}, {run.stats.steps_per_second:.0f} steps/s, {run.stats.engine}")
        assert run.history.loss[-1] < run.history.loss[0] / 2
    replayed = nw.replay(run.trace, problem, method, update=update, progress=False)
    same = np.array_equal(replayed.last, run.last)
    print(
        f"replay on the GPU: {'the same bits' if same else f'differs by {np.abs(replayed.last - run.last).max():.2e}'}"
    )


def time_gradients(repeats=50):
    """Measure one gradient of a larger model: in total, only the computation on the GPU, and the copies."""
    problem = problem_of(large, "cuda", batch_size=256)
    point, out = problem.initial(), np.empty(problem.dimension, np.float32)
    samples = sampler(0)
    for job in range(5):
        problem.gradient_into(point, samples.sample(0, job), out)
    whole = timed(lambda job: problem.gradient_into(point, samples.sample(0, job), out), repeats)
    model = large().cuda()
    inputs, targets = (tensor[:256].cuda() for tensor in pictures(4_096).tensors)

    def bare(_):
        model.zero_grad(set_to_none=False)
        cross_entropy(model(inputs), targets).backward()

    for _ in range(5):
        bare(0)
    alone = timed(bare, repeats)
    megabytes = point.nbytes / 1e6
    print(
        f"{problem.dimension:,} params ({megabytes:.0f} MB): {whole * 1e3:.2f} ms per gradient, the computation alone "
        f"{alone * 1e3:.2f} ms, so batches and copies in both directions take {(whole - alone) * 1e3:.2f} ms "
        f"({2 * megabytes / 1e3 / max(whole - alone, 1e-9):.1f} GB/s)"
    )
    for workers in (1, 2, 4):
        method = nw.AsynchronousSGD(nw.DelayAdaptive(0.01))
        run = nw.train(problem, method, workers=workers, steps=200, evaluate_every=200, progress=False)
        print(f"  {workers} workers: {run.stats.steps_per_second:.0f} steps/s")


def timed(action, repeats):
    torch.cuda.synchronize()
    began = time.perf_counter()
    for job in range(repeats):
        action(job)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / repeats


if __name__ == "__main__":
    print(torch.__version__, torch.cuda.get_device_name())
    check_gradients()
    check_training()
    time_gradients()
