"""Traces in Chrome's format, as ``torch.profiler`` writes them: the time of every step of every rank."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from nowait.core.types import Floats
from nowait.speeds.rows import numbered
from nowait.speeds.tables import DAMAGED, open_text
from nowait.speeds.worker_times import WorkerTimes, offsets_of

PROFILER_STEP = "ProfilerStep"
MICROSECOND = 1e-6
"""Chrome's unit of time."""
LARGEST_TIME = 1e300
"""Events with larger times are left out, as those without a time."""
COMMUNICATION = re.compile(r"nccl|gloo|mpi:|ucc:|c10d::", re.IGNORECASE)
"""How the names of collective operations begin."""
NCCL, DISPATCH = re.compile(r"nccl", re.IGNORECASE), re.compile(r"c10d::", re.IGNORECASE)
"""On the host, operations of NCCL only launch kernels: nobody waits in them, nor in what dispatches them."""
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
ON_CPU = ("cpu_op",)
GPU_COPY_OF_A_STEP = "gpu_user_annotation"
SINCE_1970 = 1e14
"""Times in microseconds above this are dates, which can be compared between hosts; others may begin at any moment."""
MOST_SECONDS_APART = 2.0
"""In one run, no rank ends its steps longer than this before another begins: clocks of hosts differ by less."""


@final
@dataclass(frozen=True)
class Step:
    """One step of a rank, in microseconds."""

    number: int | None
    process: str
    start: float
    duration: float


@final
@dataclass(frozen=True)
class RankTrace:
    """What one process recorded in one file."""

    path: Path
    rank: str
    steps: list[Step]
    """Without the time in which the rank only waited for others."""
    communicates: bool
    """True if there are collective operations, so that waiting could be subtracted."""
    world_size: int | None
    """How many ranks the job had; None if the file does not say."""
    base: float
    """The date of time 0, in microseconds; 0 if the file does not say."""


def times_of_traces(paths: list[Path], event: str | None, source: str) -> WorkerTimes:
    """Return the times of the steps in the traces of all ranks; several files of one rank are one worker.

    The time of a step is its duration without the time in which the rank only waited for others: a collective
    operation was running and no computation. ``event`` is the name of the events that are steps; by default those of
    ``torch.profiler``.
    """
    traces = [trace for path in paths for trace in _traces_of(path, event)]
    _check_one_run(traces, source)
    return _by_worker(traces, source)


def _traces_of(path: Path, event: str | None) -> Iterator[RankTrace]:
    """Yield what each process of a file recorded."""
    wanted = PROFILER_STEP if event is None else event
    content, events = _events(path)
    found = list(_steps(events, wanted))
    if not found:
        raise ValueError(f"{path} has no events {wanted!r}: {_advice(events, event)}")
    processes = sorted({step.process for step in found})
    shared = len(processes) > 1
    if shared:
        _check_no_kernels(events, path)
    for process in processes:
        mine = [one for one in events if str(one.get("pid", "")) == process] if shared else events
        communication = _communication(mine)
        own = _own_times(mine, communication, [step for step in found if step.process == process], path)
        rank = _rank(path, content, _process_name(process) if shared else path.name)
        yield RankTrace(path, rank, own, bool(communication), _world_size(content), _base(content))


