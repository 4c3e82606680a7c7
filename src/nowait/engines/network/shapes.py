"""Length and dtype of the vectors that are sent between machines."""

from __future__ import annotations

from typing import Any, NamedTuple, final

from nowait.engines.network.messages import Format
from nowait.problems.encodings import Codecs


@final
class Shapes(NamedTuple):
    """Length and dtype of points and gradients, as they are sent: the codes of encoded ones are vectors of bytes."""

    points: tuple[int, str]
    gradients: tuple[int, str]
    encoded: bool
    """True if workers decode points, or encode gradients."""

    @classmethod
    def of(cls, codecs: Codecs, length: int, dtype: Any) -> Shapes:
        """Return the shapes of vectors that these codecs encode."""
        return cls(*codecs.shapes(length, dtype), encoded=any(codecs))

    def server_format(self) -> Format:
        """Return the format of the messages that a server sends, and receives."""
        return Format(*self.points, received=Format(*self.gradients))

    def host_format(self) -> Format:
        """Return the format of the messages that a host sends, and receives."""
        return Format(*self.gradients, received=Format(*self.points))
