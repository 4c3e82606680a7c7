"""Updates of large params, by several threads: the bits of the numpy expressions that small params use."""

import numpy as np
import pytest

import nowait as nw
from nowait.numerics.chunks import LARGE
from nowait.numerics.parallel import using_threads


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", [nw.Momentum, nw.Nesterov, nw.Adam, nw.AMSGrad], ids=lambda kind: kind.__name__)
def test_an_update_of_large_params_is_that_of_its_halves(kind, dtype):
    params = np.random.default_rng(0).standard_normal(LARGE, dtype=np.float32).astype(dtype)
    whole, halves = kind(), [kind(), kind()]
    parts = [slice(0, LARGE // 2), slice(LARGE // 2, LARGE)]
    whole.start(params)
    for half, part in zip(halves, parts, strict=True):
        half.start(params[part])
    for scale in (1, -3, 2):
        direction, out, expected = params * dtype(scale), np.empty_like(params), np.empty_like(params)
        with using_threads(3):
            _, zero = whole.checked(params, direction, 0.01, out)
        for half, part in zip(halves, parts, strict=True):
            half.checked(params[part], direction[part], 0.01, expected[part])
        assert zero == 0.0
        assert np.array_equal(out, expected)
        params = out
    for name, value in whole.state().items():
        if isinstance(value, np.ndarray):
            assert np.array_equal(value, np.concatenate([half.state()[name] for half in halves])), name
