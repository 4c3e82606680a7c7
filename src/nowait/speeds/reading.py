"""Reads recorded jobs from files of any known kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nowait.core import checks
from nowait.recording import Trace, load
from nowait.recording.run import METRICS, STATS, TRACE
from nowait.speeds.chrome import times_of_traces
from nowait.speeds.rows import times_of_table
from nowait.speeds.tables import is_table, read_table
from nowait.speeds.worker_times import WorkerTimes

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0}
TRACE_ENDINGS = (".json", ".json.gz", ".json.xz")
KNOWN = "CSV (also .gz and .xz), Parquet, traces of torch.profiler (.json, also .gz), and folders of nowait's runs"

Paths = str | Path | Sequence[str | Path]


def read_record(
    paths: Paths, names: dict[str, str | None], unit: str | None, event: str | None, world_size: int | None = None
) -> WorkerTimes | Trace:
    """Return the times in a file, or in several files of one job. ``names`` are the columns of a table."""
    if world_size is None:
        return _read(paths, names, unit, event)
    size = checks.at_least(1, world_size, "world_size", "it is the number of workers of the job")
    times = _read(paths, names, unit, event)
    if isinstance(times, Trace):
        raise ValueError(f"world_size={size} cannot be used: {paths} is the folder of a run, which has all workers")
    return replace(times, world_size=size)


def _read(paths: Paths, names: dict[str, str | None], unit: str | None, event: str | None) -> WorkerTimes | Trace:
    files = _existing([paths] if isinstance(paths, str | Path) else checks.listed(paths, "path", "paths of files"))
    unit_seconds = None if unit is None else UNITS[checks.one_of(unit, tuple(UNITS), "unit")]
    given = [f"{name}=" for name, value in {**names, "unit": unit}.items() if value is not None]
    if len(files) == 1 and is_table(files[0]) and files[0].is_file():
        _check_unused(["event="] if event is not None else [], files[0], "is a table")
        return times_of_table(read_table(files[0]), names, unit_seconds)
    if len(files) > 1 and any(map(is_table, files)):
        raise ValueError(f"a table has the times of all workers: pass one file, got {len(files)}")
    _check_unused(given, files[0], "is no table")
    if len(files) == 1 and is_run_folder(files[0]):
        _check_unused(["event="] if event is not None else [], files[0], "is the folder of a run")
        return load(files[0]).trace
    return times_of_traces(_traces(files), event, files[0].name if len(files) == 1 else f"{len(files)} traces")


def is_run_folder(path: Path) -> bool:
    """Return True if a run was written into this folder, also if some of its files are missing."""
    return any((path / name).is_file() for name in (METRICS, TRACE, STATS))


def _existing(paths: Sequence[str | Path]) -> list[Path]:
    files = [Path(checks.path(path, "path")) for path in paths]
    for file in files:
        if not file.exists():
            raise FileNotFoundError(f"{file} does not exist")
    return files


def _check_unused(given: list[str], file: Path, reason: str) -> None:
    if given:
        raise ValueError(f"{' and '.join(given)} cannot be used: {file} {reason}")


def _traces(files: list[Path]) -> list[Path]:
    """Return the files of traces: those given, or those in a folder."""
    found: list[Path] = []
    for file in files:
        inside = sorted(file.iterdir()) if file.is_dir() else [file]
        traces = [one for one in inside if one.name.lower().endswith(TRACE_ENDINGS)]
        if not traces:
            what = "has no traces (.json)" if file.is_dir() else "is of no known kind"
            raise ValueError(f"{file} {what}: known are {KNOWN}")
        found += traces
    return found
