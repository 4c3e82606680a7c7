"""How the workers of a run behave."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from nowait.core.audit import Audit
from nowait.speeds import Speeds


@final
@dataclass(frozen=True)
class WorkerOptions:
    """How the workers of a run behave, and what is done when they fail."""

    slowdown: dict[int, float] = field(default_factory=dict)
    speeds: Speeds | None = None
    replace_hung: bool = False
    max_failures: int = 5
    log: Path | None = None
    most_workers: int = 0
    """If this is more than the run starts with, the others join when there is room."""
    idle_seconds: float = math.inf
    """A place that has had no workers for this long is dismissed."""
    audit: Audit | None = None
    """Which gradients are computed twice; None: none."""
    together: bool = False
    """True if the clock starts, and the first tickets are sent, when every worker is ready."""
