"""``nw.sweep``."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, final

import numpy as np

from nowait.api.different_data import usual_seconds, warn_of_different_data
from nowait.api.parts import UPDATES, initial_vector, make_parts, warn_of_split
from nowait.core import LastIterate, Method, Output, Problem, Sgd, Update, checks
from nowait.core.capabilities import Capabilities
from nowait.core.problem import check_is_finite, checked_problem, initial_params, loss_of
from nowait.core.randomness import checked_seed
from nowait.core.types import Floats
from nowait.engines.budget import Budget, EvaluationPlan
from nowait.engines.progress import Progress
from nowait.engines.simulator import simulate, simulate_compiled
from nowait.engines.simulator.compiled import data_of
from nowait.engines.simulator.gpu.device import checked_name, find_device
from nowait.engines.simulator.sweep import NotPlannable, SweepParts, sweep_compiled
from nowait.engines.watch import Watch
from nowait.recording import Run, Sweep, SweepRun, describe, name_of
from nowait.recording.sweep_folder import SweepFolder, engine_of
from nowait.speeds import Faults, Speeds

logger = logging.getLogger("nowait")

EVALUATIONS = 20
"""The number of evaluations of each run of a sweep by default."""
MOST_SEEDS = 1 << 20
"""The largest number of seeds that may be given as a number."""
Make = Callable[[float], Method]


def sweep(
    problem: Problem,
    method: Method | Make,
    speeds: Speeds,
    *,
    stepsizes: Iterable[float],
    seeds: int | Iterable[int] = (0,),
    steps: int | None = None,
    gradients: int | None = None,
    seconds: float | None = None,
    evaluate_every: int | None = None,
    update: Update | None = None,
    output: Output | None = None,
    initial: Any = None,
    faults: Faults | None = None,
    threads: int | None = None,
    device: str | None = "cpu",
    folder: str | Path | None = None,
    progress: bool | None = None,
) -> Sweep:
    """Simulate a method with every stepsize and every seed, and return the losses and the best stepsize.

    ``method`` is a method, whose stepsize rule gets each of the ``stepsizes`` as its γ in turn (``DelayAdaptive(0.1)``
    becomes ``DelayAdaptive(size)``), or a function that makes one: ``lambda size: nw.AsynchronousSGD(size)``.
    ``seeds`` is a number n, which means 0 to n − 1, or the seeds themselves. Runs end as in ``nw.simulate``, after
    ``seconds`` of virtual time for instance; a run that diverges does not raise an error. The loss is evaluated every
    ``evaluate_every`` steps; None spreads about twenty evaluations over the budget. All cores are used unless
    ``threads`` is given. Runs that cannot be compiled (see ``nw.simulate``) are made one by one.

    ``device="cuda"`` executes all runs at once on a GPU (PyTorch and Triton are needed), for linear models over dense
    rows and methods that do not read gradients. It has the same arrivals and samples; losses agree with those of the
    CPU up to rounding. Anything that the GPU does not support is an error.

    ``update``, ``output``, ``initial`` and ``faults`` are those of ``nw.simulate``. ``progress`` None shows a bar on a
    terminal. With an update or an output rule the runs are
    made one by one. With an output rule, stepsizes are compared by the loss of its answer (``answers``), else by the
    last loss.

    With a ``folder`` every complete run is written there. The same call with the same folder, after an interruption or
    with more stepsizes and seeds, makes only the runs that are missing. ``nw.Sweep.load(folder)`` reads a finished
    sweep. Ctrl-C and SIGTERM raise ``nw.Interrupted``.

    >>> import nowait as nw
    >>> problem = nw.problems.LeastSquares.random(samples=200, dimension=10, seed=0)
    >>> method = nw.AsynchronousSGD(nw.DelayAdaptive(1.0))
    >>> speeds, sizes = nw.speeds.Exponential(1.0, workers=8), [0.01, 0.1, 1.0, 10.0]
    >>> result = nw.sweep(problem, method, speeds, stepsizes=sizes, seeds=3, steps=2_000)
    >>> result.best, result.diverged.any(axis=1).tolist()
    (1.0, [False, False, False, True])
    """
    device, progress = checked_name(device), checks.flag_or_none(progress, "progress")
    folder = None if folder is None else Path(checks.path(folder))
    if device != "cpu":
        find_device(device)
    sizes, seed_list = _checked_sizes(stepsizes), checked_seeds(seeds)
    make = maker(method)
    first = checks.instance(make(float(sizes[0])), Method, "method", "nw.AsynchronousSGD(nw.DelayAdaptive(0.01))")
    checks.instance(speeds, Speeds, "speeds", "nw.speeds.Fixed([1.0, 1.0, 10.0])")
    faults = Faults([]) if faults is None else checks.instance(faults, Faults, "faults", "nw.speeds.Faults([...])")
    faults.check_leavers(speeds.num_workers)
    if threads is not None:
        threads = checks.at_least(1, threads, "threads", "a sweep needs at least one")
    params = initial_params(checked_problem(problem), initial_vector(Capabilities.of(problem), initial))
    budget = Budget(steps, gradients, seconds)
    evaluations = EvaluationPlan.of(evaluate_every, budget, EVALUATIONS)
    warn_of_split(problem, speeds.num_workers)
    named = {type(first).__name__: first}
    warn_of_different_data(problem, named, speeds.num_workers, usual_seconds(speeds), params)
    parts = SweepParts(problem, data_of(Capabilities.of(problem)), make, speeds, faults, budget, evaluations, params)
    check_is_finite(parts.initial_loss)
    check_rules(update, output)
    described = make(1.0) if isinstance(method, Method) else first
    rules = _Rules(_update_of(problem, described) if update is None else update, output)
    config = _config(parts, described, rules)
    found = None if folder is None else SweepFolder.open_or_create(folder, sizes, np.array(seed_list), config)
    with Watch() as watch, Progress("sweeping", progress) as bar:
        work = _Work(parts, rules, sizes, seed_list, found, watch)
        if device == "cpu":
            work.make_all(threads, bar)
        else:
            work.make_all_on(device, threads, bar)
    result = Sweep.of(sizes, np.array(seed_list, dtype=np.int64), work.runs, engine_of(work.engines), config)
    result = dataclasses.replace(result, not_compiled=work.not_compiled)
    if result.advice:
        logger.warning(result.advice)
    return result


def maker(method: Method | Make) -> Make:
    """Return a function that makes the method with a stepsize."""
    if not isinstance(method, Method):
        if callable(method) and not isinstance(method, type):
            return method
        raise TypeError(
            f"method must be a method or a function of the stepsize that makes one, got {checks.shown(method)}"
        )
    rule = getattr(method, "stepsize", None)
    if rule is None or not dataclasses.is_dataclass(method):
        raise TypeError(
            f"{type(method).__name__} has no stepsize to sweep over: pass a function of the stepsize that makes it"
        )
    return lambda size: dataclasses.replace(method, stepsize=rule.with_size(size))


def _update_of(problem: Problem, method: Method) -> Update | None:
    """Return the update of runs that are not given one: that of the method or the problem; None for plain SGD."""
    usual = Capabilities.of(problem).update_for(method)
    return None if isinstance(usual, Sgd) else usual


@final
@dataclasses.dataclass(frozen=True)
class _Rules:
    update: Update | None
    output: Output | None

    @property
    def usual(self) -> bool:
        """True for plain SGD with the last iterate as the answer."""
        return (self.update is None or isinstance(self.update, Sgd)) and self.has_last_iterate

    @property
    def has_last_iterate(self) -> bool:
        return self.output is None or isinstance(self.output, LastIterate)


@final
class _Work:
    """The runs of a sweep: those that its folder holds, and those still to be made."""

    def __init__(
        self,
        parts: SweepParts,
        rules: _Rules,
        sizes: Floats,
        seeds: list[int],
        folder: SweepFolder | None,
        watch: Watch,
    ) -> None:
        self._parts = parts
        self._rules = rules
        self._sizes = sizes
        self._seeds = seeds
        self._folder = folder
        self._watch = watch
        kept, engines = ({}, set()) if folder is None else folder.kept()
        self.runs: dict[tuple[float, int], SweepRun] = kept
        self.engines: set[str] = engines
        self.not_compiled = ""
        """Why runs could not be compiled together."""

    def make_all(self, threads: int | None, bar: Progress) -> None:
        """Make the runs that are missing."""
        for sizes, seeds in self._missing():
            try:
                if not self._rules.usual:
                    raise NotPlannable("the update is not plain SGD, or the output is not the last iterate")
                sweep_compiled(self._parts, sizes, seeds, threads, bar, self._keep_compiled)
            except NotPlannable as error:
                self.not_compiled = self.not_compiled or error.reason
                self._one_by_one(sizes, seeds, bar)

    def make_all_on(self, device: str, threads: int | None, bar: Progress) -> None:
        """Make the runs that are missing on a GPU."""
        from nowait.engines.simulator.gpu.support import NotOnGpuError
        from nowait.engines.simulator.gpu.sweep import sweep_on_gpu

        if not self._rules.usual:
            raise NotOnGpuError("the update is not plain SGD, or the output is not the last iterate")
        for sizes, seeds in self._missing():
            sweep_on_gpu(self._parts, sizes, seeds, device=device, threads=threads, bar=bar, keep=self._keep_gpu)

    def _missing(self) -> list[tuple[Floats, list[int]]]:
        """Return groups of stepsizes and seeds whose runs are missing."""
        groups: dict[tuple[float, ...], list[int]] = {}
        for seed in self._seeds:
            missing = tuple(size for size in self._sizes.tolist() if (size, seed) not in self.runs)
            if missing:
                groups.setdefault(missing, []).append(seed)
        return [(np.array(sizes), seeds) for sizes, seeds in groups.items()]

    def _keep_compiled(self, seed: int, sizes: Floats, runs: list[SweepRun]) -> None:
        self._keep({(size, seed): run for size, run in zip(sizes.tolist(), runs, strict=True)}, "compiled")

    def _keep_gpu(self, seed: int, sizes: Floats, runs: list[SweepRun]) -> None:
        self._keep({(size, seed): run for size, run in zip(sizes.tolist(), runs, strict=True)}, "gpu")

    def _keep(self, runs: dict[tuple[float, int], SweepRun], engine: str) -> None:
        if self._folder is not None:
            self._folder.add(runs, engine)
        self.runs |= runs
        self.engines.add(engine)

    def _one_by_one(self, sizes: Floats, seeds: list[int], bar: Progress) -> None:
        for seed in seeds:
            for size in sizes.tolist():
                if (size, seed) not in self.runs:
                    run = self._single(size, seed)
                    self._watch.check()
                    self._keep({(size, seed): _sweep_run(run, self._answer(run))}, run.stats.engine)
                    bar.show(len(self.runs) / (len(self._sizes) * len(self._seeds)))

    def _single(self, size: float, seed: int) -> Run:
        """Make one run, compiled if possible."""
        parts = self._parts
        run_parts = make_parts(
            parts.problem,
            parts.make(size),
            parts.faults.present_at_start(parts.speeds.num_workers),
            parts.budget,
            evaluate_every=None,
            update=self._rules.update,
            output=self._rules.output,
            callbacks=(),
            initial=parts.initial,
            seed=seed,
            on_host=True,
        )
        run_parts.evaluations, run_parts.quiet = parts.evaluations, True
        if not self._rules.usual:
            with suppress(NotPlannable):
                return simulate_compiled(run_parts, parts.speeds, parts.faults, seed, progress=False)
        return simulate(run_parts, parts.speeds.clock(seed), parts.faults, seed, progress=False)

    def _answer(self, run: Run) -> float | None:
        """Return the loss of the output rule's answer; None if that is the last iterate."""
        if self._rules.has_last_iterate:
            return None
        return math.inf if run.stats.diverged else loss_of(self._parts.problem, run.params)


