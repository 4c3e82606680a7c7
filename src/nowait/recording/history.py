"""The losses evaluated during a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import numpy as np

from nowait.core.types import Floats, Integers


@final
@dataclass(frozen=True, eq=False)
class History:
    """One entry per evaluation.

    Losses are those of iterates, whatever the output rule: ``loss[-1]`` is usually that of ``run.last``. The loss of
    the output rule's answer is ``problem.loss(run.params)``.
    """

    step: Integers
    """The step k of the iterate x_k that was evaluated; 0 for the initial params."""
    gradients: Integers
    """Valid gradients that had arrived when x_k was made."""
    time: Floats
    """When x_k was made, in seconds since the start (virtual in a simulation)."""
    loss: Floats
    """F(x_k), the loss of the iterate x_k with k = ``step``."""

    def __len__(self) -> int:
        return len(self.step)

    def rows(self) -> list[dict[str, float]]:
        """Return the entries as dictionaries, for a table or a file."""
        columns = (self.step.tolist(), self.gradients.tolist(), self.time.tolist(), self.loss.tolist())
        names = ("step", "gradients", "time", "loss")
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


@final
@dataclass
class HistoryRecorder:
    """Collects evaluations."""

    entries: list[tuple[int, int, float, float]] = field(default_factory=list)

    def add(self, step: int, gradients: int, time: float, loss: float) -> None:
        """Add an evaluation."""
        self.entries.append((step, gradients, time, loss))

    def history(self) -> History:
        """Return the history so far."""
        columns = list(zip(*self.entries, strict=True)) or [(), (), (), ()]
        step, gradients, time, loss = columns
        return History(
            np.array(step, dtype=np.int64),
            np.array(gradients, dtype=np.int64),
            np.array(time, dtype=np.float64),
            np.array(loss, dtype=np.float64),
        )
