"""The losses measured during a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import numpy as np

from nowait.core.types import Floats, Integers


@final
@dataclass(frozen=True, eq=False)
class History:
    """One entry per evaluation: after how many steps and gradients, at which time, and the loss of the params then.

    The loss is that of the params, x_k, whatever the output rule: for its answer ask ``problem.loss(run.params)``.
    """

    step: Integers
    gradients: Integers
    time: Floats
    loss: Floats

    def __len__(self) -> int:
        return len(self.step)

    def rows(self) -> list[dict[str, float]]:
        """The entries as dictionaries, for a table or a file."""
        columns = (self.step.tolist(), self.gradients.tolist(), self.time.tolist(), self.loss.tolist())
        names = ("step", "gradients", "time", "loss")
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


@final
@dataclass
class HistoryRecorder:
    """Collects evaluations."""

    entries: list[tuple[int, int, float, float]] = field(default_factory=list)

    def add(self, step: int, gradients: int, time: float, loss: float) -> None:
        """One more evaluation."""
        self.entries.append((step, gradients, time, loss))

    def history(self) -> History:
        """The history so far."""
        columns = list(zip(*self.entries, strict=True)) or [(), (), (), ()]
        step, gradients, time, loss = columns
        return History(
            np.array(step, dtype=np.int64),
            np.array(gradients, dtype=np.int64),
            np.array(time, dtype=np.float64),
            np.array(loss, dtype=np.float64),
        )
