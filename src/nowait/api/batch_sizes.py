"""Measures how fast workers are before a run whose problem has ``batch_size="auto"``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from statistics import median
from typing import Any, final

from nowait.core import Arrival, Method, Server
from nowait.fleet.options import RayCluster
from nowait.recording import Callback, Interrupted, Run

logger = logging.getLogger("nowait")

GRADIENTS_PER_WORKER = 4
"""How many gradients are measured; the first one does not count, as workers load and allocate memory in it."""
MOST_SECONDS = 60.0
"""After this time, workers with fewer gradients are judged by those that they have."""


@final
class Measurement(Method, Callback):
    """Lets workers compute gradients at the same point, and ends the run when each has computed enough."""

    def __init__(self) -> None:
        self.seconds: dict[int, list[float]] = {}

    def start(self, server: Server) -> None:
        """Give every worker a ticket."""
        self.seconds = {worker: [] for worker in server.workers}
        super().start(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Note how long the gradient took. The step has length 0."""
        self.seconds.setdefault(arrival.worker, []).append(arrival.compute_seconds)
        server.apply(arrival, 0.0)
        server.assign(arrival.worker)

    def on_step(self, control: Any) -> None:
        """End the run when all workers have been measured."""
        if all(len(taken) >= GRADIENTS_PER_WORKER for taken in self.seconds.values()):
            control.stop()

    def typical(self) -> dict[int, float]:
        """Return how long a gradient of each worker takes; without workers that delivered none."""
        return {worker: median(taken[1:] or taken) for worker, taken in self.seconds.items() if taken}


def check_measurable(engine: Any) -> None:
    """Raise if an engine cannot make a run before another one, because its workers come by themselves."""
    if engine is not None and not isinstance(engine, RayCluster):
        raise ValueError(
            f'batch_size="auto" measures workers in a short run before the run, which {type(engine).__name__} cannot '
            f"make: give a size for every worker"
        )


def choose_batch_sizes(sizes: Any, run: Callable[[Measurement], Run]) -> None:
    """Choose the sizes of a problem by a short run that ``run(measurement)`` makes."""
    measurement = Measurement()
    measured = run(measurement)
    if measured.stats.interrupted:
        signal = Interrupted.of(measured).signal
        raise Interrupted(signal, f"{signal} came while the workers were measured")
    chosen = sizes.choose(measurement.typical())
    logger.info('batch_size="auto" chose %s', chosen)
