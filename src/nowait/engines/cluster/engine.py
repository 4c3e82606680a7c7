"""Training on a Ray cluster. Importing this module imports Ray."""

from __future__ import annotations

from dataclasses import replace

from nowait.core.memory import Slots
from nowait.engines.cluster.transport import RayTransport
from nowait.engines.processes.resources import shared_resources
from nowait.engines.session import Parts
from nowait.engines.workers.running import run_with_workers
from nowait.fleet.host.launch import job_of
from nowait.fleet.options import RayCluster, WorkerOptions
from nowait.recording import Run


def train(
    cluster: RayCluster,
    minimum: int,
    parts: Parts,
    points: Slots,
    options: WorkerOptions,
    *,
    seed: int,
    progress: bool | None,
) -> Run:
    """Run to the end of the budget, once there is room for ``minimum`` workers. Ray is connected."""
    with shared_resources(points, job_of(parts, points, options, seed)) as resources:
        transport = RayTransport(
            cluster,
            resources,
            version_of=parts.server.version_of,
            minimum=minimum,
            max_failures=options.max_failures,
            log=options.log,
        )
        if cluster.idle_seconds is not None:
            options = replace(options, idle_seconds=cluster.idle_seconds)
        return run_with_workers(transport, parts, options, minimum=minimum, progress=progress)
