"""Is the speedup of asynchronous over minibatch SGD in the range of ``nw.theory.speedup(…).expected(noise)``?

The speedup is the time of minibatch SGD to a target over that of asynchronous SGD, delay-adaptive, in virtual time,
with fixed seconds per gradient. Both stepsizes are tuned for this time with some seeds, and the times are means over
others. The problem is the quadratic of ``nowait rule-pays``; the noise is σ²/(M·L·ε) at the target ε. The results do
not depend on the machine or its load. ``python benchmarks/speedup_range.py`` prints the table of docs/theory.md.
"""

from __future__ import annotations

from dataclasses import replace

import nowait as nw
from nowait.cli.cluster import spread_cluster
from nowait.studies.candidates import Candidate
from nowait.studies.quiet import quiet
from nowait.studies.rule_pays.settings import SMOOTHNESS, gradients_needed, quadratic, target
from nowait.studies.target import FreshSeeds, choose_stepsize, measured
from nowait.studies.tuner import Make, Tuner

WORKERS = 16
NOISES = (0.0, 0.1, 0.3, 1.0, 10.0)
TUNING_SEEDS, FRESH = (0, 1, 2), FreshSeeds((), tuple(range(1_000, 1_006)))


def clusters() -> dict[str, list[float]]:
    """Return seconds per gradient of every worker."""
    ones = [1.0] * (WORKERS - 1)
    return {
        "equal": [*ones, 1.0],
        "straggler x 10": [*ones, 10.0],
        "straggler x 100": [*ones, 100.0],
        "one fast worker, others x 10": [0.1, *ones],
        "two groups, x 4": [1.0] * 8 + [4.0] * 8,
        "spread 0.5": spread_cluster(WORKERS, 0.5).tolist(),
        "spread 1": spread_cluster(WORKERS, 1.0).tolist(),
        "spread 1.5": spread_cluster(WORKERS, 1.5).tolist(),
        "spread 2": spread_cluster(WORKERS, 2.0).tolist(),
    }


def seconds_to_target(tuner: Tuner, make: Make) -> float:
    """Return the mean time to the target with a tuned stepsize."""
    everybody = Candidate("", make, tuple(range(WORKERS)))
    with quiet():
        chosen = choose_stepsize(tuner, everybody, tuner.tune(make), target(), refinements=3)
        return measured(tuner, chosen, target(), FRESH).seconds


def main() -> None:
    print("| cluster | noise | s_max/HM | measured | s_max/s_min | measured / (s_max/HM) | range |")
    print("|---|---|---|---|---|---|---|")
    inside = rows = 0
    for name, seconds in clusters().items():
        gain = nw.theory.speedup(seconds)
        for noise in NOISES:
            budget = gradients_needed(noise, WORKERS) / gain.rate
            problem = quadratic(noise, WORKERS)
            tuner = Tuner(problem, nw.speeds.Fixed(seconds), 1 / SMOOTHNESS, budget, TUNING_SEEDS, sizes=12)
            running = seconds_to_target(tuner, lambda size: nw.AsynchronousSGD(nw.DelayAdaptive(size)))
            waiting = replace(tuner, seconds=2 * gain.speedup * budget)
            found = seconds_to_target(waiting, lambda size: nw.MinibatchSGD(nw.Constant(size))) / running
            expected = gain.expected(noise)
            rows, inside = rows + 1, inside + (found in expected)
            mark = "" if found in expected else " !"
            print(
                f"| {name} | {noise:g} | {gain.speedup:.3g} | {found:.3g} | {gain.ceiling:.4g} | "
                f"{found / gain.speedup:.2f} | {expected}{mark} |",
                flush=True,
            )
    print(f"\n{inside} of {rows} in the range")


if __name__ == "__main__":
    main()
