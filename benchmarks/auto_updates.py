"""Auto with AdamW, Muon and SGD with weight decay, against minibatches with the same update and a tuned learning rate.

A transformer that predicts the next token and a convolutional network on the digits of scikit-learn, each with small
batches (much noise) and large ones, eight workers in virtual time: equal ones, one that is ten times slower, and speeds
with a spread of 1 (of their logarithms). The learning rate is tuned for minibatches of all eight workers (a grid with a
factor of 2, seeds 100 and 101): the lowest loss after 100 steps, averaged over the latest tenth of the run. That loss
is the target. ``Auto`` gets the learning rate and nothing else; the first m gradients get the best m and learning rate
for each cluster.

Besides, two other versions of Auto with AdamW: without asynchronous steps, and with the stepsizes that SGD gets, which
are γ/(cM) in place of γ/(2√M) for asynchronous steps. Printed: times of rivals, divided by that of Auto, for every task
and cluster, geometric means over fresh seeds, and how many runs missed the target within twice the steps; then the
table for each update and cluster, with bootstrap intervals over tasks and seeds.

``python benchmarks/auto_updates.py`` (ten minutes on two cores; ``--tasks transformer,2,AdamW`` for a part)
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import multiprocessing
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from momentum import Transformer, digits, text
from torch import nn
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.pytorch import TorchOptimizer, TorchProblem

WORKERS, STEPS = 8, 100
TUNING, FRESH = (100, 101), (0, 1, 2, 3, 4)
NORMAL = statistics.NormalDist()
CLUSTERS = {
    "equal workers": [1.0] * WORKERS,
    "one ten times slower": [1.0] * (WORKERS - 1) + [10.0],
    "log-normal, spread 1": [math.exp(NORMAL.inv_cdf((rank + 0.5) / WORKERS)) for rank in range(WORKERS)],
}
POWERS = [2.0**k for k in range(-8, -3)]
RATES = {"AdamW": POWERS, "Muon": POWERS, "SGD": [0.025, 0.05, 0.1, 0.2]}
RIVALS = ("minibatches", "the first m", "rounds only", "steps of SGD")
Make = Callable[[float], tuple[nw.Method, nw.core.Update]]


class Declared(nw.core.Update):
    """An update that says something else about its momentum, so that Auto makes other steps."""

    def __init__(self, inner: nw.core.Update, momentum: float) -> None:
        self._inner, self._momentum = inner, momentum

    @property
    def momentum_factor(self) -> float:
        return self._momentum

    def start_with_layout(self, params: np.ndarray, layout: nw.core.Layout) -> None:
        self._inner.start_with_layout(params, layout)

    def apply(self, params: np.ndarray, direction: np.ndarray, stepsize: float, out: np.ndarray) -> None:
        self._inner.apply(params, direction, stepsize, out)


class StopAt(nw.Callback):
    """Stops a run at its target, and keeps the time."""

    def __init__(self, target: float) -> None:
        self.target, self.time = target, math.inf

    def on_evaluate(self, control: nw.core.Control) -> None:
        times, losses = np.asarray(control.history.time), np.asarray(control.history.loss)
        if len(times) > 2 and losses[times >= 0.9 * times[-1]].mean() <= self.target:
            self.time = float(times[-1])
            control.stop()


@dataclass(frozen=True)
class Task:
    """A model with a batch size and an update."""

    model: str
    batch: int
    update: str

    @cached_property
    def problem(self) -> TorchProblem:
        if self.model == "cnn":
            return _problem(_network, nn.functional.cross_entropy, digits(1, 8, 8), self.batch)
        return _problem(Transformer, _loss_of_tokens, text(), self.batch)

    def make_update(self) -> nw.core.Update:
        if self.update == "Muon":
            others = ("tokens.weight", "positions.weight", "output.weight") if self.model == "transformer" else ()
            return nw.Muon(adjust="match_rms_adamw", weight_decay=0.01, exclude=others)
        if self.update == "SGD":
            return TorchOptimizer(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=5e-4)
        return TorchOptimizer(torch.optim.AdamW)

    def time(self, made: tuple[nw.Method, nw.core.Update], seconds: list[float], seed: int, target: float, cap: float):
        """Return when a run reaches the target; infinite if not within ``cap`` seconds."""
        stop, (method, update) = StopAt(target), made
        try:
            nw.simulate(
                self.problem,
                method,
                nw.speeds.Fixed(seconds),
                seconds=cap,
                seed=seed,
                update=update,
                evaluate_seconds=1.0,
                progress=False,
                callbacks=[stop],
            )
        except nw.DivergedError:
            return math.inf
        return stop.time

    def final_loss(self, rate: float, seed: int) -> float:
        """Return the loss of minibatches after the steps, averaged over the last tenth."""
        method, speeds = nw.MinibatchSGD(nw.Constant(rate)), nw.speeds.Fixed(1.0, workers=WORKERS)
        options = {"update": self.make_update(), "seed": seed, "progress": False}
        try:
            run = nw.simulate(self.problem, method, speeds, steps=STEPS, evaluate_every=2, **options)
        except nw.DivergedError:
            return math.inf
        return float(np.asarray(run.history.loss)[np.asarray(run.history.time) >= 0.9 * STEPS].mean())

    def study(self) -> dict[str, dict[str, list[float]]]:
        """Return the times to the target on fresh seeds, by cluster and method."""
        torch.set_num_threads(1)
        logging.getLogger("nowait").setLevel(logging.ERROR)
        losses = {rate: float(np.mean([self.final_loss(rate, seed) for seed in TUNING])) for rate in RATES[self.update]}
        rate = min(losses, key=lambda rate: losses[rate])
        steps = [self.time(self.minibatches(rate), [1.0] * WORKERS, seed, losses[rate], 2 * STEPS) for seed in FRESH]
        times: dict[str, dict[str, list[float]]] = {}
        for name, seconds in CLUSTERS.items():
            makes, cap = self.versions(), 2 * STEPS * max(seconds)
            if len(set(seconds)) > 1:
                makes["the first m"] = self.tuned_first_m(seconds, rate, losses[rate])
            times[name] = {"minibatches": [max(seconds) * count for count in steps]} | {
                rival: [self.time(make(rate), seconds, seed, losses[rate], cap) for seed in FRESH]
                for rival, make in makes.items()
            }
        return times

    def minibatches(self, rate: float) -> tuple[nw.Method, nw.core.Update]:
        return nw.MinibatchSGD(nw.Constant(rate)), self.make_update()

    def versions(self) -> dict[str, Make]:
        makes: dict[str, Make] = {"Auto": lambda rate: (nw.Auto(nw.Constant(rate)), self.make_update())}
        if self.update == "AdamW":
            makes["rounds only"] = lambda rate: (nw.Auto(nw.Constant(rate)), Declared(self.make_update(), 0.9))
            makes["steps of SGD"] = lambda rate: (nw.Auto(nw.Constant(rate)), Declared(self.make_update(), 0.0))
        return makes

    def tuned_first_m(self, seconds: list[float], rate: float, target: float) -> Make:
        """Return the first m gradients with the m and the factor of the learning rate that reach the target soonest."""
        best, cap = (math.inf, WORKERS, 1.0), STEPS * max(seconds)
        for m, factor in itertools.product((3, 5, 7), (1.0, 0.5)):
            made, most = (_first_m(rate * factor, m), self.make_update()), min(cap, 2 * best[0])
            best = min(best, (self.time(made, seconds, TUNING[0], target, most), m, factor))
        return lambda rate: (_first_m(rate * best[2], best[1]), self.make_update())

    def __str__(self) -> str:
        return f"{self.model}, batch {self.batch}, {self.update}"


TASKS = [
    *(Task("transformer", 2, "AdamW"), Task("transformer", 16, "AdamW")),
    *(Task("cnn", 4, "AdamW"), Task("cnn", 32, "AdamW")),
    *(Task("transformer", 4, "Muon"), Task("cnn", 4, "SGD")),
]


def _first_m(rate: float, m: int) -> nw.Method:
    return nw.MSynchronousSGD(nw.Constant(rate), m=m)


def _network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def _loss_of_tokens(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def _problem(build: Callable[[], nn.Module], loss: Callable[..., torch.Tensor], data: TensorDataset, batch: int):
    """Return the problem; its loss is that of the first 256 items."""
    shown = TensorDataset(*(tensor[:256] for tensor in data.tensors))
    return TorchProblem(build, loss, data, batch_size=batch, validation=shown, evaluation_batch_size=256)


def ratios(times: dict[str, list[float]], rival: str) -> list[float]:
    """Return the times of the rival, divided by those of Auto; of targets missed by both or one of them, none."""
    pairs = zip(times[rival], times["Auto"], strict=True)
    return [of_rival / own for of_rival, own in pairs if math.isfinite(of_rival) and math.isfinite(own)]


def mean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values)))) if values else math.nan


def described(groups: list[list[float]]) -> str:
    """Return the geometric mean of groups of ratios and its interval, drawing groups and then seeds."""
    groups = [group for group in groups if group]
    if not groups:
        return "–"
    random = np.random.default_rng(0)
    draws = []
    for _ in range(2_000):
        chosen = [groups[index] for index in random.integers(len(groups), size=len(groups))]
        draws.append(np.mean([np.log(random.choice(group, len(group))).mean() for group in chosen]))
    low, high = np.exp(np.quantile(draws, (0.025, 0.975)))
    return f"{mean([mean(group) for group in groups]):.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--tasks", nargs="+", help="as in transformer,2,AdamW")
    chosen = parser.parse_args()
    parts = [text.split(",") for text in chosen.tasks or []]
    tasks = [Task(model, int(batch), update) for model, batch, update in parts] or TASKS
    results: dict[Task, dict[str, dict[str, list[float]]]] = {}
    with multiprocessing.get_context("spawn").Pool(chosen.processes) as pool:
        for task, times in zip(tasks, pool.imap(Task.study, tasks), strict=True):
            results[task] = times
            for cluster, of_cluster in times.items():
                shown = ", ".join(f"{rival} {mean(ratios(of_cluster, rival)):.2f}" for rival in of_cluster)
                missed = {rival: sum(map(math.isinf, of_rival)) for rival, of_rival in of_cluster.items()}
                print(f"{task}; {cluster}: {shown}; runs that missed the target: {missed}", flush=True)
    show(results)


def show(results: dict[Task, dict[str, dict[str, list[float]]]]) -> None:
    """Print a line for every update and cluster: times of rivals, divided by that of Auto."""
    print(f"| update, cluster | {' | '.join(RIVALS)} |\n|---|{'---|' * len(RIVALS)}")
    for update, cluster in itertools.product(RATES, CLUSTERS):
        found = [times[cluster] for task, times in results.items() if task.update == update]
        cells = [described([ratios(times, rival) for times in found if rival in times]) for rival in RIVALS]
        print(f"| {update}, {cluster} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