def _sweep_run(run: Run, answer: float | None) -> SweepRun:
    losses = run.history.loss.copy()
    if run.stats.diverged:
        losses[-1] = np.inf
    step, gradients = run.history.step.astype(np.float64), run.history.gradients.astype(np.float64)
    return SweepRun(losses, step, gradients, run.history.time.astype(np.float64), answer)


def _config(parts: SweepParts, method: Method, rules: _Rules) -> dict[str, Any]:
    """Return what was run, without stepsizes and seeds: runs are only added to a folder with the same entries."""
    loss = parts.initial_loss
    return {
        "problem": name_of(parts.problem),
        "initial_loss": float(f"{loss:.6g}") if math.isfinite(loss) else str(loss),
        "method": describe(method),
        "update": describe(rules.update),
        "output": describe(rules.output),
        "speeds": describe(parts.speeds),
        "faults": describe(parts.faults),
        "budget": describe(parts.budget),
        "evaluations": describe(parts.evaluations),
    }


def _checked_sizes(stepsizes: Iterable[float]) -> Floats:
    sizes = [
        checks.positive(size, f"stepsizes[{place}]", "params would not move")
        for place, size in enumerate(checks.listed(stepsizes, "stepsizes"))
    ]
    if len(set(sizes)) < len(sizes):
        raise ValueError("stepsizes has one of them twice")
    return np.array(sizes)


