"""Compiling where nothing can be written, and what is compiled already."""

import numba
import numpy as np

from nowait.numerics.compiled import compiled, is_ready


def test_without_a_place_for_its_cache_a_kernel_is_compiled_anyway(monkeypatch):
    whole = numba.njit

    def no_place(*functions, **options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function 'double': no locator available for file")
        return whole(*functions, **options)

    monkeypatch.setattr(numba, "njit", no_place)

    @compiled
    def double(values):
        return values * 2

    assert double(np.ones(2)).tolist() == [2.0, 2.0]


def test_a_kernel_is_ready_once_it_was_compiled():
    @compiled
    def half(value):
        return value / 2

    assert half.stats.cache_hits == {}
    was_ready = is_ready(half)
    half(1.0)
    assert (was_ready, is_ready(half)) == (bool(half.stats.cache_hits), True)


def test_a_kernel_without_a_cache_counts_as_ready():
    assert is_ready(numba.njit(lambda value: value))
