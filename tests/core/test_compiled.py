"""Compiling where nothing can be written."""

import numba
import numpy as np

from nowait.core.compiled import compiled


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
