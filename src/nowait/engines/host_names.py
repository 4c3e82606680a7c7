"""Under which names a web server of this machine answers."""

from __future__ import annotations

import ipaddress
import socket
from typing import final
from urllib.parse import urlsplit

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@final
class HostNames:
    """The names and addresses that the ``Host`` header of a request may have.

    Another web page may let its own name point to this machine (DNS rebinding): its requests have that name in their
    ``Host`` header and are refused. An address in digits cannot be used for that.

    >>> at_home, for_all = (
    ...     HostNames("127.0.0.1"),
    ...     HostNames("0.0.0.0", frozenset({"node7"})),
    ... )
    >>> (
    ...     at_home.include("localhost:80"),
    ...     at_home.include("10.0.0.1"),
    ...     at_home.include("evil.example"),
    ... )
    (True, False, False)
    >>> (
    ...     for_all.include("node7:80"),
    ...     for_all.include("10.0.0.1"),
    ...     for_all.include("evil.example"),
    ... )
    (True, True, False)
    """

    def __init__(self, host: str, names: frozenset[str] = frozenset()) -> None:
        """``host`` is where the server listens; ``names`` count only if other machines can connect there."""
        self._is_local = is_loopback(host)
        self._names = LOOPBACK | (frozenset() if self._is_local else {host.lower()} | names)

    def include(self, header: str | None) -> bool:
        """Return True if a request with this ``Host`` header is answered."""
        try:
            name = urlsplit(f"//{header or ''}").hostname or ""
        except ValueError:
            return False
        return name in self._names or (not self._is_local and _is_address(name))


def own_names(host: str) -> frozenset[str]:
    """Return the names of this machine under which pages are served, if other machines can connect at all."""
    return frozenset() if is_loopback(host) else frozenset({socket.gethostname().lower()})


def is_loopback(host: str) -> bool:
    """Return True if only programs on this machine can connect to a host name or address."""
    return host in LOOPBACK or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
