"""The vectors that travel between the server and its hosts: points, each once to a host, and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np

from nowait.core.memory import Slots
from nowait.core.types import Vector
from nowait.fleet.wire.messages import Shapes
from nowait.fleet.wire.secure import ProtocolError
from nowait.problems.encodings import Bytes, Encodings


@final
class HostPoints:
    """Decides which slot of a host has which version of params, so that no version is sent to a host that has it.

    A host has as many slots for points as it has workers at most. A worker uses its slot until it gets its next order,
    which comes after its report. A slot that nobody uses keeps its version until the slot is needed for another one.

    >>> points = HostPoints()
    >>> (
    ...     points.place(worker=0, version=7),
    ...     points.place(worker=1, version=7),
    ...     points.place(worker=0, version=8),
    ... )
    ((0, True), (0, False), (1, True))
    """

    def __init__(self) -> None:
        self._slot_of_worker: dict[int, int] = {}
        self._slot_of_version: dict[int, int] = {}
        self._versions: list[int] = []
        """The version in each slot."""
        self._users: list[int] = []
        """How many workers use each slot."""
        self._unused: dict[int, None] = {}
        """The slots that nobody uses, the oldest first."""

    def place(self, worker: int, version: int) -> tuple[int, bool]:
        """Return the slot for the point of a worker's next order, and True if the version has to be sent."""
        self.leave(worker)
        slot, missing = self._slot_of_version.get(version), False
        if slot is None:
            slot, missing = self._slot_for(version), True
        self._unused.pop(slot, None)
        self._users[slot] += 1
        self._slot_of_worker[worker] = slot
        return slot, missing

    def leave(self, worker: int) -> None:
        """Note that a worker does not use its slot any longer."""
        slot = self._slot_of_worker.pop(worker, None)
        if slot is not None:
            self._users[slot] -= 1
            if self._users[slot] == 0:
                self._unused[slot] = None

    def _slot_for(self, version: int) -> int:
        """Return a slot for a version that the host does not have."""
        if self._unused:
            slot = next(iter(self._unused))
            del self._slot_of_version[self._versions[slot]]
            self._versions[slot] = version
        else:
            slot = len(self._versions)
            self._versions.append(version)
            self._users.append(0)
        self._slot_of_version[version] = slot
        return slot


@final
class ServerVectors:
    """Points as they are sent, encoded once for all hosts, and where gradients are received and decoded."""

    def __init__(self, points: Slots, gradients: Slots, encodings: Encodings) -> None:
        self._points, self._gradients = points, gradients
        self._codecs = encodings.codecs(points.length, points.dtype)
        self.shapes = Shapes.of(self._codecs, points.length, points.dtype)
        """How vectors are sent; hosts need to know it."""
        self.decodes = self._codecs.gradients is not None
        """True if gradients arrive encoded."""
        self._encoded_points: dict[int, tuple[int, Bytes]] = {}
        """The version and the code of the point in each slot that was sent. A slot is not written while one of its
        tickets is in flight, so neither is its code."""
        self._received: dict[int, Bytes] = {}
        """Where the codes of large gradients are received, by worker."""
        self._unwanted: Any = None

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
            self._received[worker] = self._new_vector()
        return self._received[worker]

    @property
    def unwanted(self) -> Any:
        """The vector into which gradients are received that nobody reads."""
        if self._unwanted is None:
            self._unwanted = self._new_vector()
        return self._unwanted

    def _new_vector(self) -> Any:
        length, dtype = self.shapes.gradients
        return np.empty(length, dtype)

    def decoded(self, received: Mapping[int, Any]) -> Mapping[int, Vector]:
        """Return the gradients that were received, by worker. Raises ``ProtocolError`` if one cannot be decoded."""
        codec, decoded = self._codecs.gradients, {}
        assert codec is not None
        for worker, code in received.items():
            out = decoded[worker] = self._gradients[worker]
            try:
                codec.decode(code, out)
            except ValueError as error:
                raise ProtocolError(f"a gradient cannot be decoded: {error}") from None
        return decoded
