"""Every method on three problems and four clusters, after the same virtual time, each tuned with as many trials.

python benchmarks/all_methods.py [--quick] [--write docs/comparison.md] [--folder runs/all_methods]

Prints one table for each problem: the loss above the minimum, as a multiple of that of the best method of the column.
Every method has 24 trials on one seed: its parameters, if it has some, times stepsizes. What was chosen then runs on
five other seeds; the table has the median of their last losses. Finished cells are kept in the folder, and the same
command goes on where it was interrupted. About half an hour on two cores.
"""

import argparse
import json
import logging
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress
from sklearn.datasets import load_breast_cancer, load_digits

import nowait as nw
from nowait.core.randomness import CounterRandom

WORKERS, SECONDS, TRIALS, SEEDS = 16, 128.0, 24, (1, 2, 3, 4, 5)
BEGIN, END = "<!-- tables of benchmarks/all_methods.py -->", "<!-- end of the tables -->"
RANGE = 5_000.0
"""The largest stepsize of a grid over the smallest one, about."""
Make = Callable[[float], nw.Method]


@dataclass(frozen=True)
class Entry:
    """A method to compare: functions of the stepsize, one for each choice of its parameters; and its update."""

    choices: dict[str, Make]
    update: nw.Update | None = None
    center: float | None = None
    """The middle of the stepsizes; None is 1/L, divided by what the method says."""


def one(make: Make, **options: Any) -> Entry:
    """Return the entry of a method without parameters."""
    return Entry({"": lambda size: make(size)}, **options)  # noqa: PLW0108 (a sweep does not take a class)


def each(name: str, values: tuple[Any, ...], make: Callable[[float, Any], nw.Method], **options: Any) -> Entry:
    """Return the entry of a method with one parameter."""
    return Entry({f"{name}={value}": lambda size, value=value: make(size, value) for value in values}, **options)


def entries(scale: float) -> dict[str, Entry]:
    """Return all methods. ``scale`` is the norm of the gradient at the start, for parameters that are a length."""
    batches, delays = (4, 16, 64), (4, 16, 64)
    return {
        "MinibatchSGD": one(nw.MinibatchSGD),
        "MSynchronousSGD": each("m", (8, 12, 15), nw.MSynchronousSGD),
        "CycleSGD": each("group", (2, 4, 8), nw.CycleSGD),
        "RennalaSGD": each("batch", batches, nw.RennalaSGD),
        "RennalaSGD, cancel=False": each(
            "batch", batches, lambda size, batch: nw.RennalaSGD(size, batch, cancel=False)
        ),
        "QuantileMinibatchSGD": each("quantile", (0.25, 0.5, 0.9), nw.QuantileMinibatchSGD),
        "ATA": each("batch", batches, nw.ATA),
        "MindFlayerSGD": each("timeout", (1.5, 4.0, 12.0), lambda size, timeout: nw.MindFlayerSGD(size, timeout, 1)),
        "AsynchronousSGD, adaptive": one(lambda size: nw.AsynchronousSGD(nw.DelayAdaptive(size))),
        "AsynchronousSGD, constant": one(nw.AsynchronousSGD),
        "RingmasterASGD": each("max_delay", delays, nw.RingmasterASGD),
        "RingmasterASGD, cancel_stale": each(
            "max_delay", delays, lambda size, delay: nw.RingmasterASGD(size, delay, cancel_stale=True)
        ),
        "RingmasterLMO": each("ball", ("euclidean", "sign"), nw.RingmasterLMO, center=1.0),
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
        "FADAS, AMSGrad": each("buffer", (4, 8, 16), nw.FADAS, update=nw.AMSGrad(0.9, 0.99), center=0.1),
        "FedAT": each("tiers", (2, 4), nw.FedAT),
        "DecoupledDiLoCo": each("quorum", (4, 8, 12), nw.DecoupledDiLoCo),
        "DelayedNesterov": each("every", (4, 8, 16), nw.DelayedNesterov),
        "OrderedMomentum": each(
            "beta", (0.5, 0.9), lambda size, beta: nw.OrderedMomentum(nw.DelayAdaptive(size), beta)
        ),
        "DelayCompensatedSGD": each("strength", (0.04, 0.5, 2.0), nw.DelayCompensatedSGD),
        "AdaptiveRevision": one(nw.AdaptiveRevision, center=0.3),
    }


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
        random, time = CounterRandom(7, f"worker {worker}"), 0.0
        while True:
            for kind, mean in (("leave", 30.0), ("join", 10.0)):
                time -= mean * math.log(1.0 - random.uniform())
                if time > SECONDS:
                    break
                changes.append((time, kind, worker))
            if time > SECONDS:
                break
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


