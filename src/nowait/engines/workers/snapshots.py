"""Makes the snapshots of a run with real workers that ``metrics_port`` shows."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import numpy as np

from nowait.core import Event
from nowait.core.memory import to_host
from nowait.engines.exposition import RunSnapshot, growing_seconds
from nowait.engines.results import bytes_sent
from nowait.engines.session import Parts, Session
from nowait.engines.workers.failures import Failures
from nowait.engines.workers.transport import Transport

QUANTILES = (0.5, 0.9, 0.99, 1.0)
RECENT = 2_000
"""Delays are those of this many recent arrivals."""


@final
class Snapshots:
    """Describes a run that goes on."""

    def __init__(self, parts: Parts, session: Session[Event], failures: Failures, transport: Transport) -> None:
        self._parts, self._session, self._failures, self._transport = parts, session, failures, transport
        params = to_host(parts.server.params)
        self._gradient_bytes, self._point_bytes = bytes_sent(parts.recorder.sent, parts.capabilities, params)
        self._phase_seconds: dict[tuple[int, str], float] = {}

    def take(self, now: float) -> RunSnapshot:
        """Return the numbers of the run so far."""
        parts, server, session = self._parts, self._parts.server, self._session
        tally, delays = parts.recorder.tally(), parts.recorder.recent("delay", RECENT)
        quantiles = np.quantile(delays, QUANTILES).tolist() if len(delays) else []
        by_worker = parts.recorder.by_worker(now, tally)
        self._phase_seconds = growing_seconds(by_worker, self._phase_seconds)
        return RunSnapshot(
            method=str(parts.config.get("method", {}).get("type", "")),
            engine=self._transport.engine,
            seconds=now,
            steps=server.steps,
            counts=replace(server.counts),
            num_workers=server.num_workers,
            by_worker=by_worker,
            phase_seconds=self._phase_seconds,
            loss=session.loss,
            metrics=session.shown_metrics,
            delays=dict(zip(QUANTILES, quantiles, strict=False)),
            note=parts.recorder.last_note,
            deaths=self._failures.deaths,
            errors=self._failures.errors,
            strays=self._failures.strays,
            bytes_up=tally.arrivals * self._gradient_bytes,
            bytes_down=(server.num_tickets - tally.repeats) * self._point_bytes,
            traffic=self._transport.traffic,
            checkpoint_age=None if parts.keeper is None else max(0.0, now - parts.keeper.latest),
        )
