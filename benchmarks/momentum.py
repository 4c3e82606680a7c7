"""Which momentum and stepsize suit asynchronous SGD, given those of a single process? Measured on three small models.

A convolutional network and a multilayer perceptron on the digits of scikit-learn, and a transformer that predicts the
next token. First the learning rate of a single process is tuned (a grid with a factor of 2, momentum or first beta 0.9,
seeds 100 and 101); the target is the loss that it has after a quarter of its gradients. Then
``AsynchronousSGD(DelayAdaptive(γ))`` with M workers of about equal speed and the same batch size runs with each
momentum β′ and with γ on the same kind of grid; its centre is γ = lr·(1 − β′)/(1 − β)/M for SGD, lr/√M for AdamW. The
best γ of the tuning seeds, and the centre, are measured on seeds 0 to 4: the number of gradients from which the loss
stays below the target, medians and ranges. Time is virtual, so nothing depends on the speed of the machine.

``python benchmarks/momentum.py`` (40 minutes on one core; ``--models mlp --workers 4`` for a part)
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import multiprocessing
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.pytorch import TorchOptimizer, TorchProblem

MOMENTA = (0.0, 0.3, 0.6, 0.9)
USUAL = 0.9
TUNING, SEEDS = (100, 101), (0, 1, 2, 3, 4)
EXPONENTS = range(-2, 5)
"""The grid: the centre times 1/4 to 16."""
GRADIENTS, EVALUATIONS = 1_600, 40
TOKENS, CONTEXT, WIDTH = 16, 12, 32


def digits(*shape: int) -> TensorDataset:
    images, targets = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images / 16, dtype=torch.float32).view(-1, *shape), torch.tensor(targets))


def mlp() -> TorchProblem:
    def build_model() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    return TorchProblem(build_model, nn.functional.cross_entropy, digits(64), batch_size=32)


def cnn() -> TorchProblem:
    def build_model() -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)),
        )

    return TorchProblem(build_model, nn.functional.cross_entropy, digits(1, 8, 8), batch_size=32)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.output = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        hidden = self.tokens(text) + self.positions(torch.arange(CONTEXT))
        return self.output(self.norm(self.layers(hidden, mask=mask, is_causal=True)))


def text() -> TensorDataset:
    """Return sequences in which each token depends on the two before it."""
    rng = np.random.default_rng(0)
    following = rng.dirichlet(np.full(TOKENS, 0.05), size=(TOKENS, TOKENS)).cumsum(axis=-1)
    rows = rng.integers(TOKENS, size=(1_000, CONTEXT + 1))
    for position in range(2, CONTEXT + 1):
        chances = following[rows[:, position - 2], rows[:, position - 1]]
        rows[:, position] = np.minimum((chances < rng.random((len(rows), 1))).sum(axis=1), TOKENS - 1)
    return TensorDataset(torch.tensor(rows[:, :-1]), torch.tensor(rows[:, 1:]))


def transformer() -> TorchProblem:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())

    return TorchProblem(Transformer, loss, text(), batch_size=16)


MODELS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}
FIRST = {"SGD": 0.02, "AdamW": 2e-3}
"""The centres of the grids of a single process."""


@cache
def problem_of(model: str) -> TorchProblem:
    torch.set_num_threads(1)
    logging.getLogger("nowait").setLevel(logging.ERROR)
    return MODELS[model]()


@dataclass(frozen=True)
class Row:
    model: str
    optimizer: str
    workers: int
    momentum: float
    centre: float

    def sizes(self) -> list[float]:
        return [self.centre * 2.0**exponent for exponent in EXPONENTS]


def losses(task: tuple[Row, float, int]) -> np.ndarray:
    """Return the loss at every evaluation of a run: row, stepsize and seed."""
    row, size, seed = task
    options = {"momentum": row.momentum} if row.optimizer == "SGD" else {"betas": (row.momentum, 0.99)}
    try:
        run = nw.simulate(
            problem_of(row.model),
            nw.AsynchronousSGD(nw.DelayAdaptive(size)),
            nw.speeds.LogNormal([1.0] * row.workers, sigma=0.2),
            gradients=GRADIENTS,
            evaluate_every=GRADIENTS // EVALUATIONS,
            update=TorchOptimizer(getattr(torch.optim, row.optimizer), **options),
            seed=seed,
            progress=False,
        )
    except nw.DivergedError:
        return np.full(EVALUATIONS + 1, math.inf)
    curve = np.full(EVALUATIONS + 1, math.inf)
    curve[: len(run.history.loss)] = np.nan_to_num(run.history.loss, nan=math.inf)
    return curve


def gradients_to(target: float, curve: np.ndarray) -> float:
    """Return the number of gradients from which the loss stays below the target."""
    above = np.flatnonzero(curve > target)
    if not len(above):
        return 0.0
    return math.inf if above[-1] == len(curve) - 1 else (above[-1] + 1) * GRADIENTS / EVALUATIONS


def grouped(pool: multiprocessing.pool.Pool, tasks: Iterable[tuple[Row, float, int]]) -> dict[tuple[Row, float], list]:
    tasks, curves = list(tasks), defaultdict(list)
    for (row, size, _), curve in zip(tasks, pool.imap(losses, tasks), strict=True):
        curves[row, size].append(curve)
    return curves


def best_of(row: Row, curves: dict[tuple[Row, float], list], target: float = 0.0) -> float:
    """Return the stepsize with the fewest gradients to the target, or else the lowest loss at the end."""

    def score(size: float) -> tuple[float, float]:
        of_size = curves[row, size]
        return float(np.mean([gradients_to(target, curve) for curve in of_size])), np.mean([c[-1] for c in of_size])

    return min(row.sizes(), key=score)


def rows_of(single: Row, lr: float, workers: list[int]) -> list[Row]:
    """Return a row for every number of workers and momentum, its grid around lr·(1 − β′)/(1 − β)/M or lr/√M."""
    result = []
    for count, momentum in itertools.product(workers, MOMENTA):
        sgd = single.optimizer == "SGD"
        centre = lr * (1 - momentum) / (1 - USUAL) / count if sgd else lr / math.sqrt(count)
        result.append(Row(single.model, single.optimizer, count, momentum, centre))
    return result


def described(needed: list[float]) -> str:
    return f"{np.median(needed):g} ({min(needed):g} to {max(needed):g})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--optimizers", nargs="+", default=list(FIRST))
    parser.add_argument("--workers", nargs="+", type=int, default=[4])
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(asked.processes) as pool:
        for model, optimizer in itertools.product(asked.models, asked.optimizers):
            single = Row(model, optimizer, 1, USUAL, FIRST[optimizer])
            curves = grouped(pool, itertools.product([single], single.sizes(), TUNING))
            lr = best_of(single, curves)
            target = float(np.mean([curve[EVALUATIONS // 4] for curve in curves[single, lr]]))
            print(f"\n{model}, {optimizer}, one process: lr {lr:g}, target {target:.3g}, {GRADIENTS // 4} gradients\n")
            print(
                "| workers | β′ | best γ | best γ / first γ | gradients with the best γ | with the first γ | trials |"
            )
            print("|---|---|---|---|---|---|---|", flush=True)
            report(pool, rows_of(single, lr, asked.workers), target)


def report(pool: multiprocessing.pool.Pool, rows: list[Row], target: float) -> None:
    """Print a line for every row: tuned, and with the stepsize at the centre of its grid."""
    tuning = grouped(pool, ((row, size, seed) for row in rows for size in row.sizes() for seed in TUNING))
    best = {row: best_of(row, tuning, target) for row in rows}
    shown = grouped(pool, ((row, size, seed) for row in rows for size in {best[row], row.centre} for seed in SEEDS))
    for row in rows:
        tuned, first = ([gradients_to(target, curve) for curve in shown[row, size]] for size in (best[row], row.centre))
        trials = " ".join(
            f"{np.mean([gradients_to(target, curve) for curve in tuning[row, size]]):g}" for size in row.sizes()
        )
        print(
            f"| {row.workers} | {row.momentum:g} | {best[row]:.3g} | {best[row] / row.centre:g} | {described(tuned)} | "
            f"{described(first)} | {trials} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
