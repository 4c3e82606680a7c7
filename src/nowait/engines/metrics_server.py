"""Serves the numbers of a run over HTTP, for Prometheus. A thread answers, and the run never waits for it."""

from __future__ import annotations

import logging
from typing import final

from nowait.engines.exposition import CONTENT_TYPE, RunSnapshot, exposition
from nowait.engines.host_names import HostNames, own_names
from nowait.engines.http_server import QuietHandler, QuietServer

logger = logging.getLogger("nowait")

PATH = "/metrics"
REFUSED = (
    "This server does not answer under that name: a web page could have made it point here. Use an address in digits, "
    'or the name of this machine; or start the run with that name, as in metrics_port="node7.example.com:9100".\n'
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
