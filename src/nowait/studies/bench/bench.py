"""``nw.bench``: all methods on the same problems and clusters, each tuned with the same number of trials."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from nowait.core import checks
from nowait.engines.progress import Progress
from nowait.engines.simulator.sweep import num_cores
from nowait.engines.watch import Watch
from nowait.studies.bench.folder import BenchFolder
from nowait.studies.bench.jobs import PHASE_COST, Job, compute_in
from nowait.studies.bench.own_methods import normalised, own_contender, own_source
from nowait.studies.bench.phase_grid import PhasePoint
from nowait.studies.bench.records import Entry, PhaseEntry, Task
from nowait.studies.bench.result import Bench
from nowait.studies.bench.suite import Suite, suite


def bench(
    tier: str = "small",
    *,
    folder: str | Path,
    methods: Iterable[str] = (),
    problems: Iterable[str] | None = None,
    processes: int | None = None,
    progress: bool | None = None,
) -> Bench:
    """Compare all methods on the problems and clusters of a fixed suite, in virtual time.

    ``tier`` is small (five minutes on two cores) or full (an hour; needs PyTorch). Every method has the same number of
    trials for its parameters, update and stepsize, on tuning seeds; its best setting then runs with other seeds. The
    result is the time until the loss is at or below the problem's target. ``methods`` are further methods,
    ``file.py:name``; ``problems`` limits the problems.

    Every result is written to ``folder`` when it is complete: after an interruption the same call computes the rest.
    Ctrl-C and SIGTERM raise ``nw.Interrupted``. ``processes`` None uses all cores; ``progress`` None shows a bar on a
    terminal.
    """
    chosen, own, wanted = checked_request(tier, methods, problems)
    processes = num_cores() if processes is None else checks.at_least(1, processes, "processes", "one has to compute")
    return run_suite(
        chosen, Path(checks.path(folder)), own=own, problems=wanted, processes=processes, progress=progress
    )


def checked_request(
    tier: str, methods: Iterable[str], problems: Iterable[str] | None
) -> tuple[Suite, tuple[str, ...], tuple[str, ...] | None]:
    """Return the suite, the user's own methods and the problems, or raise before anything is computed."""
    chosen, own = suite(tier), tuple(dict.fromkeys(map(normalised, methods)))
    for text in own:
        for workload in chosen.workloads:
            workload.tuning.grid_of(own_contender(text), 1.0, 1)
    return chosen, own, _checked_problems(chosen, problems)


def run_suite(
    chosen: Suite,
    folder: Path,
    *,
    own: tuple[str, ...] = (),
    problems: tuple[str, ...] | None = None,
    processes: int = 0,
    progress: bool | None = None,
) -> Bench:
    """Compute what is missing in the folder, and return all results. Without processes, this one computes."""
    kept = BenchFolder.open_or_create(folder, chosen)
    kept.lock()
    try:
        _compute(chosen, kept, missing_jobs(chosen, kept, own, problems), processes, progress)
    finally:
        kept.unlock()
    return Bench.load(folder)


def _compute(chosen: Suite, kept: BenchFolder, jobs: list[Job], processes: int, progress: bool | None) -> None:
    total, done = sum(job.cost for job in jobs), 0.0
    with Watch() as watch, Progress(f"benchmark, {len(jobs):,} results to compute", progress) as bar:
        for job, result in _results(chosen, jobs, processes, watch.check):
            if isinstance(result, Entry):
                kept.add(result)
            else:
                kept.add_phase(result)
            done += job.cost
            bar.show(done / total)


def missing_jobs(
    chosen: Suite, kept: BenchFolder, own: tuple[str, ...] = (), problems: tuple[str, ...] | None = None
) -> list[Job]:
    """Return the jobs whose results are not in the folder, cheap ones first.

    A method of the user's own whose file has changed is computed again.
    """
    tasks = [task for task in chosen.tasks((*chosen.methods, *own)) if problems is None or task.problem in problems]
    points = chosen.phases.points() if problems is None else []
    sources = {text: own_source(text) for text in own}
    entries = kept.entries().values()
    done = kept.phases().keys() | {entry.key for entry in entries if entry.source == sources.get(entry.method, "")}
    work: list[tuple[Task | PhasePoint, float]] = [(task, chosen.workload(task.problem).cost) for task in tasks]
    work += [(point, PHASE_COST) for point in points]
    jobs = [Job(chosen.name, kept.path, item, cost) for item, cost in work if item.key not in done]
    return sorted(jobs, key=lambda job: job.cost)


def _results(
    chosen: Suite, jobs: list[Job], processes: int, check: Callable[[], None]
) -> Iterator[tuple[Job, Entry | PhaseEntry]]:
    if processes:
        from nowait.studies.bench.pool import computed

        yield from computed(jobs, min(processes, len(jobs)) or 1, check)
        return
    for job in jobs:
        check()
        yield job, compute_in(chosen, job)


def _checked_problems(chosen: Suite, problems: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return the problems to compute, or raise if one is not in the suite or needs PyTorch, which is missing."""
    names = [workload.problem.name for workload in chosen.workloads]
    wanted = None if problems is None else tuple(checks.one_of(name, names, "the problem") for name in problems)
    torch_ones = [name for name in (wanted or names) if not chosen.workload(name).problem.same_bits]
    if torch_ones and importlib.util.find_spec("torch") is None:
        others = " ".join(f"--problem {name}" for name in names if name not in torch_ones)
        raise ValueError(
            f"{' and '.join(torch_ones)} need PyTorch: pip install 'nowait[pytorch]', or leave them out with {others}"
        )
    return wanted
