"""Where the tensors of a model are in the flat vector of params.

A problem whose params are more than one vector has a ``layout``. Updates that look at shapes or names get it from
``Update.start_with_layout``; a problem without one is a single block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final


@final
@dataclass(frozen=True)
class Block:
    """The range of entries that a tensor takes in the flat vector, and its shape."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def entries(self) -> slice:
        """The range as a slice."""
        return slice(self.start, self.stop)

    def of(self, vector: Any) -> Any:
        """Return the tensor in a vector like params: a view with the shape of the block."""
        return vector[self.start : self.stop].reshape(self.shape)


@final
@dataclass(frozen=True)
class Layout(Mapping[str, Block]):
    """The blocks of params by name, in their order. They follow each other without gaps.

    >>> layout = Layout.of({"weight": (2, 3), "bias": (3,)})
    >>> layout["bias"]
    Block(name='bias', shape=(3,), start=6, stop=9)
    >>> import numpy as np
    >>> layout["weight"].of(np.arange(9.0))
    array([[0., 1., 2.],
           [3., 4., 5.]])
    """

    blocks: tuple[Block, ...]

    def __post_init__(self) -> None:
        stop = 0
        for block in self.blocks:
            if block.start != stop or block.stop - block.start != math.prod(block.shape):
                raise ValueError(f"blocks must follow each other and have the sizes of their shapes, got {block}")
            stop = block.stop
        if len(self._by_name) < len(self.blocks) or not self.blocks:
            raise ValueError("a layout needs blocks, and each of them a name of its own")

    @classmethod
    def of(cls, shapes: Mapping[str, Iterable[int]]) -> Layout:
        """Return the layout of tensors with these names and shapes."""
        blocks, start = [], 0
        for name, shape in shapes.items():
            whole = tuple(shape)
            blocks.append(Block(name, whole, start, start + math.prod(whole)))
            start = blocks[-1].stop
        return cls(tuple(blocks))

    @classmethod
    def flat(cls, length: int) -> Layout:
        """Return the layout of params that are a single vector."""
        return cls((Block("params", (length,), 0, length),))

    @property
    def length(self) -> int:
        """The number of entries of all blocks."""
        return self.blocks[-1].stop

    def views(self, vector: Any) -> list[Any]:
        """Return a view of the vector for each block."""
        return [block.of(vector) for block in self.blocks]

    def __getitem__(self, name: str) -> Block:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self.blocks)

    @cached_property
    def _by_name(self) -> dict[str, Block]:
        return {block.name: block for block in self.blocks}


@final
@dataclass(frozen=True, slots=True)
class Sections:
    """The two sections of params: the tensors that are trained, and the statistics after them."""

    trained: Layout
    num_statistics: int = 0
    statistics_momentum: float = 1.0


def checked_layout(layout: Layout | None, length: int) -> Layout:
    """Return the layout of params with this many entries, or raise; None is a single vector."""
    if layout is None:
        return Layout.flat(length)
    if layout.length != length:
        raise ValueError(f"the layout has {layout.length} entries, but {length} params are trained")
    return layout
