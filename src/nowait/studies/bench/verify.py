"""``nowait bench --verify``: entries are computed again, and compared bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from nowait.api.replay import replay
from nowait.core import checks
from nowait.engines.progress import Progress
from nowait.engines.watch import Watch
from nowait.recording import Trace
from nowait.recording.errors import DamagedFileError
from nowait.studies.bench.contenders import UPDATES
from nowait.studies.bench.folder import BenchFolder
from nowait.studies.bench.jobs import cell_of
from nowait.studies.bench.measuring import Cell, array_digest, trace_digest
from nowait.studies.bench.phase import phase_entry
from nowait.studies.bench.records import Entry, Measured, PhaseEntry
from nowait.studies.bench.suite import Suite, suite
from nowait.studies.quiet import quiet

Result = Entry | PhaseEntry

COMPARED = {
    "trace": "the arrivals",
    "losses": "the losses",
    "params": "the last params",
    "seconds": "the time",
    "loss": "the last loss",
    "steps": "the steps",
    "gradients": "the gradients",
}


@final
@dataclass(frozen=True)
class Verified:
    """What came of computing one run of an entry, or one point of the phase diagram, again."""

    key: str
    seed: int | None
    """None for a point of the phase diagram, which has several runs."""
    differing: tuple[str, ...]
    """What differs; empty if all bits are the same."""
    replayed: bool
    """True if the stored trace was replayed as well."""


def verify(
    folder: str | Path, *, sample: int | None = None, only: str = "", progress: bool | None = None
) -> list[Verified]:
    """Compute results of a benchmark again and compare them: all, ``sample`` of them, or those whose name has ``only``.

    Every run of an entry is simulated again from its setting and its seed: arrivals, losses and last params must have
    the same bits. Where the folder has the trace of a run, it is replayed through the server as well, which recomputes
    every gradient. Settings are not tuned again; points of the phase diagram are. A damaged file raises
    ``DamagedFileError``.
    """
    kept = BenchFolder.open(Path(checks.path(folder)))
    kept.check()
    chosen = suite_of(kept)
    stored: list[Result] = [*kept.entries().values(), *kept.phases().values()]
    results = chosen_results(stored, sample, only)
    done: list[Verified] = []
    with Watch() as watch, Progress("verifying", progress) as bar:
        for place, result in enumerate(results):
            for verified in _verified(chosen, kept, result):
                watch.check()
                done.append(verified)
            bar.show((place + 1) / len(results))
    return done


def suite_of(kept: BenchFolder) -> Suite:
    """Return the suite of a folder; raise ValueError if this version of nowait has another one of that name."""
    chosen = suite(str(kept.header.get("suite")))
    stored, own = str(kept.header.get("digest")), chosen.digest()
    if stored != own:
        raise ValueError(
            f"{kept.path} has results of another suite {chosen.name} (its digest is {stored[:16]}, that of this nowait "
            f"is {own[:16]}): verify them with nowait {kept.header.get('nowait')}"
        )
    return chosen


def chosen_results(results: Sequence[Result], sample: int | None, only: str) -> list[Result]:
    """Return the results to verify: those with the text in their name, and of them a sample spread evenly."""
    found = [result for result in results if only in result.key]
    if not found:
        raise ValueError(f"there is no result with {only!r} in its name" if only else "there are no results to verify")
    if sample is None:
        return found
    count = min(len(found), checks.at_least(1, sample, "sample", "it is the number of results to verify"))
    return [found[place * len(found) // count] for place in range(count)]


def _verified(chosen: Suite, kept: BenchFolder, result: Result) -> Iterator[Verified]:
    if isinstance(result, Entry):
        yield from _verified_entry(chosen, kept, result)
    else:
        differing = () if phase_entry(result.point) == result else ("the times",)
        yield Verified(result.key, None, differing, replayed=False)


def _verified_entry(chosen: Suite, kept: BenchFolder, entry: Entry) -> Iterator[Verified]:
    """Compute all runs of an entry again; one with other seeds than the suite's is not what it seems."""
    cell = cell_of(chosen, entry.task)
    if tuple(run.seed for run in entry.runs) != cell.workload.seeds:
        yield Verified(entry.key, None, ("the seeds",), replayed=False)
        return
    for run in entry.runs:
        again = cell.measured(entry.trial, cell.run(entry.trial, run.seed))
        differing = [words for name, words in COMPARED.items() if getattr(run, name) != getattr(again, name)]
        path = kept.trace_path(entry.task, run.seed)
        stored = path.is_file()
        if stored:
            differing += _replayed(cell, entry, run, path)
        yield Verified(entry.key, run.seed, tuple(differing), stored)


def _replayed(cell: Cell, entry: Entry, run: Measured, path: Path) -> list[str]:
    """Replay a stored trace and return what differs from the entry."""
    try:
        trace = Trace.load(path)
    except (DamagedFileError, ValueError, OSError):
        return ["the stored trace"]
    if trace_digest(trace) != run.trace:
        return ["the stored trace"]
    if not len(trace):
        return []
    method, update = cell.method_of(entry.trial), UPDATES[entry.update]
    try:
        with quiet():
            again = replay(trace, cell.problem, method, seed=run.seed, update=update, progress=False)
    except ValueError:  # a row of the trace differs
        return ["the replay of the stored trace"]
    return [] if array_digest(again.last) == run.params else ["the params of the replayed trace"]
