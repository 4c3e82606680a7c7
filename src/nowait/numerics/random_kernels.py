"""The random numbers of ``nowait.core.randomness``, compiled, with bit-identical results. Imports numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from nowait.numerics.compiled import compiled
from nowait.numerics.elementary_kernels import cos_of_turns, log
from nowait.numerics.splitmix import FIRST_FACTOR, GOLDEN, NORMALS, SECOND_FACTOR, TICKET_STRIDE


@compiled
def mix(value: Any) -> Any:
    """Apply the SplitMix64 finaliser."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(FIRST_FACTOR)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(SECOND_FACTOR)
    return value ^ (value >> np.uint64(31))


@compiled
def child(key: Any, counter: Any) -> Any:
    """Return draw number ``counter`` of a key."""
    return mix(key + (np.uint64(counter) + np.uint64(1)) * np.uint64(GOLDEN))


@compiled
def ticket_key(stream: Any, worker: int, job: int) -> Any:
    """Return ``Stream.key(worker, job)`` of the stream with this key."""
    return child(stream, worker) + np.uint64(job) * np.uint64(TICKET_STRIDE)


@compiled
def below(bits: Any, limit: Any) -> Any:
    """Convert random bits to an integer in [0, limit), for limits below 2**32."""
    half, low_bits = np.uint64(32), np.uint64(0xFFFFFFFF)
    low = ((bits & low_bits) * np.uint64(limit)) >> half
    return np.int64(((bits >> half) * np.uint64(limit) + low) >> half)


@compiled
def unit(bits: Any) -> Any:
    """Convert random bits to a float strictly between 0 and 1."""
    return (np.float64(bits >> np.uint64(12)) + 0.5) * 2.0**-52


@compiled
def normal(first: Any, second: Any) -> Any:
    """Convert the bits of two draws to a standard normal number (Box–Muller)."""
    return np.sqrt(-2.0 * log(unit(first))) * cos_of_turns(unit(second))


@compiled
def normals_key(key: Any) -> Any:
    """Return the key that ``Sample.normals`` draws from."""
    return child(key, NORMALS)


@compiled
def fill_normals(draws: Any, out: Any) -> None:
    """Fill ``out`` with the numbers of ``Sample.normals``; ``draws`` is ``normals_key`` of the sample's key."""
    for i in range(out.size):
        out[i] = normal(child(draws, 2 * i), child(draws, 2 * i + 1))
