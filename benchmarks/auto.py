"""Auto against what is tuned in hindsight: minibatches, the first m gradients, and asynchronous SGD, all with momentum.

Random clusters in virtual time, drawn by ``--seed``: 8 to 40 workers, median times with a spread of 0 to 1.5 (of their
logarithms), each time with a spread of 0.05 to 1; a quarter of the clusters have outages instead. Half of the problems
are quadratics with noise of any size, half logistic regressions with batches of 2 to 128. Time to target: until the
loss, averaged over the latest tenth of the run, is within 0.5 % (quadratic) or 1 % of the start above the minimum.

Every rival gets the best of its own stepsizes (a grid with a factor of 2), of Nesterov's momentum (minibatches 0, 0.5,
0.9, 0.97; the first m gradients without 0; DelayedNesterov 0.9 and 0.97) and of its own parameters, on two seeds; Auto
gets stepsize and momentum as tuned for minibatches and nothing else. Then all run with fresh seeds. Printed: medians
and ratios per cluster; geometric means with a bootstrap interval over the clusters, the least and the most; which
clusters a method missed.

``python benchmarks/auto.py --seed 7`` (twenty minutes on two cores); ``--real`` compares steps of four real processes
with those of minibatches and of a simulation instead (a minute); ``--churn`` compares with workers that leave and join
(virtual time, a minute).
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

import nowait as nw

TUNING, FRESH = (100, 101), tuple(range(9))
MOMENTA = (0.0, 0.5, 0.9, 0.97)
FACTORS = [2.0**k for k in range(-14, 8)]
EVALUATIONS = 500
LONGEST = 20_000
"""The most gradients of a run."""
Make = Callable[[float], tuple[nw.Method, nw.core.Update | None]]


@dataclass(frozen=True)
class Case:
    """A cluster with a problem, drawn by two numbers."""

    seed: int
    number: int

    @cached_property
    def random(self) -> dict[str, float]:
        draw = np.random.default_rng((self.seed, self.number))
        return {
            "workers": float(draw.integers(8, 41)),
            "spread": draw.uniform(0, 1.5),
            "jitter": draw.uniform(0.05, 1.0),
            "outages": float(draw.random() < 0.25),
            "noise": 10 ** draw.uniform(-4.0, -1.3),
            "batch": 2 ** draw.uniform(1, 7),
            "medians": float(draw.integers(1 << 30)),
        }

    @cached_property
    def medians(self) -> list[float]:
        normal = np.random.default_rng(int(self.random["medians"])).normal(size=self.workers)
        return [float(median) for median in np.exp(self.random["spread"] * normal)]

    @cached_property
    def speeds(self) -> nw.speeds.Speeds:
        if self.random["outages"]:
            return nw.speeds.UpDown(self.medians, up=150.0, down=30.0)
        return nw.speeds.LogNormal(self.medians, sigma=self.random["jitter"])

    @property
    def workers(self) -> int:
        return int(self.random["workers"])

    @property
    def is_quadratic(self) -> bool:
        return self.number % 2 == 0

    @cached_property
    def problem(self) -> nw.problems.NoisyQuadratic | nw.problems.LogisticRegression:
        if self.is_quadratic:
            return nw.problems.NoisyQuadratic(12, L=1.0, mu=1e-3, sigma=math.sqrt(self.random["noise"]), distance=1.0)
        draw = np.random.default_rng(self.number)
        features = draw.normal(size=(3_000, 40)) * np.exp(draw.normal(size=40))
        labels = np.where(features[:, :20].sum(axis=1) + 3 * draw.normal(size=3_000) > 0, 1.0, -1.0)
        features /= np.linalg.norm(features, axis=1).mean()
        return nw.problems.LogisticRegression(features, labels, batch_size=int(self.random["batch"]), l2=1e-3)

    @cached_property
    def target(self) -> float:
        """The loss that must be reached."""
        start = self.problem.loss(np.zeros(self.problem.dimension))
        if self.is_quadratic:
            return 0.005 * start
        from scipy.optimize import minimize

        problem = self.problem
        lowest = minimize(problem.loss, np.zeros(40), jac=problem.full_gradient, options={"gtol": 1e-9}).fun
        return float(lowest + 0.01 * (start - lowest))

    def __str__(self) -> str:
        random = self.random
        what = f"quadratic, noise {random['noise']:.1e}" if self.is_quadratic else f"logistic, {int(random['batch'])}"
        times = "outages" if random["outages"] else f"jitter {random['jitter']:.2f}"
        return f"M {self.workers}, spread {random['spread']:.2f}, {times}; {what}"

    def time_to_target(self, made: tuple[nw.Method, nw.core.Update | None], seed: int, seconds: float) -> float:
        """Return when a run reaches the target; infinite if it does not within these seconds.

        If that is early, the run is made again with evaluations that are closer together.
        """
        method, update = made
        run = nw.simulate(
            self.problem,
            method,
            self.speeds,
            seconds=seconds,
            gradients=LONGEST,
            seed=seed,
            update=update,
            evaluate_seconds=seconds / EVALUATIONS,
            progress=False,
        )
        time = first_time(run, self.target)
        return self.time_to_target(made, seed, 1.25 * time) if time < 0.2 * seconds else time

    def median(self, make: Make, size: float, seeds: tuple[int, ...], seconds: float) -> float:
        return float(np.median([self.time_to_target(make(size), seed, seconds) for seed in seeds]))

    def tuned(self, makes: Iterator[Make], sizes: list[float], seconds: float) -> tuple[float, Make | None, float]:
        """Return the least time to the target, and with what."""
        best: tuple[float, Make | None, float] = (math.inf, None, math.nan)
        for make in makes:
            own, worse = math.inf, 0
            for size in reversed(sizes):
                time = self.median(make, size, TUNING, min(seconds, 1.2 * best[0]))
                best = min(best, (time, make, size), key=lambda one: one[0])
                worse = 0 if time < own or own == math.inf else worse + 1
                own = min(own, time)
                if worse == 2:
                    break
        return best


def _with(momentum: float) -> nw.core.Update | None:
    return nw.Nesterov(momentum) if momentum else None


def minibatches(_: int) -> Iterator[Make]:
    for beta in MOMENTA:
        yield lambda size, beta=beta: (nw.MinibatchSGD(nw.Constant(size)), _with(beta))  # type: ignore[misc]


def first_gradients(workers: int) -> Iterator[Make]:
    numbers = sorted({max(1, round(share * workers)) for share in (0.03, 0.12, 0.25, 0.5, 0.75, 0.9)} | {workers - 1})
    for m, beta in itertools.product(numbers, MOMENTA[1:]):
        yield lambda size, m=m, beta=beta: (nw.MSynchronousSGD(nw.Constant(size), m=m), _with(beta))  # type: ignore[misc]


def asynchronous(workers: int) -> Iterator[Make]:
    for every, beta in itertools.product((workers, 4 * workers), (0.9, 0.97)):
        yield lambda size, every=every, beta=beta: (nw.DelayedNesterov(nw.Constant(size), every, beta), None)  # type: ignore[misc]
    yield lambda size: (nw.AsynchronousSGD(nw.Constant(size)), None)
    yield lambda size: (nw.AsynchronousSGD(nw.DelayAdaptive(size)), None)


def first_time(run: nw.Run, target: float) -> float:
    """Return when the loss, averaged over the latest tenth of the run, is at the target; infinite if it never is."""
    times, losses = np.asarray(run.history.time), np.asarray(run.history.loss)
    sums = np.concatenate([[0.0], np.cumsum(losses)])
    first = np.searchsorted(times, 0.9 * times)
    means = (sums[1:] - sums[first]) / (np.arange(1, len(times) + 1) - first)
    reached = np.flatnonzero(means <= target)
    return float(times[reached[0]]) if len(reached) else math.inf


RIVALS: dict[str, Callable[[int], Iterator[Make]]] = {"first m": first_gradients, "asynchronous": asynchronous}


def study(case: Case, with_auto: bool = True) -> tuple[str, dict[str, float]]:
    """Return the times to the target, by method."""
    logging.getLogger("nowait").setLevel(logging.ERROR)
    smoothness = case.problem.constants().L
    sizes = [factor / smoothness for factor in FACTORS]
    allowed = 2 * max(case.medians) * LONGEST / case.workers
    times: dict[str, float] = {}
    _, make, size = case.tuned(minibatches(case.workers), sizes, allowed)
    if make is None:
        return str(case), times
    _, update = make(size)
    beta = 0.0 if update is None else update.momentum_factor
    times["DDP"] = case.median(make, size, FRESH, allowed)
    longest = min(allowed, 3 * times["DDP"])
    times |= {"size": size, "beta": beta}
    if with_auto:
        times["Auto"] = case.median(lambda size: (nw.Auto(nw.Constant(size), beta), None), size, FRESH, longest)
    for name, makes in RIVALS.items():
        _, own, own_size = case.tuned(makes(case.workers), [s for s in sizes if s <= 8 * size], longest)
        times[name] = math.inf if own is None else case.median(own, own_size, FRESH, longest)
    return str(case), times


def summary(name: str, ratios: list[float]) -> str:
    """Return the geometric mean of ratios to Auto's time with its 95 % interval over clusters, the least and the most.

    Clusters where the rival missed the target are left out, and counted.
    """
    reached = [ratio for ratio in ratios if math.isfinite(ratio)]
    logs = np.log(reached)
    draws = np.random.default_rng(0).choice(logs, (2_000, len(logs))).mean(axis=1)
    low, high = np.exp(np.quantile(draws, (0.025, 0.975)))
    missed = f", missed by it {len(ratios) - len(reached)}"
    mean = f"{np.exp(logs.mean()):.2f} [{low:.2f}, {high:.2f}]"
    return f"time of {name} / time of Auto: {mean}, {min(reached):.2f} to {max(reached):.2f}{missed}"


def churn() -> None:
    """Print times to a target while two of four workers leave and join again every two seconds, and without that."""
    changes = [(2.0 + 2 * turn, ("leave", "join")[turn % 2], worker) for turn in range(75) for worker in (2, 3)]
    speeds = nw.speeds.LogNormal([0.1] * 4, sigma=0.1)
    print("| noise | method | without churn | with churn | ratio |\n|---|---|---|---|---|")
    for noise in (1e-6, 1e-4):
        problem = nw.problems.NoisyQuadratic(12, L=1.0, mu=3e-3, sigma=math.sqrt(noise), distance=1.0)
        target = 2e-4 * problem.loss(np.zeros(12))
        for name, make in CHURNED.items():
            medians = []
            for faults in (None, nw.speeds.Faults(changes)):
                times = []
                for seed in FRESH[:5]:
                    method, update = make(0.1)
                    options = {"faults": faults, "seed": seed, "update": update, "evaluate_seconds": 0.1}
                    run = nw.simulate(problem, method, speeds, seconds=150, progress=False, **options)
                    times.append(first_time(run, target))
                medians.append(float(np.median(times)))
            print(f"| {noise:g} | {name} | {medians[0]:.1f} s | {medians[1]:.1f} s | {medians[1] / medians[0]:.2f} |")


CHURNED: dict[str, Make] = {
    "Auto": lambda size: (nw.Auto(size, 0.9), None),
    "minibatches": lambda size: (nw.MinibatchSGD(nw.Constant(size)), nw.Nesterov(0.9)),
    **{
        f"the first {m}": lambda size, m=m: (nw.MSynchronousSGD(nw.Constant(size), m=m), nw.Nesterov(0.9))  # type: ignore[misc]
        for m in (2, 3)
    },
}


def real_processes() -> None:
    """Print the steps in three seconds of Auto and of minibatches with real processes, and of Auto in a simulation."""
    problem = nw.problems.LeastSquares.random(samples=2_000, dimension=50, noise=0.01, batch_size=16, seed=0)
    for factors in ((1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 10.0), (1.0, 2.0, 4.0, 8.0)):
        speeds = nw.speeds.Fixed([0.01 * factor for factor in factors])
        for _ in range(3):
            steps = [
                nw.train(
                    problem, method, speeds=speeds, seconds=3, update=update, start="together", progress=False
                ).stats.steps
                for method, update in ((nw.Auto(0.4), None), (nw.MinibatchSGD(nw.Constant(0.4)), nw.Nesterov(0.9)))
            ]
            simulated = nw.simulate(problem, nw.Auto(0.4), speeds, seconds=3).stats.steps
            print(f"seconds {factors}: Auto {steps[0]} steps, minibatches {steps[1]}, Auto simulated {simulated}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clusters", type=int, default=30)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--churn", action="store_true")
    chosen = parser.parse_args()
    if chosen.churn:
        logging.getLogger("nowait").setLevel(logging.ERROR)
        churn()
        return
    if chosen.real:
        real_processes()
        return
    cases = [Case(chosen.seed, number) for number in range(chosen.clusters)]
    ratios: dict[str, list[float]] = {"DDP": [], **{name: [] for name in RIVALS}, "the best of them": []}
    missed = 0
    print(f"{'':58} {'DDP':>9} {'Auto':>9} {'first m':>9} {'asynchr.':>9} {'of best':>8}")
    with multiprocessing.Pool(chosen.processes) as pool:
        for name, times in pool.imap(study, cases):
            if not times or not math.isfinite(times["Auto"]):
                missed += bool(times)
                print(f"{name:58} {'target missed by ' + ('Auto' if times else 'minibatches')}", flush=True)
                continue
            times["the best of them"] = min(times[rival] for rival in ("DDP", *RIVALS))
            for rival, of_rival in ratios.items():
                of_rival.append(times[rival] / times["Auto"])
            row = " ".join(f"{times[rival]:9.1f}" for rival in ("DDP", "Auto", *RIVALS))
            print(f"{name:58} {row} {1 / ratios['the best of them'][-1]:8.2f}", flush=True)
    print(f"Auto missed the target on {missed} clusters")
    for rival, of_rival in ratios.items():
        if any(map(math.isfinite, of_rival)):
            print(summary(rival, of_rival))


if __name__ == "__main__":
    main()
