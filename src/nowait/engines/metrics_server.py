"""Serves the numbers of a run over HTTP, for Prometheus. A thread answers, and the run never waits for it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import final

import numpy as np

from nowait.core import Event
from nowait.core.memory import to_host
from nowait.engines.exposition import CONTENT_TYPE, RunSnapshot, exposition, growing_seconds
from nowait.engines.host_names import HostNames, own_names
from nowait.engines.http_server import QuietHandler, QuietServer
from nowait.engines.results import bytes_sent
from nowait.engines.session import Parts, Session

logger = logging.getLogger("nowait")

PATH = "/metrics"
REFUSED = (
    "This server does not answer under that name: a web page could have made it point here. Use an address in digits, "
    'or the name of this machine; or start the run with that name, as in metrics_port="node7.example.com:9100".\n'
)


QUANTILES = (0.5, 0.9, 0.99, 1.0)
RECENT = 2_000
"""Delays are those of this many recent arrivals."""


@final
class Snapshots:
    """Describes a run with real workers that goes on."""

    def __init__(self, parts: Parts, session: Session[Event], engine: str) -> None:
        self._parts, self._session, self._engine = parts, session, engine
        params = to_host(parts.server.params)
        self._gradient_bytes, self._point_bytes = bytes_sent(parts.recorder.sent, parts.capabilities, params)
        self._phase_seconds: dict[tuple[int, str], float] = {}

    def take(
        self, now: float, deaths: int, errors: int, strays: int, *, traffic: tuple[int, int] | None
    ) -> RunSnapshot:
        """Return the numbers of the run so far."""
        parts, server, session = self._parts, self._parts.server, self._session
        tally, delays = parts.recorder.tally(), parts.recorder.recent("delay", RECENT)
        quantiles = np.quantile(delays, QUANTILES).tolist() if len(delays) else []
        by_worker = parts.recorder.by_worker(now, tally)
        self._phase_seconds = growing_seconds(by_worker, self._phase_seconds)
        return RunSnapshot(
            method=str(parts.config.get("method", {}).get("type", "")),
            engine=self._engine,
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
            deaths=deaths,
            errors=errors,
            strays=strays,
            bytes_up=tally.arrivals * self._gradient_bytes,
            bytes_down=(server.num_tickets - tally.repeats) * self._point_bytes,
            traffic=traffic,
            checkpoint_age=None if parts.keeper is None else max(0.0, now - parts.keeper.latest),
        )


@final
class MetricsServer:
    """Answers requests for ``/metrics`` with the latest snapshot of a run, until it is closed."""

    def __init__(self, server: _Server) -> None:
        self._server = server

    @classmethod
    def open(cls, address: tuple[str, int]) -> MetricsServer:
        """Listen at a host and port (0: any free one), and start to answer. Raises OSError if the port is in use."""
        try:
            made = cls(_Server(address))
        except OSError as error:
            raise OSError(f"metrics_port: cannot listen at {address[0]}, port {address[1]}: {error}") from error
        made._server.start()
        logger.info("metrics at http://%s:%d%s", *made.address, PATH)
        return made

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port."""
        return self._server.host_and_port

    def show(self, snapshot: RunSnapshot) -> None:
        """Answer requests with this snapshot from now on."""
        self._server.snapshot = snapshot

    def close(self) -> None:
        """Stop answering, and end all threads."""
        self._server.close()


@final
class _Server(QuietServer):
    snapshot: RunSnapshot | None = None

    def __init__(self, address: tuple[str, int]) -> None:
        self.names = HostNames(address[0], own_names(address[0]))
        super().__init__(address, _Handler, "nowait-metrics")


@final
class _Handler(QuietHandler):
    server: _Server

    def do_GET(self) -> None:
        if not self.server.names.include(self.headers.get("Host")):
            self.answer(421, "text/plain; charset=utf-8", REFUSED.encode())
            return
        if self.path.partition("?")[0] != PATH:
            self.send_error(404, f"only {PATH} is here")
            return
        self.answer(200, CONTENT_TYPE, exposition(self.server.snapshot).encode())
