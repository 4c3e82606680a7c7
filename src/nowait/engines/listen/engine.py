"""Training with workers that connect to the server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nowait.core.memory import Slots
from nowait.core.pickling import dumps
from nowait.engines.listen.transport import ListenTransport
from nowait.engines.processes.resources import shared_resources
from nowait.engines.session import Parts
from nowait.engines.workers.running import run_with_workers
from nowait.fleet.host.launch import job_of
from nowait.fleet.options import Listen, WorkerOptions
from nowait.fleet.wire.secure import read_drain_key, read_server_key
from nowait.recording import Run


def train(
    listen: Listen,
    minimum: int,
    parts: Parts,
    points: Slots,
    options: WorkerOptions,
    *,
    seed: int,
    progress: bool | None,
) -> Run:
    """Run to the end of the budget, once there is room for ``minimum`` workers."""
    job = job_of(parts, points, options, seed)
    with shared_resources(points, job) as resources:
        transport = ListenTransport(
            listen,
            read_server_key(Path(listen.key_file)),
            _drain_key(Path(listen.key_file)),
            resources,
            version_of=parts.server.version_of,
            settings=memoryview(dumps(replace(job, problem=None), None)),
            deterministic=parts.capabilities.replayable,
            log=options.log,
        )
        return run_with_workers(transport, parts, options, minimum=minimum, progress=progress)


def _drain_key(path: Path) -> bytes | None:
    """Return the drain key; None if it could not be made, which was said when the run was prepared."""
    try:
        return read_drain_key(path)
    except OSError:
        return None
