"""The whatif command: what waiting costs a recorded job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

import nowait as nw
from nowait.cli.cluster import make_folder
from nowait.cli.exits import kept_study, on_interrupt, refused_as_options
from nowait.cli.records import record_of
from nowait.cli.results import open_console, print_json
from nowait.studies.whatif_result import DATA, FIGURE


@final
@dataclass(frozen=True)
class WhatIfSettings:
    """The options of the command."""

    files: list[str]
    worker_column: str | None
    seconds_column: str | None
    start_column: str | None
    step_column: str | None
    unit: str | None
    event: str | None
    world_size: int | None
    seed: int
    folder: Path
    as_json: bool

    @property
    def reading(self) -> dict[str, str | int | None]:
        """How to read the files: the keyword arguments of ``Recorded.read``."""
        return {
            "worker": self.worker_column,
            "seconds": self.seconds_column,
            "start": self.start_column,
            "step": self.step_column,
            "unit": self.unit,
            "event": self.event,
            "world_size": self.world_size,
        }


def run_whatif(asked: WhatIfSettings) -> nw.WhatIf:
    """Read the record, print what waiting costs, and write the data and the figure into the folder."""
    with refused_as_options():
        found = nw.whatif(record_of(asked.files, asked.reading), seed=asked.seed)
        make_folder(asked.folder)
    with on_interrupt(lambda: kept_study(asked.folder)):
        found.save(asked.folder)
    if asked.as_json:
        print_json(found.as_dictionary())
    else:
        print(found)
    words = f"Figure: {asked.folder / FIGURE}; the numbers are in {DATA} beside it."
    open_console(stderr=asked.as_json).print(words, highlight=False)
    return found
