"""Every method on three problems and four clusters, after the same virtual time, each tuned with as many trials.

python benchmarks/all_methods.py [--quick] [--write docs/comparison.md] [--folder runs/all_methods]

Prints one table for each problem: the loss above the minimum, as a multiple of that of the best method of the column.
Every method has 48 trials, each on three seeds: its parameters, with and without momentum if it takes an update, and
stepsizes. What was best on the worst of the three seeds then runs on five other seeds; the table has the median of
their last losses. Cells are computed on all cores; finished ones are kept in the folder, and the same command goes on
where it was interrupted. It takes 75 minutes of processor time.
"""

import argparse
import hashlib
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress
from sklearn.datasets import load_breast_cancer, load_digits

import nowait as nw
from nowait.core.randomness import CounterRandom

WORKERS, SECONDS, TRIALS = 16, 128.0, 48
TUNING_SEEDS, SEEDS = (6, 7, 8), (1, 2, 3, 4, 5)
RANGE = 5_000.0
"""The largest stepsize of a grid over the smallest one, about."""
BEGIN, END = "<!-- tables of benchmarks/all_methods.py -->", "<!-- end of the tables -->"
QUICK = ("MinibatchSGD", "MSynchronousSGD", "AsynchronousSGD, adaptive")
PLAIN, EITHER = (None,), (None, nw.Momentum(0.9))
Make = Callable[[float], nw.Method]


@dataclass(frozen=True)
class Entry:
    """A method to compare: a function of the stepsize for each choice of its parameters, and updates to try."""

    parameters: dict[str, Make]
    updates: tuple[nw.Update | None, ...] = EITHER
    center: float | None = None
    """The middle of the stepsizes; None is 1/L, divided by what the method says, and by 10 with momentum."""


def one(make: Make, **options: Any) -> Entry:
    """Return the entry of a method without parameters."""
    return Entry({"": lambda size: make(size)}, **options)  # noqa: PLW0108 (a sweep does not take a class)


def each(name: str, values: tuple[Any, ...], make: Callable[[float, Any], nw.Method], **options: Any) -> Entry:
    """Return the entry of a method with one parameter."""
    return Entry({f"{name}={value}": lambda size, value=value: make(size, value) for value in values}, **options)


def entries(scale: float) -> dict[str, Entry]:
    """Return all methods. ``scale`` is the norm of the gradient at the start, for parameters that are a length."""
    batches, delays, sgd = (4, 16, 64), (4, 16, 64), nw.Sgd()
    return {
        "MinibatchSGD": one(nw.MinibatchSGD),
        "MSynchronousSGD": each("m", (8, 12, 15), nw.MSynchronousSGD),
        "CycleSGD": each("group", (2, 4, 8), nw.CycleSGD),
        "RennalaSGD": each("batch", batches, nw.RennalaSGD),
        "RennalaSGD, cancel=False": each("batch", batches, lambda size, n: nw.RennalaSGD(size, n, cancel=False)),
        "QuantileMinibatchSGD": each("quantile", (0.25, 0.5, 0.9), nw.QuantileMinibatchSGD),
        "ATA": each("batch", batches, nw.ATA),
        "MindFlayerSGD": each("timeout", (1.5, 4.0, 12.0), lambda size, timeout: nw.MindFlayerSGD(size, timeout, 1)),
        "AsynchronousSGD, adaptive": one(lambda size: nw.AsynchronousSGD(nw.DelayAdaptive(size))),
        "AsynchronousSGD, constant": one(nw.AsynchronousSGD),
        "RingmasterASGD": each("max_delay", delays, nw.RingmasterASGD),
        "RingmasterASGD, cancel_stale": each(
            "max_delay", delays, lambda size, delay: nw.RingmasterASGD(size, delay, cancel_stale=True)
        ),
        "RingmasterLMO": each("ball", ("euclidean", "sign"), nw.RingmasterLMO, updates=PLAIN, center=1.0),
        "StaleSynchronousSGD": each("slack", (1, 4, 16), nw.StaleSynchronousSGD),
        "PickySGD": each("radius", (0.03, 0.3, 3.0), nw.PickySGD),
        "ClippedASGD": each("max_norm", (0.1 * scale, scale, 10 * scale), nw.ClippedASGD),
        "RandomAssignment": one(lambda size: nw.RandomAssignment(nw.DelayAdaptive(size))),
        "ShuffledAssignment": one(lambda size: nw.ShuffledAssignment(nw.DelayAdaptive(size))),
        "GradientTable": one(nw.GradientTable),
        "PIAG": one(nw.PIAG, center=1.0),
        "RingleaderASGD": one(nw.RingleaderASGD),
        "MaleniaSGD": each("batch", (16, 32, 64), nw.MaleniaSGD),
        "RescaledASGD": one(nw.RescaledASGD),
        "CA2FL": each("buffer", (4, 8, 16), nw.CA2FL),
        "FedBuff": each("buffer", (4, 8, 16), nw.FedBuff),
        "FADAS, AMSGrad": each("buffer", (4, 8, 16), nw.FADAS, updates=(nw.AMSGrad(0.9, 0.99),), center=0.1),
        "FedAT": each("tiers", (2, 4), nw.FedAT, updates=PLAIN),
        "DecoupledDiLoCo": each("quorum", (4, 8, 12), nw.DecoupledDiLoCo, updates=(None, sgd)),
        "DelayedNesterov": each("every", (4, 8, 16), nw.DelayedNesterov, updates=PLAIN),
        "OrderedMomentum": each(
            "beta", (0.5, 0.9), lambda size, beta: nw.OrderedMomentum(nw.DelayAdaptive(size), beta), updates=PLAIN
        ),
        "DelayCompensatedSGD": each("strength", (0.04, 0.5, 2.0), nw.DelayCompensatedSGD),
        "AdaptiveRevision": one(nw.AdaptiveRevision, updates=PLAIN, center=0.3),
    }