def _events(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the whole content of a trace, and its complete events."""
    try:
        with open_text(path) as file:
            content = json.load(file)
    except (*DAMAGED, ValueError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from error
    except RecursionError:
        raise ValueError(f"{path} is no trace in Chrome's format: its lists are nested too deeply") from None
    if isinstance(content, list):
        content = {"traceEvents": content}
    events = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(events, list):
        is_spot = isinstance(content, dict) and "gap_seconds" in str(content.get("metadata"))
        hint = " (counts of machines are for Faults.from_availability)" if is_spot else ""
        raise ValueError(f"{path} is no trace in Chrome's format: it has no list of traceEvents{hint}")
    return content, list(_complete(event for event in events if isinstance(event, dict)))


def _complete(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the events that have a duration, made of a pair of events (begin, end) where they are recorded so."""
    begun: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for event in events:
        kind, thread = event.get("ph"), (event.get("pid"), event.get("tid"))
        if not _is_time(event.get("ts")):
            continue
        if kind == "X" and _is_time(event.get("dur")):
            yield event
        elif kind == "B":
            begun.setdefault(thread, []).append(event)
        elif kind == "E" and begun.get(thread):
            first = begun[thread].pop()
            yield {**first, "dur": event["ts"] - first["ts"]}


def _is_time(value: Any) -> bool:
    """Whether a value is a number that a float can have; JSON allows larger ones, and Python reads NaN."""
    return isinstance(value, int | float) and -LARGEST_TIME < value < LARGEST_TIME


def _steps(events: Iterable[dict[str, Any]], wanted: str) -> Iterator[Step]:
    """Yield the steps of a trace: events whose name is ``wanted``, maybe followed by # and the number of the step."""
    pattern = re.compile(re.escape(wanted) + r"(?:#(\d+))?")
    for event in events:
        match = pattern.fullmatch(str(event.get("name", "")))
        if match and event.get("cat") != GPU_COPY_OF_A_STEP:
            number = None if match[1] is None else int(match[1])
            yield Step(number, str(event.get("pid", "")), float(event["ts"]), float(event["dur"]))


def _advice(events: list[dict[str, Any]], event: str | None) -> str:
    if event is not None:
        names = list(dict.fromkeys(str(one.get("name", "")).partition("#")[0] for one in events))
        return f"its events are {', '.join(map(repr, names[:8]))}{' and others' if len(names) > 8 else ''}"
    return (
        "give torch.profiler.profile a schedule=, without which it does not mark steps, and call profiler.step() after "
        "every step of the training loop, or name the events that are steps with event="
    )


def _check_no_kernels(events: list[dict[str, Any]], path: Path) -> None:
    """Raise if there are kernels in a trace of several processes: the pid of a kernel is the number of its GPU."""
    if any(event.get("cat") in ON_GPU for event in events):
        raise ValueError(
            f"{path} has steps of several processes, and kernels of GPUs that do not say which process they belong "
            "to: pass one file per rank, as torch.profiler exports them"
        )


def _communication(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the collective operations in which a rank waits: kernels of the GPU, and operations of the CPU.

    What the host does for NCCL is left out: it launches kernels and returns.
    """
    collective = [event for event in events if _communicates(event)]
    launches = [event for event in collective if event.get("cat") not in ON_GPU]
    uses_nccl = any(NCCL.match(str(event["name"])) for event in collective)
    waiting_on_cpu = [
        event
        for event in launches
        if not NCCL.match(str(event["name"])) and not (uses_nccl and DISPATCH.match(str(event["name"])))
    ]
    return [event for event in collective if event.get("cat") in ON_GPU] + waiting_on_cpu


def _own_times(
    events: list[dict[str, Any]], communication: list[dict[str, Any]], steps: list[Step], path: Path
) -> list[Step]:
    """Return the steps without the time in which their rank only waited for others."""
    by_category = [event for event in events if event.get("cat") in ON_GPU] or [
        event for event in events if event.get("cat") in ON_CPU
    ]
    computing = _intervals(event for event in by_category if not _communicates(event))
    busy = np.concatenate([computing, _intervals(communication)])
    own = []
    for step in steps:
        end = step.start + step.duration
        waiting = _length(busy, step.start, end) - _length(computing, step.start, end)
        if not step.duration - waiting > 0:
            raise ValueError(f"{path}: a step at ts {step.start:.0f} of process {step.process} computes nothing")
        own.append(Step(step.number, step.process, step.start, step.duration - waiting))
    return own


def _communicates(event: dict[str, Any]) -> bool:
    return COMMUNICATION.match(str(event.get("name", ""))) is not None


def _intervals(events: Iterable[dict[str, Any]]) -> Floats:
    """Return a row (start, end) for every event."""
    return np.array([(event["ts"], event["ts"] + event["dur"]) for event in events], dtype=np.float64).reshape(-1, 2)


def _length(intervals: Floats, start: float, end: float) -> float:
    """Return how much of the time from start to end is covered by the intervals."""
    inside = intervals[(intervals[:, 1] > start) & (intervals[:, 0] < end)].clip(start, end)
    if not len(inside):
        return 0.0
    inside = inside[np.argsort(inside[:, 0], kind="stable")]
    covered = np.maximum.accumulate(inside[:, 1])
    before = np.concatenate([[start], covered[:-1]])
    return float(np.maximum(0.0, inside[:, 1] - np.maximum(inside[:, 0], before)).sum())


def _rank(path: Path, content: dict[str, Any], otherwise: str) -> str:
    """Return the rank of a trace: as it says itself, or as the name of its file says, or else ``otherwise``."""
    told = content.get("distributedInfo")
    if isinstance(told, dict) and "rank" in told:
        return str(told["rank"])
    named = re.search(r"rank[-_]?(\d+)", path.name, re.IGNORECASE)
    return named[1] if named else otherwise


def _process_name(process: str) -> str:
    """Return what a worker is called of which only its process is known: the number of a process is no rank."""
    return f"process {process}" if process.isdecimal() else process


def _world_size(content: dict[str, Any]) -> int | None:
    told = content.get("distributedInfo")
    size = told.get("world_size") if isinstance(told, dict) else None
    return size if isinstance(size, int) and size > 0 else None


def _base(content: dict[str, Any]) -> float:
    nanoseconds = content.get("baseTimeNanoseconds", 0)
    return nanoseconds / 1e3 if isinstance(nanoseconds, int | float) else 0.0


def _check_one_run(traces: list[RankTrace], source: str) -> None:
    """Raise if ranks cannot be of one run: they tell of different numbers of ranks, or do not run at the same time."""
    sizes = {trace.world_size: trace for trace in traces if trace.world_size is not None}
    if len(sizes) > 1:
        told = " and ".join(f"{size} in {trace.path.name}" for size, trace in sorted(sizes.items()))
        raise ValueError(f"{source}: world_size is {told}: pass the traces of one run only")
    spans: dict[str, tuple[float, float]] = {}
    for trace in traces:
        begin = trace.base + min(step.start for step in trace.steps)
        end = trace.base + max(step.start + step.duration for step in trace.steps)
        known = spans.get(trace.rank, (begin, end))
        spans[trace.rank] = (min(begin, known[0]), max(end, known[1]))
    first = min(spans, key=lambda rank: spans[rank][1])
    last = max(spans, key=lambda rank: spans[rank][0])
    apart = (spans[last][0] - spans[first][1]) * MICROSECOND
    if spans[first][0] > SINCE_1970 and apart > MOST_SECONDS_APART:
        raise ValueError(
            f"{source}: rank {first} ends {apart:.3g} s before rank {last} begins, so they are not of one run, or the "
            "clocks of their hosts differ: pass the traces of one run only, recorded at the same time"
        )


def _by_worker(traces: list[RankTrace], source: str) -> WorkerTimes:
    steps = [step for trace in traces for step in trace.steps]
    ranks = [trace.rank for trace in traces for _ in trace.steps]
    names, workers = numbered(ranks)
    starts = np.array([step.start for step in steps])
    order = np.lexsort((starts, workers))
    numbers = [step.number for step in steps]
    known = all(number is not None for number in numbers)
    if known:
        _check_no_step_twice(ranks, numbers, source)
    return WorkerTimes(
        seconds=np.array([step.duration for step in steps])[order] * MICROSECOND,
        offsets=offsets_of(np.bincount(workers)),
        source=source,
        steps=np.array(numbers, dtype=np.int64)[order] if known else None,
        names=() if names == [str(place) for place in range(len(names))] else tuple(names),
        computing_only=all(trace.communicates for trace in traces),
        world_size=next((trace.world_size for trace in traces if trace.world_size is not None), None),
    )


def _check_no_step_twice(ranks: list[str], numbers: list[int | None], source: str) -> None:
    seen: set[tuple[str, int | None]] = set()
    for rank, number in zip(ranks, numbers, strict=True):
        if (rank, number) in seen:
            raise ValueError(f"{source}: rank {rank} has step {number} twice: pass the traces of one run only")
        seen.add((rank, number))
