"""An HTTP server in a thread, which ends at once when it is closed."""

from __future__ import annotations

import contextlib
import math
import socket
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from typing import Any

from nowait.recording.patience import OUT_OF_DESCRIPTORS

SECONDS_FOR_A_REQUEST = 5.0
"""How long a client may take to send its whole request, and then to read the whole answer."""
MOST_CONNECTIONS = 32
"""How many connections may be open. Past that the oldest is closed: otherwise somebody who opens connections quickly
would use up the file descriptors of this process, which a run needs for its files."""
SECONDS_TO_NOTICE_THE_END = 0.1


class QuietServer(ThreadingHTTPServer):
    """Answers in one thread for each connection, so that a slow client does not keep others waiting."""

    daemon_threads = False  # so that server_close waits for them; they end because close ends their connections

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[QuietHandler],
        name: str,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._clock = clock
        self._deadlines: dict[socket.socket, float] = {}
        """The open connections, the oldest first, and when each is closed."""
        self._changed = threading.Condition()
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

    def get_request(self) -> Any:
        """Accept a connection. Without a descriptor for it, end the oldest connection, and try again later."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                with self._changed:
                    _end(*list(self._deadlines)[:1])
                    self._changed.wait(SECONDS_TO_NOTICE_THE_END)  # else the next try would follow at once, for ever
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread. With too many others, end the oldest and wait until its thread has ended."""
        with self._changed:
            while len(self._deadlines) >= MOST_CONNECTIONS:
                _end(*list(self._deadlines)[:1])
                self._changed.wait(SECONDS_TO_NOTICE_THE_END)
            self._deadlines[request] = self._clock() + SECONDS_FOR_A_REQUEST
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        super().shutdown_request(request)
        with self._changed:
            self._deadlines.pop(request, None)
            self._changed.notify_all()

    def service_actions(self) -> None:
        """End the connections whose client was too slow. Called about every 0.1 s."""
        now = self._clock()
        with self._changed:
            _end(*(connection for connection, deadline in self._deadlines.items() if now > deadline))

    def expect_within(self, connection: socket.socket, seconds: float) -> None:
        """Set how long the client of a connection may take from now on."""
        with self._changed:
            if connection in self._deadlines:
                self._deadlines[connection] = self._clock() + seconds

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: the client is gone, or was too slow."""

    def _end_connections(self) -> None:
        with self._changed:
            _end(*self._deadlines)


def _end(*connections: socket.socket) -> None:
    """End connections; the threads that read them or write to them then close them."""
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


class QuietHandler(BaseHTTPRequestHandler):
    """Answers one connection and logs nothing: the terminal shows the run."""

    server: QuietServer
    timeout = SECONDS_FOR_A_REQUEST
    server_version, sys_version = "nowait", ""

    def parse_request(self) -> bool:
        """Read the request; while its answer is computed, the client cannot be too slow."""
        has_arrived = super().parse_request()
        if has_arrived:
            self.server.expect_within(self.connection, math.inf)
        return has_arrived

    def send_response(self, code: int, message: str | None = None) -> None:
        """Begin an answer."""
        self.server.expect_within(self.connection, SECONDS_FOR_A_REQUEST)
        super().send_response(code, message)

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