def stepsizes(entry: Entry, make: Make, unit: float) -> list[float]:
    """Return as many stepsizes as the entry may try with each choice of its parameters."""
    count = TRIALS // len(entry.choices)
    center = entry.center or unit / make(1.0).stepsize_divisor(WORKERS)
    ratio = RANGE ** (1 / count)
    return [center * ratio ** (place - count // 2) for place in range(count)]


def tuned(problem: Any, cluster: dict[str, Any], entry: Entry, unit: float) -> dict[str, Any]:
    """Choose parameters and stepsize on seed 0, and return the losses of the other seeds."""
    options = cluster | {"seconds": SECONDS, "evaluate_every": 10**9, "update": entry.update, "progress": False}
    best, chosen = math.inf, ("", 0.0)
    for name, make in entry.choices.items():
        trials = nw.sweep(problem, make, stepsizes=stepsizes(entry, make, unit), seeds=[0], **options)
        place = int(np.argmin(trials.final[:, 0]))
        if trials.final[place, 0] < best:
            best, chosen = float(trials.final[place, 0]), (name, float(trials.stepsizes[place]))
    final = nw.sweep(problem, entry.choices[chosen[0]], stepsizes=[chosen[1]], seeds=SEEDS, **options).final[0]
    return {"parameters": chosen[0], "stepsize": chosen[1], "losses": final.tolist()}


def cells(quick: bool) -> Iterator[tuple[str, str, str, Callable[[], dict[str, Any]]]]:
    """Yield problem, cluster, method, and a function that computes the result."""
    for problem_name, problem in problems().items():
        unit = 1 / problem.constants().L
        scale = float(np.linalg.norm(problem.full_gradient(problem.initial())))
        for cluster_name, cluster in clusters().items():
            for method, entry in entries(round(scale, 3)).items():
                if not quick or method in ("MinibatchSGD", "MSynchronousSGD", "AsynchronousSGD, adaptive"):
                    yield problem_name, cluster_name, method, partial(tuned, problem, cluster, entry, unit)


def compute(folder: Path, quick: bool) -> dict[str, Any]:
    """Return all results, and write each to the folder when it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    work = list(cells(quick))
    with Progress() as progress:
        task = progress.add_task("tuning", total=len(work))
        for *names, run in work:
            key = " / ".join(names)
            progress.update(task, description=key[-60:])
            if key not in results:
                results[key] = run()
                path.write_text(json.dumps(results, indent=1))
            progress.advance(task)
    return results


def table(problem_name: str, problem: Any, results: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of one table, the best methods first."""
    lowest = problem.minimum()[1]
    columns = list(clusters())
    excess: dict[str, list[float]] = {}
    for key, result in results.items():
        name, cluster, method = key.split(" / ")
        if name == problem_name:
            excess.setdefault(method, [math.nan] * len(columns))[columns.index(cluster)] = (
                float(np.median(result["losses"])) - lowest
            )
    values = np.array(list(excess.values()))
    best = np.nanmin(values, axis=0)
    order = np.argsort(np.exp(np.nanmean(np.log(np.maximum(values / best, 1.0)), axis=1)))
    yield f"| {problem_name} | " + " | ".join(columns) + " |"
    yield "|---|" + "---:|" * len(columns)
    for place in order:
        method = list(excess)[place]
        yield (
            f"| `{method.split(',')[0]}`{method[len(method.split(',')[0]) :]} | "
            + " | ".join(f"**{value:.2g}**" if value < 1.1 else f"{value:.2g}" for value in values[place] / best)
            + " |"
        )
    yield "| lowest loss above the minimum | " + " | ".join(f"{value:.1e}" for value in best) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three methods only")
    parser.add_argument("--folder", type=Path, default=Path("runs/all_methods"))
    parser.add_argument("--write", type=Path, help="a page whose tables are replaced")
    arguments = parser.parse_args()
    logging.getLogger("nowait").setLevel(logging.ERROR)  # stepsizes at the end of a grid, runs that diverge
    results = compute(arguments.folder, arguments.quick)
    text = "\n\n".join("\n".join(table(name, problem, results)) for name, problem in problems().items())
    print(text)
    if arguments.write is not None:
        page = arguments.write.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        arguments.write.write_text(before + BEGIN + "\n\n" + text + "\n\n" + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