@cache
def problems() -> dict[str, Any]:
    """Return the problems. All gradients are means over a few rows, so there is noise."""
    cancer, digits = load_breast_cancer(), load_digits()
    features = (cancer.data - cancer.data.mean(axis=0)) / cancer.data.std(axis=0)
    return {
        "least squares, 50 params, batches of 32, little noise": nw.problems.LeastSquares.random(
            samples=2_000, dimension=50, noise=1e-3, batch_size=32, seed=0
        ),
        "logistic regression, breast cancer data, single rows": nw.problems.LogisticRegression(
            features, 2.0 * cancer.target - 1.0, batch_size=1, l2=1e-3
        ),
        "softmax regression, digits data, batches of 8": nw.problems.SoftmaxRegression(
            digits.data / 16.0, digits.target, batch_size=8, l2=1e-3
        ),
    }


def spot_changes() -> list[tuple[float, str, int]]:
    """Return leaves and joins of a made-up spot market: each worker is up for 30 s and away for 10 s on average."""
    changes = []
    for worker in range(WORKERS):
        random, time, up = CounterRandom(7, f"worker {worker}"), 0.0, True
        while (time := time - (30.0 if up else 10.0) * math.log(1.0 - random.uniform())) < SECONDS:
            changes.append((time, "leave" if up else "join", worker))
            up = not up
    return changes


def clusters() -> dict[str, dict[str, Any]]:
    """Return speeds and faults of the clusters."""
    spread = np.exp(np.linspace(-1.5, 1.5, WORKERS)).tolist()
    return {
        "equal": {"speeds": nw.speeds.LogNormal([1.0] * WORKERS, sigma=0.1)},
        "one straggler": {"speeds": nw.speeds.LogNormal([1.0] * (WORKERS - 1) + [30.0], sigma=0.1)},
        "lognormal": {"speeds": nw.speeds.LogNormal(spread, sigma=0.3)},
        "spot": {
            "speeds": nw.speeds.LogNormal([1.0] * WORKERS, sigma=0.3),
            "faults": nw.speeds.Faults(spot_changes()),
        },
    }


