"""Where hosts on the driver's own node come in."""

from __future__ import annotations

import secrets
import select
import socket
from typing import final

MOST_GUESTS = 64
"""The most connections that have not authenticated. A host authenticates at once."""


@final
class Door:
    """An abstract Unix socket where hosts on this machine authenticate with a password; others are closed.

    When too many connections have sent nothing yet, the oldest of them is closed.
    """

    def __init__(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.key = (f"\0nowait-{secrets.token_hex(8)}", secrets.token_bytes(32))
        """Its name, and the password."""
        self._listener.bind(self.key[0])
        self._listener.listen(MOST_GUESTS)
        self._listener.setblocking(False)
        self._guests: dict[int, socket.socket] = {}
        self.fd = self._listener.fileno()

    def answer(self, fd: int, poller: select.poll) -> tuple[bytes, socket.socket] | None:
        """Who is there, if it has said so and has the password."""
        if fd == self.fd:
            self._let_in(poller)
            return None
        guest = self._guests.get(fd)
        if guest is None:
            return None  # it was closed meanwhile
        try:
            words = guest.recv(1024)
        except BlockingIOError:
            return None  # the descriptor of a closed connection was given to a new one
        except OSError:
            words = b""
        del self._guests[fd]
        poller.unregister(guest)
        password = self.key[1]
        if secrets.compare_digest(words[: len(password)], password):
            return words[len(password) :], guest
        guest.close()
        return None

    def _let_in(self, poller: select.poll) -> None:
        try:
            guest, _ = self._listener.accept()
        except OSError:
            return  # whoever knocked is gone
        if len(self._guests) >= MOST_GUESTS:
            oldest = self._guests.pop(next(iter(self._guests)))
            poller.unregister(oldest)
            oldest.close()
        guest.setblocking(False)
        self._guests[guest.fileno()] = guest
        poller.register(guest, select.POLLIN)

    def close(self) -> None:
        """Nobody may come any more."""
        self._listener.close()
        for guest in self._guests.values():
            guest.close()
