"""Serves the numbers of a run over HTTP, for Prometheus. A thread answers, and the run never waits for it."""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, final

from nowait.engines.exposition import CONTENT_TYPE, RunSnapshot, exposition

logger = logging.getLogger("nowait")

PATH = "/metrics"
SECONDS_FOR_A_REQUEST = 5.0
"""How long a client may take to send its request or to read the answer."""
SECONDS_TO_NOTICE_THE_END = 0.1


@final
class MetricsServer:
    """Answers requests for ``/metrics`` with the latest snapshot of a run, until it is closed."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, args=(SECONDS_TO_NOTICE_THE_END,), name="nowait-metrics", daemon=True
        )

    @classmethod
    def open(cls, address: tuple[str, int]) -> MetricsServer:
        """Listen at a host and port (0: any free one), and start to answer. Raises OSError if the port is in use."""
        try:
            made = cls(_Server(address))
        except OSError as error:
            raise OSError(f"metrics_port: cannot listen at {address[0]}, port {address[1]}: {error}") from error
        made._thread.start()
        logger.info("metrics at http://%s:%d%s", *made.address, PATH)
        return made

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def show(self, snapshot: RunSnapshot) -> None:
        """Answer requests with this snapshot from now on."""
        self._server.snapshot = snapshot

    def close(self) -> None:
        """Stop answering, and end all threads."""
        self._server.shutdown()
        self._thread.join()
        self._server.end_connections()
        self._server.server_close()


@final
class _Server(ThreadingHTTPServer):
    """One thread for each connection, so that a slow client does not keep others waiting."""

    daemon_threads = False  # so that server_close waits for them; end_connections lets them end at once

    def __init__(self, address: tuple[str, int]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.snapshot: RunSnapshot | None = None
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without looking up the host's name, which may take seconds."""
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection while it is open."""
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def end_connections(self) -> None:
        """Shut down all connections, so that their threads end."""
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: the client is gone, or was too slow."""


@final
class _Handler(BaseHTTPRequestHandler):
    timeout = SECONDS_FOR_A_REQUEST
    server_version, sys_version = "nowait", ""
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self.send_error(404, f"only {PATH} is here")
            return
        page = exposition(self.server.snapshot).encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 (the name of the base class)
        """Log nothing: the terminal shows the run."""
