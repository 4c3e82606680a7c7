"""Compiled code that draws the rows of a ticket's batch. Imported when a run needs it: it imports numba."""

from __future__ import annotations

from typing import Any

from nowait.numerics.compiled import compiled, inlined
from nowait.numerics.random_kernels import ticket_key
from nowait.problems.kernels import FIRST, draw_row


@inlined
def drawn_row(row_order: Any, shard_starts: Any, stream: Any, worker: int, job: int) -> Any:
    """Return the row of a ticket whose batch is one row."""
    return draw_row(row_order, shard_starts, ticket_key(stream, worker, job), worker, FIRST)


@compiled
def draw_rows(data: Any, stream: Any, worker: int, job: int, rows: Any) -> Any:
    """Write the batch of a ticket into ``rows``. Returns the key of its sample."""
    key = ticket_key(stream, worker, job)
    for i in range(rows.size):
        rows[i] = draw_row(data.order, data.starts, key, worker, i)
    return key
