"""Decides which connections are closed because too many have not authenticated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar, final

Connection = TypeVar("Connection")


@final
class Unauthenticated(Generic[Connection]):
    """Connections that have not authenticated yet, the oldest first.

    Past the limit the oldest one is closed: a host authenticates within milliseconds. Otherwise somebody who opens
    connections quickly would use up the file descriptors of this process, which also needs them for checkpoints.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._waiting: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._waiting))

    def accepted(self, connection: Connection) -> list[Connection]:
        """Add a new connection; returns those that have to be closed for it."""
        self._waiting.pop(connection, None)
        self._waiting[connection] = None
        excess = len(self._waiting) - self.most
        victims = list(self._waiting)[: max(0, excess)]
        for victim in victims:
            del self._waiting[victim]
        return victims

    def remove(self, connection: Connection) -> None:
        """Stop counting a connection that has authenticated or was closed."""
        self._waiting.pop(connection, None)