def check_rules(update: Any, output: Any) -> None:
    """Raise if an update or an output is given that is not one."""
    if update is not None:
        checks.instance(update, Update, "update", UPDATES)
    if output is not None:
        checks.instance(output, Output, "output", "nw.UniformAverage()")


def checked_seeds(seeds: int | Iterable[int], first: int = 0) -> list[int]:
    """Return the seeds of several runs, each once. A number n means the n seeds from ``first`` on.

    >>> checked_seeds(3), checked_seeds(2, first=5), checked_seeds([4, 1])
    ([0, 1, 2], [5, 6], [4, 1])
    """
    first = checked_seed(first)
    if isinstance(seeds, Iterable):
        if first != 0:
            raise ValueError(f"give seed={first} with a number of seeds, or the seeds themselves, not both")
        checked = [checked_seed(seed) for seed in checks.listed(seeds, "seeds")]
    else:
        number = checks.at_least(1, seeds, "seeds", "give how many, or a list of them")
        if number > MOST_SEEDS:
            raise ValueError(f"seeds must be at most {MOST_SEEDS:,}, got {checks.shown(seeds)}: each is a run")
        checked = list(range(first, first + number))
    if len(set(checked)) < len(checked):
        raise ValueError("seeds has one of them twice: it would count twice")
    checked_seed(max(checked))
    return checked
