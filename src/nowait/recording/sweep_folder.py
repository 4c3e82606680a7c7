"""The folder of a sweep. Every run is written when it is complete, so that an interrupted sweep can be continued."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np

from nowait.core import checks
from nowait.core.types import Floats, Integers
from nowait.recording.checked_lines import CheckedLines
from nowait.recording.files import read_strictly_sealed, sealed, write_json
from nowait.recording.old_names import ENGINE_WAS, with_current_names
from nowait.recording.sweep import COLUMNS, Sweep, SweepRun

logger = logging.getLogger("nowait")

HEADER, RUNS = "sweep.json", "runs.jsonl"
Runs = dict[tuple[float, int], SweepRun]


@final
class SweepFolder:
    """``sweep.json`` describes the sweep; ``runs.jsonl`` has one line per run, each with a checksum."""

    def __init__(self, path: Path, stepsizes: Floats, seeds: Integers, config: dict[str, Any]) -> None:
        self.path = path
        self._lines = CheckedLines(path / RUNS)
        self.stepsizes = stepsizes
        self.seeds = seeds
        self.config = config

    @classmethod
    def create(cls, folder: str | Path, stepsizes: Floats, seeds: Integers, config: dict[str, Any]) -> SweepFolder:
        """Create a new sweep; raise ``FileExistsError`` if the folder already contains one."""
        path = Path(checks.path(folder))
        if (path / HEADER).exists():
            raise FileExistsError(f"{path} already contains a sweep, and nothing is overwritten: choose another folder")
        path.mkdir(parents=True, exist_ok=True)
        made = cls(path, stepsizes, seeds, config)
        made._write_header()
        return made

    @classmethod
    def open(cls, folder: str | Path) -> SweepFolder:
        """Open the sweep in a folder."""
        path = Path(checks.path(folder))
        if not (path / HEADER).is_file():
            raise FileNotFoundError(f"{path} is not the folder of a sweep: it has no {HEADER}")
        header = read_strictly_sealed(path / HEADER)
        stepsizes, seeds = np.array(header["stepsizes"], np.float64), np.array(header["seeds"], np.int64)
        return cls(path, stepsizes, seeds, with_current_names(header["config"]))

    @classmethod
    def open_or_create(
        cls, folder: str | Path, stepsizes: Floats, seeds: Integers, config: dict[str, Any]
    ) -> SweepFolder:
        """Open the sweep in the folder with these stepsizes and seeds, or create one; all else must be unchanged."""
        if not (Path(checks.path(folder)) / HEADER).exists():
            return cls.create(folder, stepsizes, seeds, config)
        found = cls.open(folder)
        asked = json.loads(json.dumps(config))
        differing = [name for name in {**found.config, **asked} if found.config.get(name) != asked.get(name)]
        if differing:
            raise ValueError(
                f"{folder} contains a sweep with another {' and '.join(sorted(differing))}: choose another folder"
            )
        found.stepsizes, found.seeds = stepsizes, seeds
        found._write_header()
        return found

    def add(self, runs: Mapping[tuple[float, int], SweepRun], engine: str) -> None:
        """Write complete runs, by stepsize and seed."""
        self._lines.append(_row(size, seed, run, engine) for (size, seed), run in runs.items())

    def kept(self) -> tuple[Runs, set[str]]:
        """Return the stored runs, and the engines that computed them; damaged lines are skipped with a warning."""
        runs, engines, damaged = self._read()
        for number in damaged:
            logger.warning("line %d of %s is damaged: this run will be repeated", number, self.path / RUNS)
        return runs, engines

    def finished(self) -> Sweep:
        """Return the finished sweep; raise ValueError if runs are missing."""
        runs, engines, damaged = self._read()
        wanted = [(size, seed) for size in self.stepsizes.tolist() for seed in self.seeds.tolist()]
        missing = sum(key not in runs for key in wanted)
        if missing:
            why = f"line {damaged[0]} of {RUNS} is damaged" if damaged else "it was not finished"
            raise ValueError(
                f"{missing} of the {len(wanted)} runs of the sweep in {self.path} are missing ({why}): call nw.sweep "
                f"with the same arguments and folder={str(self.path)!r} to compute them"
            )
        return Sweep.of(self.stepsizes, self.seeds, runs, engine_of(engines), self.config)

    def _read(self) -> tuple[Runs, set[str], list[int]]:
        """Return the intact runs, the engines that computed them, and the numbers of the damaged lines."""
        runs: Runs = {}
        engines: set[str] = set()
        damaged: list[int] = []
        for number, row in self._lines.rows():
            if row is None:
                damaged.append(number)
            else:
                runs[row["stepsize"], row["seed"]] = _run_of(row)
                engines.add(row["engine"] if "engine" in row else row[ENGINE_WAS])
        return runs, engines, damaged

    def _write_header(self) -> None:
        header = {"stepsizes": self.stepsizes.tolist(), "seeds": self.seeds.tolist(), "config": self.config}
        write_json(self.path / HEADER, sealed(header))


def engine_of(engines: set[str]) -> str:
    """Return "gpu" if all runs were made on a GPU, "compiled" if all were compiled there or here, else "reference"."""
    if engines == {"gpu"}:
        return "gpu"
    return "compiled" if engines and engines <= {"compiled", "gpu"} else "reference"


def _row(size: float, seed: int, run: SweepRun, engine: str) -> dict[str, Any]:
    row: dict[str, Any] = {"stepsize": size, "seed": seed, "engine": engine, "answer": _number(run.answer)}
    return row | {name: [_number(value) for value in getattr(run, name).tolist()] for name in COLUMNS}


def _number(value: float | None) -> float | str | None:
    """Return the number, or "inf" if it is not finite, because JSON has no infinity."""
    return value if value is None or math.isfinite(value) else "inf"


def _run_of(row: dict[str, Any]) -> SweepRun:
    answer = None if row["answer"] is None else float(row["answer"])
    columns = {name: np.array(row[name], dtype=np.float64) for name in COLUMNS}
    return SweepRun(**columns, answer=answer)
