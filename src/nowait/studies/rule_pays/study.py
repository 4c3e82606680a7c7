"""``rule_pays``: where the delay-adaptive stepsize γ·min(1, M/τ) is better than a constant one, and where it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, final

from nowait.core import checks
from nowait.engines.progress import Progress
from nowait.engines.watch import Watch
from nowait.studies.rule_pays.prescribed import FACTORS, PROBLEMS, STEPS, Prescribed, prescribed_errors
from nowait.studies.rule_pays.settings import CLUSTERS, NOISES, Cluster
from nowait.studies.rule_pays.tuned import BATCHES, MOST_NOISE_TO_STAY, WIDE, Ratio, loss_ratio, stay_ratio, time_ratio

Item = TypeVar("Item")
Value = TypeVar("Value")


@final
@dataclass(frozen=True, eq=False)
class RulePays:
    """The result of ``nowait.studies.rule_pays()``."""

    workers: int
    """The number of workers, M."""
    seeds: int
    """How many clusters of each kind were drawn."""
    steps: int
    """The steps of the runs with prescribed stepsizes."""
    prescribed: list[Prescribed]
    """With the stepsizes that theory prescribes, for a straggler that becomes slower: problem by problem."""
    noises: tuple[float, ...]
    """The noise σ²/(M·L·ε) at the target ε: the rows of the map."""
    clusters: tuple[str, ...]
    """The kinds of clusters: the columns of the map."""
    times: list[Ratio]
    """With tuned stepsizes: time to the target of the constant stepsize over that of the rule, row by row."""
    stays: list[Ratio]
    """The same for the time from which losses stay below the target, where there is little noise."""
    losses: list[Ratio]
    """With tuned stepsizes: error of the constant stepsize over that of the rule after the same time."""

    def time(self, noise: float, cluster: str) -> Ratio:
        """Return one cell of the map."""
        return self.times[self.noises.index(noise) * len(self.clusters) + self.clusters.index(cluster)]


def rule_pays(
    *,
    workers: int = 16,
    seeds: int = 5,
    noises: Sequence[float] = NOISES,
    clusters: Sequence[Cluster] = CLUSTERS,
    batches: Sequence[int] = BATCHES,
    steps: int = STEPS,
    progress: bool | None = None,
) -> RulePays:
    """Compare the delay-adaptive with the constant stepsize of asynchronous SGD, in virtual time.

    With the stepsizes of the theory: after ``steps`` steps, for a straggler that becomes slower. With tuned stepsizes:
    the time to a target on a quadratic, for every noise and every kind of cluster; the time from which losses stay
    below it, where there is little noise; and the error after the same time on the paper's least squares, for every
    batch size. ``noises`` are σ²/(M·L·ε) at the target ε; ``clusters`` are kinds of clusters, such as
    ``nowait.studies.Cluster(spread=1.2)``. ``seeds`` clusters of each kind are drawn; the ranges of the result are over
    these. Takes about ten minutes with all defaults. Ctrl-C and SIGTERM raise ``nw.Interrupted``.
    """
    workers = checks.at_least(2, workers, "workers", "a cluster has at least two")
    seeds = checks.at_least(1, seeds, "seeds", "at least one cluster of each kind is simulated")
    steps = checks.at_least(1, steps, "steps", "it is the length of a run")
    rows = [checks.not_negative(noise, "noises", "it is the variance σ²/(M·L·ε)") for noise in noises]
    sizes = [checks.at_least(1, size, "batches", "it is the number of samples in a batch") for size in batches]
    for kind in clusters:
        checks.instance(kind, Cluster, "clusters", "nowait.studies.Cluster(spread=1.2)")
    wide = [Cluster(spread) for spread in WIDE]
    quiet = [noise for noise in rows if noise <= MOST_NOISE_TO_STAY]
    cells = len(rows) * len(clusters) + (len(quiet) + len(sizes)) * len(wide)
    with Watch() as watch, Progress("comparing the rules", progress) as bar:
        work = _Work(watch, bar, len(PROBLEMS) * len(FACTORS) + seeds * cells, workers, seeds)
        prescribed = [
            one
            for name in PROBLEMS
            for one in work.each(FACTORS, partial(prescribed_errors, name, workers=workers, steps=steps))
        ]
        times = work.ratios(time_ratio, "noise", rows, clusters)
        stays = work.ratios(stay_ratio, "noise", quiet, wide)
        losses = work.ratios(loss_ratio, "batches of", sizes, wide)
    return RulePays(workers, seeds, steps, prescribed, tuple(rows), tuple(map(str, clusters)), times, stays, losses)


@final
@dataclass
class _Work:
    """Computes the parts of the study, shows how many are done, and stops at Ctrl-C."""

    watch: Watch
    bar: Progress
    parts: int
    workers: int
    seeds: int
    done: int = field(default=0, init=False)

    def ratios(
        self,
        compute: Callable[[Cluster, Any, int, int], float],
        label: str,
        values: Sequence[float],
        kinds: Sequence[Cluster],
    ) -> list[Ratio]:
        """Return a ratio for each value, which the label names, and each kind of cluster."""
        seeds = range(self.seeds)
        return [
            Ratio(str(kind), f"{label} {value:g}", self.each(seeds, partial(compute, kind, value, self.workers)))
            for value in values
            for kind in kinds
        ]

    def each(self, items: Iterable[Item], compute: Callable[[Item], Value]) -> tuple[Value, ...]:
        """Return what ``compute`` returns for each item."""
        return tuple(self._one(compute, item) for item in items)

    def _one(self, compute: Callable[[Item], Value], item: Item) -> Value:
        value = compute(item)
        self.done += 1
        self.bar.show(self.done / self.parts)
        self.watch.check()
        return value
