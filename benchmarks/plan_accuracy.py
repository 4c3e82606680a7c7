"""How accurate is ``nw.plan``? Its predictions beside times measured in virtual time with many fresh seeds.

For clusters of twelve kinds with two levels of noise, and for recorded jobs, of which the plan sees the first half and
the measurement the second, this compares

* the ratio predicted, the time of minibatch SGD to the target over that of the best asynchronous method, with the ratio
  measured after stepsizes were tuned again, with other and more seeds;
* the time measured with the method and stepsize that the plan chose, with that of the best method found.

The results do not depend on the machine or its load. ``python benchmarks/plan_accuracy.py`` prints the table of
docs/planning.md; names of kinds as arguments select some, ``--seed`` makes other plans.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np

import nowait as nw
from nowait.cli.cluster import spread_cluster
from nowait.core.types import Floats
from nowait.recording.until import until
from nowait.speeds import Recorded, Speeds, Timing
from nowait.studies.advice import Advice, Simulated
from nowait.studies.candidates import Candidate, candidates
from nowait.studies.quiet import quiet
from nowait.studies.sources import Source
from nowait.studies.target import Goal, steady_place
from nowait.studies.tuner import Tuner

WORKERS = 16
GRADIENTS = 10_000
FIRST_SEED = 10_000
"""Seeds from here on measure; the plan does not use them."""
TUNING_SEEDS, TIMING_SEEDS = 12, 160
GRID = 2.0 ** np.linspace(-1.25, 1.25, 11)
EVALUATIONS = 25
"""Up to the target."""
HALF_WIDTH = EVALUATIONS // 5
LONG, LONGER = 2.5, 10.0
WITHIN = 1.1


@dataclass(frozen=True)
class Kind:
    """A kind of cluster: what the plan is told, and what really happens."""

    name: str
    planned: Speeds
    happens: Speeds


@dataclass(frozen=True)
class Row:
    """One comparison."""

    kind: str
    noise: str
    predicted: float
    measured: float
    first_below: float
    """The measured ratio if the first loss at or below the target counts, without smoothing."""
    choice: str
    best: str
    regret: float
    """Time of the choice over that of the best method."""
    seconds: float
    """Wall-clock seconds of the plan."""

    @property
    def off(self) -> float:
        """The predicted ratio over the measured one."""
        return self.predicted / self.measured


def problems() -> dict[str, nw.Problem]:
    """Return a problem with little noise, and one with much; both take hundreds of rounds."""
    shape = {"dimension": 100, "L": 1.0, "mu": 0.02}
    return {
        "little": nw.problems.NoisyQuadratic(**shape, sigma=0.05),
        "much": nw.problems.NoisyQuadratic(**shape, sigma=1.0),
    }


class Phases(Speeds):
    """Every worker becomes seven times slower and faster again, one after the other, in 40 seconds."""

    num_workers = WORKERS

    def timing(self, seed: int) -> Timing:
        """Return a function that takes the speed at the start of each gradient."""

        def timing(worker: int, job: int, start: float) -> tuple[float, float]:  # noqa: ARG001
            seconds = 1 / (1 + 0.75 * math.sin(2 * math.pi * (start / 40.0 + worker / WORKERS)))
            return seconds, start + seconds

        return timing


def kinds() -> Iterator[Kind]:
    """Return the twelve kinds, then the recorded jobs."""
    ones = [1.0] * WORKERS
    models = {
        "equal": nw.speeds.Fixed(ones),
        "straggler x 10": nw.speeds.Fixed([*ones[1:], 10.0]),
        "straggler x 100": nw.speeds.Fixed([*ones[1:], 100.0]),
        "two groups, x 4": nw.speeds.Fixed([*ones[:8], *[4.0] * 8]),
        "spread 0.5": nw.speeds.Fixed(spread_cluster(WORKERS, 0.5).tolist()),
        "spread 1.5": nw.speeds.Fixed(spread_cluster(WORKERS, 1.5).tolist()),
        "exponential": nw.speeds.Exponential(1.0, workers=WORKERS),
        "lognormal times, equal": nw.speeds.LogNormal(ones, sigma=1.0),
        "lognormal times, spread 1": nw.speeds.LogNormal(spread_cluster(WORKERS, 1.0).tolist(), sigma=0.5),
        "Pareto": nw.speeds.Pareto(1.0, shape=1.8, workers=WORKERS),
        "time-varying": Phases(),
        "outages": nw.speeds.UpDown(1.0, up=60.0, down=20.0, workers=WORKERS),
    }
    yield from (Kind(name, speeds, speeds) for name, speeds in models.items())
    for job in (1, 2, 3, 4):
        recorded = nw.speeds.alibaba(job)
        yield Kind(f"alibaba:{job}", recorded, recorded)
        early, late = halves(recorded)
        yield Kind(f"alibaba:{job}, 2nd half", early, late)


def halves(recorded: Recorded) -> tuple[Recorded, Recorded]:
    """Return the first and the second half of every worker's times."""
    cut = [(times[: len(times) // 2], times[len(times) // 2 :]) for times in recorded.seconds]
    return Recorded.of([first for first, _ in cut]), Recorded.of([second for _, second in cut])


def measure(
    problem: nw.Problem, kind: Kind, advice: Advice, seed: int
) -> tuple[dict[str, Floats], dict[str, Floats], Floats]:
    """Return the times of every method tuned again, of smoothed losses and not, and those of the plan's choice."""
    source = Source.of_speeds(kind.planned, seed)
    entrants = candidates(nw.theory.speedup(source.seconds.tolist()), False, source.errors)
    planned = {one.method: one for one in advice.simulated}
    tuner = Tuner(problem, kind.happens, 1.0, 1.0, tuple(range(FIRST_SEED, FIRST_SEED + TUNING_SEEDS)), 1)
    smooth, raw = {}, {}
    for candidate in entrants:
        size = tuned_again(tuner, candidate, planned[candidate.name], advice.target_loss)
        smooth[candidate.name], raw[candidate.name] = timed(tuner, candidate, size, planned[candidate.name], advice)
        if candidate.name == advice.choice.method:
            chosen, _ = timed(tuner, candidate, advice.choice.stepsize, planned[candidate.name], advice)
    return smooth, raw, chosen


def tuned_again(tuner: Tuner, candidate: Candidate, planned: Simulated, target: float) -> float:
    """Return the best stepsize with the tuning seeds."""
    centre = planned.stepsize
    for _ in range(3):
        swept = swept_long(tuner, candidate, centre * GRID, planned, tuner.seeds)
        place = steady_place(Goal(target, HALF_WIDTH).times(swept), LONG * planned.seconds)
        centre = float(swept.stepsizes[place])
        if 1 < place < len(GRID) - 2:
            break
    return centre


def timed(tuner: Tuner, candidate: Candidate, size: float, planned: Simulated, advice: Advice) -> tuple[Floats, Floats]:
    """Return the times to the target with the timing seeds: of smoothed losses, and of the first loss below it.

    Runs that miss it are repeated longer.
    """
    missing = tuple(range(FIRST_SEED + TUNING_SEEDS, FIRST_SEED + TUNING_SEEDS + TIMING_SEEDS))
    smooth, raw = {}, {}
    for factor in (LONG, LONGER):
        swept = swept_long(tuner, candidate, [size], planned, missing, factor)
        runs = zip(swept.time[0], swept.curves[0], swept.step[0], strict=True)
        smooth |= dict(zip(missing, Goal(advice.target_loss, HALF_WIDTH).times(swept)[0].tolist(), strict=True))
        raw |= {seed: until(*run, advice.target_loss) for seed, run in zip(missing, runs, strict=True)}
        missing = tuple(seed for seed in missing if math.isinf(smooth[seed]))
        if not missing:
            break
    return np.array(list(smooth.values())), np.array(list(raw.values()))


def swept_long(
    tuner: Tuner, candidate: Candidate, sizes, planned: Simulated, seeds: tuple[int, ...], factor: float = LONG
) -> nw.Sweep:
    """Simulate for longer than the plan expects."""
    steps = planned.gradients / (1 if candidate.kind == "asynchronous" else len(candidate.workers))
    every = max(1, int(steps / EVALUATIONS))
    seconds = factor * planned.seconds
    return tuner.sweep(candidate.make, sizes, seconds, candidate.workers, seeds=seeds, evaluate_every=every)


def compare(kind: Kind, noise: str, problem: nw.Problem, seed: int) -> Row:
    """Plan, and measure."""
    began = perf_counter()
    advice = nw.plan(problem, speeds=kind.planned, gradients=GRADIENTS, seed=seed, progress=False)
    took = perf_counter() - began
    with quiet():
        smooth, raw, chosen = measure(problem, kind, advice, seed)
    means = {name: float(times.mean()) for name, times in smooth.items()}
    best = min(means, key=means.__getitem__)
    minibatch = advice.minibatch.method
    running = [one.method for one in advice.simulated if one.kind == "asynchronous"]
    return Row(
        kind.name,
        noise,
        advice.gain,
        means[minibatch] / min(means[name] for name in running),
        float(raw[minibatch].mean()) / min(float(raw[name].mean()) for name in running),
        advice.choice.method,
        best,
        float(chosen.mean()) / means[best],
        took,
    )


def show(row: Row) -> None:
    marks = ("" if 1 / WITHIN <= row.off <= WITHIN else " !", "" if row.regret <= WITHIN else " !")
    print(
        f"| {row.kind} | {row.noise} | {row.predicted:.3g} | {row.measured:.3g} | {row.off:.2f}{marks[0]} | "
        f"{row.first_below:.3g} | {row.choice} | {row.best} | {row.regret:.2f}{marks[1]} |",
        flush=True,
    )
    print(f"{row.seconds:.0f} s", file=sys.stderr, flush=True)


def main(select: Callable[[str], bool], seed: int) -> None:
    """Print the table."""
    print("| cluster | noise | predicted | measured | ratio | first below | chosen | best found | time |")
    print("|---|---|---|---|---|---|---|---|---|")
    rows = []
    for kind in kinds():
        for noise, problem in problems().items():
            if select(kind.name):
                rows.append(compare(kind, noise, problem, seed))
                show(rows[-1])
    ratios = sum(1 / WITHIN <= row.off <= WITHIN for row in rows)
    choices = sum(row.regret <= WITHIN for row in rows)
    print(f"\nratio within 10 %: {ratios} of {len(rows)}; choice within 10 % of the best: {choices} of {len(rows)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help="Words in the names of kinds; all if none is given.")
    parser.add_argument("--seed", type=int, default=0, help="The first seed of the plans.")
    given = parser.parse_args()
    main(lambda name: not given.kinds or any(word in name for word in given.kinds), given.seed)
