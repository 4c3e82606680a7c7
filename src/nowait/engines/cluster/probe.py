"""Checks that a Ray cluster listens at an address: Ray itself would try for minutes. This does not import Ray."""

from __future__ import annotations

import os
import socket
import threading
from time import monotonic

SECONDS = 8.0
"""How long an address may take to answer."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What an HTTP/2 client sends first: its preface, and a SETTINGS frame without settings (RFC 9113, section 3.4)."""
FRAME_HEADER_BYTES, SETTINGS = 9, 4
"""The server's first frame has this header and, in its fourth byte, this type."""


def check_address(address: str, seconds: float = SECONDS) -> None:
    """Raise ``ConnectionError`` if no Ray listens at ``host:port``. Other kinds of addresses are left to Ray."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return
    reasons: list[str] = []
    target = (host.strip("[]"), int(port))
    thread = threading.Thread(target=lambda: reasons.append(_why_not(*target, seconds)), daemon=True)
    thread.start()
    thread.join(seconds)  # looking up a name has no timeout of its own
    reason = reasons[0] if reasons else f"it did not answer within {seconds:g} s"
    if reason:
        raise ConnectionError(
            f"no Ray listens at {address} ({reason}): start one there with `ray start --head`, or give the address "
            f"that it printed"
        )


def _why_not(host: str, port: int, seconds: float) -> str:
    """Return why an address is not that of a Ray cluster; an empty string if it is one. Ray's protocol is gRPC."""
    deadline = monotonic() + seconds
    try:
        with socket.create_connection((host, port), timeout=seconds) as connection:
            if _uses_tls():
                return ""
            connection.sendall(GREETING)
            answer = b""
            while len(answer) < FRAME_HEADER_BYTES:
                connection.settimeout(max(0.01, deadline - monotonic()))
                received = connection.recv(FRAME_HEADER_BYTES - len(answer))
                if not received:
                    return "what listens there is something else"
                answer += received
    except TimeoutError:
        return f"it did not answer within {seconds:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return "" if answer[3] == SETTINGS else "what listens there is something else"


def _uses_tls() -> bool:
    """Return True if Ray's connections are encrypted, as its own variable says."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")
