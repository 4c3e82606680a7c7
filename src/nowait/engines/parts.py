"""What a run is made of, as the engines receive it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, final

from nowait.core import Server
from nowait.core.capabilities import Capabilities
from nowait.engines.budget import Budget, EvaluationPlan
from nowait.engines.fingerprint import Identification
from nowait.engines.keeper import Keeper
from nowait.recording import Callback, TraceRecorder
from nowait.recording.best import BestFile
from nowait.recording.checkpoints import Checkpoint

if TYPE_CHECKING:
    from nowait.engines.metrics_server import MetricsServer


@final
@dataclass
class Parts:
    """The checked parts of one run."""

    problem: Any
    """What workers compute."""
    server: Server
    recorder: TraceRecorder
    budget: Budget
    evaluations: EvaluationPlan
    callbacks: tuple[Callback, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    replaying: bool = False
    """True for a replay, which ends where its trace does, whatever the losses are."""
    quiet: bool = False
    """True if advice is not logged, because the run is one of many."""
    keeper: Keeper | None = None
    """Writes the run to its folder while it is running."""
    best: BestFile | None = None
    """Keeps the params of the best evaluation."""
    checkpoint: Checkpoint | None = None
    """The checkpoint from which a resumed run continues."""
    identification: Identification | None = None
    """Records the problem's fingerprint, or compares it with that of the run; for engines with worker processes."""
    given_problem: Any = None
    """The problem that the user gave, if it was wrapped because of the wires."""
    wires: tuple[str | None, str | None] = (None, None)
    """How the engine sends gradients and points; None: as they are."""
    metrics: MetricsServer | None = None
    """Shows the numbers of the run to Prometheus."""
    called: float = field(default_factory=perf_counter)
    """When the user's call began, by ``perf_counter``: before loading, compiling and starting processes."""

    @cached_property
    def capabilities(self) -> Capabilities:
        """The optional members of the problem, resolved once."""
        return Capabilities.of(self.problem)
