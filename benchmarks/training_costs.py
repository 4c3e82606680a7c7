"""What a training run costs beside its gradients: steps/s, peak memory, start-up, and the stall of a checkpoint.

    python benchmarks/training_costs.py [large]
    python benchmarks/training_costs.py stages

An MLP with AdamW, in a plain PyTorch loop in one process with one thread, and with nowait and two workers with one
thread each. Models have 0.5 and 48 million params; ``large`` adds 98 million. Memory is the proportional set size of
all processes (shared pages count once), less that before the model was made. Start-up is the time from the call to the
first step. The stall is the longest pause between two steps of a run with a checkpoint, less that of the run without.

``stages`` prints where the memory of a run with 48 million params is, in copies of the params: the peak of each stage,
less the memory before the model was made. Private memory that forked processes share counts once, by shares.
"""

import gc
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.pytorch import TorchOptimizer, TorchProblem

WIDTHS = {"0.5 M": 388, "48 M": 4_770, "98 M": 6_870}
"""The width of the three hidden layers."""
INPUTS, CLASSES, BATCH, WORKERS = 512, 10, 16, 2
STEPS = {"0.5 M": 300, "48 M": 24, "98 M": 16}
SAMPLE_SECONDS = 0.1
STAGE_STEPS = 10
KINDS = ("driver", "others", "shared", "files")
"""Private memory of this process and of the others, memory that they share, and mapped files."""


def data():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(512, INPUTS, generator=generator), torch.randint(CLASSES, (512,), generator=generator)


def model_of(width):
    hidden = [layer for _ in range(2) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(INPUTS, width), nn.ReLU(), *hidden, nn.Linear(width, CLASSES))


class PeakMemory:
    """Samples the memory of this process and its descendants in a thread, and keeps the peak of each stage."""

    def __enter__(self):
        gc.collect()
        self.stage, self.peaks, self._first = "", {}, memory_now()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()

    @property
    def peak(self):
        """The peak of all stages, in bytes above the first sample."""
        return max(sum(sample.values()) for sample in self.peaks.values())

    def _sample(self):
        while not self._end.wait(SAMPLE_SECONDS):
            stage, now = self.stage, memory_now()
            used = {kind: now[kind] - self._first[kind] for kind in now}
            self.peaks[stage] = max(self.peaks.get(stage, used), used, key=lambda sample: sum(sample.values()))


def memory_now():
    """Return the proportional set size in bytes, by kind: of this process, of its descendants, and shared memory."""
    total = dict.fromkeys(KINDS, 0)
    for process in descendants():
        own = proportional_bytes(process)
        total["driver" if process == os.getpid() else "others"] += own.get("Pss_Anon", 0)
        total["shared"] += own.get("Pss_Shmem", 0)
        total["files"] += own.get("Pss_File", 0)
    return total


def proportional_bytes(process):
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except (OSError, ProcessLookupError):  # it has ended
        return {}
    return {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if line.startswith("Pss_")}


