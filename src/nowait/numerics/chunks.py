"""How a large vector is divided into chunks, which several threads can work on.

The chunks depend on the length of the vector only. A sum over a large vector is the sum of the sums over its chunks,
added in their order, so results do not depend on the number of threads.
"""

from __future__ import annotations

from functools import lru_cache

LARGE = 1_000_000
"""Vectors with at least so many entries are divided."""
MOST_CHUNKS = 48
"""Of a vector of moderate length: 48 chunks can be divided evenly among 2, 3, 4, 6, 8, 12 or 16 threads."""
SHORTEST_CHUNK, LONGEST_CHUNK = 2**16, 2**19
"""In entries. In a shorter chunk, the overhead of a call would count. A chunk must not be a large vector itself."""
CACHE_LINE_ENTRIES = 16
"""float32 entries per cache line of 64 bytes; chunks start at multiples of it, so threads do not share a line."""


def chunk_size(size: int) -> int:
    """Return the number of entries in each chunk of a vector, except for the last one, which may be shorter."""
    if size < LARGE:
        return max(size, 1)
    whole = max(SHORTEST_CHUNK, min(-(-size // MOST_CHUNKS), LONGEST_CHUNK))
    return -(-whole // CACHE_LINE_ENTRIES) * CACHE_LINE_ENTRIES


@lru_cache(maxsize=16)
def chunks_of(size: int) -> tuple[slice, ...]:
    """Return the chunks of a vector with ``size`` entries, in order; a small vector is one chunk."""
    step = chunk_size(size)
    return tuple(slice(start, min(start + step, size)) for start in range(0, size, step))
