"""``nowait bench --verify``: entries are computed again, and compared bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

from nowait.api.replay import replay
from nowait.core import checks
from nowait.engines.progress import Progress
from nowait.engines.watch import Watch
from nowait.recording import Trace
from nowait.studies.bench.contenders import UPDATES
from nowait.studies.bench.folder import BenchFolder
from nowait.studies.bench.jobs import contender_of, use_one_thread
from nowait.studies.bench.measuring import Cell, Entry, Measured, array_digest, measured, trace_digest
from nowait.studies.bench.suite import VERSION, Suite, suite
from nowait.studies.quiet import quiet

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
    """What came of computing one run of an entry again."""

    key: str
    seed: int
    differing: tuple[str, ...]
    """What differs; empty if all bits are the same."""
    replayed: bool
    """True if the stored trace was replayed as well."""


def verify(
    folder: str | Path, *, sample: int | None = None, only: str = "", progress: bool | None = None
) -> list[Verified]:
    """Compute entries of a benchmark again and compare them: all, ``sample`` of them, or those whose key has ``only``.

    Every run of an entry is simulated again from its setting and its seed: arrivals, losses and last params must have
    the same bits. Where the folder has the trace of a run, it is replayed through the server as well, which recomputes
    every gradient.
    """
    kept = BenchFolder.open(Path(folder))
    chosen = suite_of(kept)
    entries = chosen_entries(list(kept.entries().values()), sample, only)
    done: list[Verified] = []
    with Watch() as watch, Progress("verifying", progress) as bar:
        for place, entry in enumerate(entries):
            for verified in verified_entry(chosen, kept, entry):
                watch.check()
                done.append(verified)
            bar.show((place + 1) / len(entries))
    return done


def suite_of(kept: BenchFolder) -> Suite:
    """Return the suite of a folder; raise ValueError if this version of nowait has another one of that name."""
    chosen = suite(str(kept.header.get("suite")))
    if kept.header.get("digest") != chosen.digest():
        raise ValueError(
            f"{kept.path} has results of version {kept.header.get('version')} of the suite {chosen.name}, and this "
            f"nowait has version {VERSION}: verify them with nowait {kept.header.get('nowait')}"
        )
    return chosen


def chosen_entries(entries: list[Entry], sample: int | None, only: str) -> list[Entry]:
    """Return the entries to verify: those with the text in their key, and of them a sample spread evenly."""
    found = [entry for entry in entries if only in entry.task.key]
    if not found:
        raise ValueError(f"there is no entry with {only!r} in its name" if only else "there are no entries to verify")
    if sample is None:
        return found
    count = min(len(found), checks.at_least(1, sample, "sample", "it is the number of entries to verify"))
    return [found[place * len(found) // count] for place in range(count)]


def verified_entry(chosen: Suite, kept: BenchFolder, entry: Entry) -> Iterator[Verified]:
    """Compute all runs of an entry again."""
    cell = Cell(chosen, entry.task, contender_of(chosen, entry.task))
    use_one_thread()
    for run in entry.runs:
        again = measured(cell.run(entry.trial, run.seed), cell.workload.problem.target)
        differing = [words for name, words in COMPARED.items() if getattr(run, name) != getattr(again, name)]
        path = kept.trace_path(entry.task, run.seed)
        stored = path.is_file()
        if stored:
            differing += _replayed(cell, entry, run, Trace.load(path))
        yield Verified(entry.task.key, run.seed, tuple(differing), stored)


def _replayed(cell: Cell, entry: Entry, run: Measured, trace: Trace) -> list[str]:
    """Replay a stored trace and return what differs from the entry."""
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