def descendants():
    """Return the numbers of this process and all processes that it started, directly or not."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, rest = status.read_text().split(" ", 1)
            parents[int(number)] = int(rest.rsplit(")", 1)[1].split()[1])
        except (OSError, ProcessLookupError):
            continue
    found = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


class StepTimes:
    """Records when steps are made."""

    def __init__(self):
        self.times = []

    def __call__(self, _control):
        self.times.append(time.perf_counter())

    @property
    def rate(self):
        """Steps per second in the second half of the run."""
        half = self.times[len(self.times) // 2 :]
        return (len(half) - 1) / (half[-1] - half[0])

    @property
    def longest_pause(self):
        return float(np.diff(self.times).max())


def plain_loop(width, steps):
    """Return the step times of a plain PyTorch loop."""
    torch.set_num_threads(1)
    model, (inputs, targets), times = model_of(width), data(), StepTimes()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step in range(steps):
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % len(inputs)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
        times(None)
    return times


def train(problem, steps, callbacks=(), evaluate_every=None, **options):
    times = StepTimes()
    run = nw.train(
        problem,
        nw.AsynchronousSGD(nw.DelayAdaptive(1e-4)),
        workers=WORKERS,
        steps=steps,
        evaluate_every=evaluate_every or steps,
        update=TorchOptimizer(torch.optim.AdamW),
        callbacks=[times, *callbacks],
        progress=False,
        **options,
    )
    return times, run


def problem_of(width):
    return TorchProblem(lambda: model_of(width), nn.functional.cross_entropy, TensorDataset(*data()), batch_size=BATCH)


def measure(size):
    width, steps = WIDTHS[size], STEPS[size]
    with PeakMemory() as plain_memory:
        plain = plain_loop(width, steps)
    with PeakMemory() as memory:
        problem = problem_of(width)
        params_bytes = problem.initial().nbytes
        began = time.perf_counter()
        times, _ = train(problem, steps)
    with tempfile.TemporaryDirectory() as folder:
        saved, _ = train(problem, steps, folder=Path(folder) / "run", checkpoint_every=steps // 2)
    print(
        f"{size:>7}{plain.rate:12.2f}{times.rate:12.2f}{times.rate / plain.rate:9.2f} x"
        f"{shown(plain_memory, params_bytes):>20}{shown(memory, params_bytes):>20}"
        f"{times.times[0] - began:12.2f} s{max(0.0, saved.longest_pause - times.longest_pause):11.2f} s",
        flush=True,
    )


def shown(memory, params_bytes):
    """Return memory in gigabytes and in copies of the params."""
    return f"{memory.peak / 1e9:.2f} GB, {memory.peak / params_bytes:.1f} x"


class Stages(nw.Callback):
    """Tells the memory in which stage a run is, by the number of steps."""

    def __init__(self, memory, stages):
        self._memory, self._stages = memory, stages

    def on_step(self, control):
        self._memory.stage = self._stages.get(control.steps, self._memory.stage)


def measure_stages(size):
    """Print the peak of each stage of two runs, the second one with a checkpoint."""
    width, steps, half = WIDTHS[size], STAGE_STEPS, STAGE_STEPS // 2
    plain_loop(width, 2)  # loads what optimisers and models need
    with tempfile.TemporaryDirectory() as folder, PeakMemory() as memory:
        memory.stage = "construction"
        problem = problem_of(width)
        params_bytes = problem.initial().nbytes
        memory.stage = "start, first evaluation"
        stages = Stages(memory, {1: "steps", half - 1: "steps, an evaluation", steps: "end"})
        _, run = train(problem, steps, [stages], evaluate_every=half)
        memory.stage = "afterwards"
        time.sleep(1.0)
        del run
        memory.stage = "start with a folder"
        stages = Stages(memory, {1: "steps again", half - 1: "steps, a checkpoint", steps: "end with a checkpoint"})
        train(problem, steps, [stages], folder=Path(folder) / "run", checkpoint_every=half)
    print(f"Peak memory by stage in copies of {size} params; AdamW, {WORKERS} workers")
    print(f"{'':>24}" + "".join(f"{kind:>9}" for kind in (*KINDS, "sum")))
    for stage, used in memory.peaks.items():
        copies = [value / params_bytes for value in (*used.values(), sum(used.values()))]
        print(f"{stage:>24}" + "".join(f"{value:9.1f}" for value in copies))


def main():
    if "stages" in sys.argv[1:]:
        measure_stages("48 M")
        return
    sizes = ["0.5 M", "48 M", *(["98 M"] if "large" in sys.argv[1:] else [])]
    print(f"AdamW, batches of {BATCH}; nowait with {WORKERS} workers; memory in GB and in copies of the params")
    print(
        f"{'params':>7}{'plain':>12}{'nowait':>12}{'ratio':>11}{'memory, plain':>20}{'nowait':>20}{'first step':>14}"
        f"{'stall':>13}"
    )
    for size in sizes:
        measure(size)


if __name__ == "__main__":
    main()
