"""How vectors were sent between machines, as the trace says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final


@final
@dataclass(frozen=True)
class Sent:
    """How the vectors of a run on other machines were sent. On the machine of the server nothing is sent."""

    gradients: str
    """The encoding of gradients, such as "float16"; the dtype of params if they were sent as they are."""
    points: str
    gradient_bytes: int
    """The size of every gradient."""
    point_bytes: int
    wire: str | None = None
    """The setting of the engine, by which gradients were rounded; a replay does so too."""
    points_wire: str | None = None

    @classmethod
    def read(cls, values: Any) -> Sent:
        """Read the entry of a trace. Raises ValueError if it is not one."""
        try:
            sent = cls(**values)
        except TypeError:
            raise ValueError(f"it does not say how vectors were sent: {str(values)[:100]}") from None
        texts, sizes = (sent.gradients, sent.points), (sent.gradient_bytes, sent.point_bytes)
        options = (sent.wire, sent.points_wire)
        if not (
            all(isinstance(text, str) for text in texts)
            and all(isinstance(size, int) and size > 0 for size in sizes)
            and all(option is None or isinstance(option, str) for option in options)
        ):
            raise ValueError(f"it does not say how vectors were sent: {str(values)[:100]}")
        return sent
