"""The server's side of encoded vectors: encodes points once for all hosts, and decodes gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np

from nowait.core.memory import Slots
from nowait.core.types import Vector
from nowait.fleet.wire.messages import Shapes
from nowait.fleet.wire.secure import ProtocolError
from nowait.problems.encodings import Bytes, Encodings


@final
class ServerVectors:
    """Points as they are sent, and where gradients are received."""

    def __init__(self, points: Slots, gradients: Slots, encodings: Encodings) -> None:
        self._points, self._gradients = points, gradients
        self._codecs = encodings.codecs(points.length, points.dtype)
        self.shapes = Shapes.of(self._codecs, points.length, points.dtype)
        self._encoded_points: dict[int, tuple[int, Bytes]] = {}
        """The version and the code of the point in each slot that was sent. A slot is not written while one of its
        tickets is in flight, so neither is its code."""
        self._received: dict[int, Bytes] = {}
        """Where the codes of large gradients are received, by worker."""

    def warm_up(self) -> None:
        """Load or compile what is needed, before the run's clock starts."""
        self._codecs.warm_up(self._points.length, self._points.dtype)

    def point(self, slot: int, version: int) -> Any:
        """Return the point in a slot, as it is sent. A version is encoded once."""
        codec = self._codecs.points
        if codec is None:
            return self._points[slot]
        known, code = self._encoded_points.get(slot, (-1, None))
        if code is None:
            code = np.zeros(codec.num_bytes, np.uint8)
        if known != version:
            codec.encode(self._points[slot], code)
            self._encoded_points[slot] = (version, code)
        return code

    def destination(self, worker: int) -> Any:
        """Return where the next large gradient of a worker is received."""
        if self._codecs.gradients is None:
            return self._gradients[worker]
        if worker not in self._received:
            self._received[worker] = self.scratch()
        return self._received[worker]

    def scratch(self) -> Any:
        """Return a new vector for a gradient that is not wanted."""
        length, dtype = self.shapes.gradients
        return np.empty(length, dtype)

    def decoded(self, received: Mapping[int, Any], delivers: Callable[[int], bool]) -> Mapping[int, Vector]:
        """Return the gradients that were received, by worker. Raises ``ProtocolError`` if one cannot be decoded.

        Those of workers that do not deliver any longer get vectors of their own.
        """
        codec = self._codecs.gradients
        if codec is None:
            return received
        decoded = {}
        for worker, code in received.items():
            out = self._gradients[worker] if delivers(worker) else np.empty(self._points.length, self._points.dtype)
            try:
                codec.decode(code, out)
            except ValueError as error:
                raise ProtocolError(f"a gradient cannot be decoded: {error}") from None
            decoded[worker] = out
        return decoded
