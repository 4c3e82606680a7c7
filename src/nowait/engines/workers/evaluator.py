"""What the evaluator process does with an order: evaluates params, and keeps the best ones in a file."""

from __future__ import annotations

from typing import Any, final

from nowait.core.capabilities import Capabilities
from nowait.core.problem import evaluation
from nowait.core.types import Vector
from nowait.engines.workers.computation import SendDetails, details_of
from nowait.fleet.wire.records import EVALUATOR, ReportKind
from nowait.recording.best import BestFile


@final
class EvaluatorTask:
    """Evaluates params. The loss goes into the report; other metrics are sent as its details."""

    def __init__(self, problem: Any, best: BestFile | None, send_details: SendDetails) -> None:
        capabilities = Capabilities.of(problem)
        self._evaluation, self._write_model = evaluation(problem, capabilities), capabilities.write_model
        self._best, self._send_details = best, send_details

    def compute(self, number: int, step: int, point: Vector) -> tuple[float, int]:
        """Evaluate the params of a step; returns the loss and the kind of the report."""
        try:
            found = self._evaluation(point)
            if self._best is not None:
                self._best.offer(step, found, point, self._write_model)
            if found.metrics:
                self._send_details(EVALUATOR, number, (found.metrics,))
        except Exception as error:
            self._send_details(EVALUATOR, number, details_of(error))
            return 0.0, int(ReportKind.ERROR)
        return found.loss, int(ReportKind.LOSS)
