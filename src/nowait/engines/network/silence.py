"""How long a host on another machine may be silent, and for how long it has been. Times are arguments."""

from __future__ import annotations

import math
from typing import final

SLOW_NETWORK = 1e6
"""Bytes per second that any network is expected to carry."""
LONGEST_TRANSFER = 600.0
"""How much longer than usual any host may be silent, however large its gradients are."""
LONG_PAUSE = 2.0
"""If the server has not looked for this long, because it was suspended, it cannot know which hosts were silent."""


@final
class Silence:
    """Measures the silence of hosts, from their last message or from the end of a pause of the server.

    >>> silence = Silence(heartbeat_seconds=10.0)
    >>> silence.look(now=0.0)
    >>> silence.seconds(last_message=-5.0, now=0.0)
    5.0
    >>> silence.look(now=100.0)
    >>> silence.seconds(last_message=-5.0, now=101.0), silence.longest(expected_bytes=4e6)
    (1.0, 14.0)
    """

    def __init__(self, heartbeat_seconds: float) -> None:
        self._heartbeat_seconds = heartbeat_seconds
        self._looked = math.inf
        self._paused_until = -math.inf

    def look(self, now: float) -> None:
        """Note that the server looks at its hosts, which it should do often."""
        if now - self._looked > LONG_PAUSE:
            self._paused_until = now
        self._looked = now

    def seconds(self, last_message: float, now: float) -> float:
        """Return for how long a host has been silent that sent its last message then."""
        return now - max(last_message, self._paused_until)

    def longest(self, expected_bytes: float) -> float:
        """Return how long a host may be silent; on a slow network its next message alone may take a while."""
        return self._heartbeat_seconds + min(expected_bytes / SLOW_NETWORK, LONGEST_TRANSFER)
