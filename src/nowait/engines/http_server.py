"""An HTTP server in a thread, which ends at once when it is closed."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECONDS_FOR_A_REQUEST = 5.0
"""How long a client may take to send its request or to read the answer."""
SECONDS_TO_NOTICE_THE_END = 0.1


class QuietServer(ThreadingHTTPServer):
    """Answers in one thread for each connection, so that a slow client does not keep others waiting."""

    daemon_threads = False  # so that server_close waits for them; they end because close ends their connections

    def __init__(self, address: tuple[str, int], handler: type[QuietHandler], name: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self.serve_forever, args=(SECONDS_TO_NOTICE_THE_END,), name=name, daemon=True
        )
        super().__init__(address, handler)

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self.server_address[:2]
        return str(host), int(port)

    def start(self) -> None:
        """Answer requests from now on."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering, and end all threads."""
        self.shutdown()
        self._thread.join()
        self._end_connections()
        self.server_close()

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

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: the client is gone, or was too slow."""

    def _end_connections(self) -> None:
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class QuietHandler(BaseHTTPRequestHandler):
    """Answers one connection and logs nothing: the terminal shows the run."""

    timeout = SECONDS_FOR_A_REQUEST
    server_version, sys_version = "nowait", ""

    def answer(self, status: int, kind: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Send a whole answer."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 (the name of the base class)
        """Log nothing."""
