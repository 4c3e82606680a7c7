"""Training on a Ray cluster: the engine of real workers, with hosts for places."""

from __future__ import annotations

from nowait.engines.cluster.hosts import Hosts
from nowait.engines.cluster.options import RayCluster
from nowait.engines.processes import ProcessOptions, SharedSlots
from nowait.engines.processes.running import open_office, run_with
from nowait.engines.session import Parts
from nowait.recording import Run


def train(
    cluster: RayCluster,
    minimum: int,
    parts: Parts,
    points: SharedSlots,
    options: ProcessOptions,
    *,
    seed: int,
    progress: bool | None,
) -> Run:
    """Run to the end of the budget, from when there is room for ``minimum`` workers. Ray is connected."""
    with open_office(parts, points, options, seed) as office:
        hosts = Hosts(cluster, office, minimum, options.max_failures, options.log)
        return run_with(hosts, parts, options, progress)
