"""The channel of a worker that is leaving."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from nowait.engines.workers.transport import Channel
from nowait.fleet.wire.records import Instruction


@final
class RetiredChannel:
    """In the place of a channel: an order means that the worker has reported on its last one, so it can leave."""

    __slots__ = ("_channel", "_has_delivered")

    def __init__(self, channel: Channel, has_delivered: Callable[[], None]) -> None:
        self._channel, self._has_delivered = channel, has_delivered

    def send(self, ticket: int, job: int, slot: int, instruction: int) -> None:
        """Pass HURRY on, which is about the order that the worker has; other orders are not sent."""
        if instruction == Instruction.HURRY:
            self._channel.send(ticket, job, slot, instruction)
        else:
            self._has_delivered()

    def close(self) -> None:
        """Close the connection; the process exits."""
        self._channel.close()