def trials(entry: Entry, unit: float) -> Iterator[tuple[str, Make, nw.Update | None, list[float]]]:
    """Yield the choices of an entry, each with as many stepsizes as it may try."""
    count = TRIALS // (len(entry.parameters) * len(entry.updates))
    ratio = RANGE ** (1 / count)
    for name, make in entry.parameters.items():
        for update in entry.updates:
            momentum = 1 - (0.0 if update is None else update.momentum_factor)
            center = entry.center or unit * momentum / make(1.0).stepsize_divisor(WORKERS)
            yield name, make, update, [center * ratio ** (place - count // 2) for place in range(count)]


def cell(problem_name: str, cluster_name: str, method: str) -> dict[str, Any]:
    """Choose parameters, update and stepsize on some seeds, and return the losses of the other seeds."""
    logging.getLogger("nowait").setLevel(logging.ERROR)  # stepsizes at the end of a grid, runs that diverge
    problem = problems()[problem_name]
    scale = float(np.linalg.norm(problem.full_gradient(problem.initial())))
    entry, unit = entries(round(scale, 3))[method], 1 / problem.constants().L
    options = clusters()[cluster_name] | {"seconds": SECONDS, "evaluate_every": 10**9, "threads": 1, "progress": False}
    best, chosen = math.inf, None
    for name, make, update, sizes in trials(entry, unit):
        found = nw.sweep(problem, make, stepsizes=sizes, seeds=TUNING_SEEDS, update=update, **options)
        worst = found.final.max(axis=1)  # a stepsize at the edge of stability is good on some seeds
        place = int(np.argmin(worst))
        if worst[place] < best:
            best, chosen = float(worst[place]), (name, make, update, sizes[place])
    if chosen is None:
        return {"losses": [math.inf] * len(SEEDS)}
    name, make, update, size = chosen
    final = nw.sweep(problem, make, stepsizes=[size], seeds=SEEDS, update=update, **options).final[0]
    return {"parameters": name, "update": repr(update), "stepsize": size, "losses": final.tolist()}


def fingerprint() -> str:
    """Return a hash of this script and of the library: results of other code are not reused."""
    files = [Path(__file__), *sorted(Path(nw.__file__).parent.rglob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def compute(folder: Path, quick: bool) -> dict[str, Any]:
    """Return all results, and write each to the folder when it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    path, code = folder / "results.json", fingerprint()
    kept = json.loads(path.read_text()) if path.exists() else {"code": code, "cells": {}}
    if kept["code"] != code:
        sys.exit(f"{path} was computed with other code: remove it, or choose another --folder")
    results = kept["cells"]
    methods = [method for method in entries(1.0) if not quick or method in QUICK]
    work = [(problem, cluster, method) for problem in problems() for cluster in clusters() for method in methods]
    left = [names for names in work if " / ".join(names) not in results]
    with Progress() as progress, ProcessPoolExecutor(os.cpu_count()) as pool:
        task = progress.add_task("tuning", total=len(work), completed=len(work) - len(left))
        futures = {pool.submit(cell, *names): " / ".join(names) for names in left}
        for future in as_completed(futures):
            results[futures[future]] = future.result()
            path.write_text(json.dumps(kept, indent=1))
            progress.advance(task)
    return results


def table(problem_name: str, results: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of one table, the best methods first."""
    lowest, columns = problems()[problem_name].minimum()[1], list(clusters())
    excess: dict[str, list[float]] = {}
    for key, result in results.items():
        name, cluster, method = key.split(" / ")
        if name == problem_name:
            row = excess.setdefault(method, [math.nan] * len(columns))
            row[columns.index(cluster)] = float(np.median(result["losses"])) - lowest
    values = np.array(list(excess.values()))
    best = np.nanmin(values, axis=0)
    yield f"| {problem_name} | " + " | ".join(columns) + " |"
    yield "|---|" + "---:|" * len(columns)
    for place in np.argsort(np.nanmean(np.log(values / best), axis=1)):
        name, comma, rest = list(excess)[place].partition(",")
        yield f"| `{name}`{comma}{rest} | " + " | ".join(map(shown, values[place] / best)) + " |"
    yield "| lowest loss above the minimum | " + " | ".join(f"{value:.1e}" for value in best) + " |"


def shown(ratio: float) -> str:
    """Return a multiple of the best, in bold up to 1.1."""
    text = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}" if ratio < 10_000 else f"{ratio:.0e}"
    return f"**{text}**" if ratio <= 1.1 else text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three methods only")
    parser.add_argument("--folder", type=Path, default=Path("runs/all_methods"))
    parser.add_argument("--write", type=Path, help="a page whose tables are replaced")
    arguments = parser.parse_args()
    results = compute(arguments.folder, arguments.quick)
    text = "\n\n".join("\n".join(table(name, results)) for name in problems())
    print(text)
    if arguments.write is not None:
        page = arguments.write.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        arguments.write.write_text(before + BEGIN + "\n\n" + text + "\n\n" + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
