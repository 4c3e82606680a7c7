"""The contract of an update, as checks that run on any update. Each raises ``AssertionError``.

@pytest.mark.parametrize("check", UPDATE_CHECKS, ids=lambda check: check.__name__)
def test_my_update(check):
    check(MyUpdate())
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from nowait.core import Update, sampler
from nowait.core.state import copies
from nowait.core.types import Vector
from nowait.recording import describe

SIZE = 7
DTYPES: tuple[Any, ...] = (np.float64, np.float32)
STEPSIZE = 0.05


def a_step_writes_all_of_out_and_nothing_else(update: Update) -> None:
    """Params and direction are read-only; every entry of ``out`` is written, in its own dtype."""
    for dtype in DTYPES:
        params, direction, out = _params(dtype), _direction(dtype, 0), np.full(SIZE, math.nan, dtype)
        before = params.copy(), direction.copy()
        update.start(params)
        for _ in range(3):
            update.apply(params, direction, STEPSIZE, out)
            assert np.isfinite(out).all(), f"an entry of out was not written, or is not finite ({dtype.__name__})"
            assert np.array_equal(params, before[0]), "a step wrote to params"
            assert np.array_equal(direction, before[1]), "a step wrote to its direction"


def params_move_against_the_direction(update: Update) -> None:
    """Steps along gradients of ½‖x‖² make ‖x‖ at least ten times smaller."""
    for dtype in DTYPES:
        params = _params(dtype)
        first = float(np.linalg.norm(params))
        update.start(params)
        for _ in range(400):
            params = _step(update.apply, params, params)
        last = float(np.linalg.norm(params))
        assert last < first / 10, f"400 steps along gradients of ½‖x‖² took ‖x‖ from {first:.3g} to {last:.3g} only"


def start_makes_all_state_anew(update: Update) -> None:
    """A second run of the same object gives the same bits."""
    for dtype in DTYPES:
        first, second = _run(update, dtype, range(5)), _run(update, dtype, range(5))
        assert np.array_equal(first, second), "a second run differs: start must make all state anew"


def a_restored_update_goes_on_with_the_same_bits(update: Update) -> None:
    """``state`` returns numbers and vectors, from which ``restore`` continues as if nothing had happened."""
    for dtype in DTYPES:
        middle = _run(update, dtype, range(5))
        state = copies(update.state())
        bad = [name for name, value in state.items() if not isinstance(value, int | float | np.generic | np.ndarray)]
        assert not bad, f"state() must hold numbers and vectors, but {bad} cannot be written to a checkpoint"
        expected, last = _continue(update, middle, dtype, range(5, 10)), copies(update.state())
        update.start(_params(dtype))
        update.restore(state)
        again = _continue(update, middle, dtype, range(5, 10))
        assert np.array_equal(again, expected), "a restored update makes other steps: its state is incomplete"
        different = [name for name, value in update.state().items() if not np.array_equal(value, last[name])]
        assert not different, f"after a restore the run ends with another state: {different}"


def a_bad_direction_changes_nothing(update: Update) -> None:
    """A step along NaN or infinity is reported by a norm that is not finite, and leaves the state as it was."""
    for dtype in DTYPES:
        expected = _run(update, dtype, range(6))
        for bad in (math.nan, math.inf, -math.inf):
            params = _run(update, dtype, range(3))
            direction = _direction(dtype, 0).copy()
            direction[3] = bad
            norm, _ = update.stepper(params)(params, direction, _stepsize(dtype), np.empty_like(params))
            assert not norm < math.inf, f"a direction with {bad} was not reported: its squared norm is given as {norm}"
            again = _continue(update, params, dtype, range(3, 6))
            assert np.array_equal(again, expected), f"a direction with {bad} changed the state of the update"


def params_that_overflow_are_reported(update: Update) -> None:
    """The second number that a checked step returns is 0 while params are finite, and NaN if they are not."""
    for dtype in DTYPES:
        params, out = _params(dtype), np.empty(SIZE, dtype)
        update.start(params)
        _, finite = update.stepper(params)(params, _direction(dtype, 0), _stepsize(dtype), out)
        assert finite == 0.0, f"a finite step was reported as {finite}"
        huge = np.full(SIZE, np.finfo(dtype).max / 2, dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            update.start(huge)
            _, finite = update.stepper(huge)(huge, -huge, dtype(4.0), out)
        assert np.isfinite(out).all() == (finite == 0.0), f"params are {out[0]}, but the step reported {finite}"


def a_checked_step_is_a_step(update: Update) -> None:
    """``stepper`` gives the bits of ``apply``, and the squared norm of the direction."""
    for dtype in DTYPES:
        params, out = _params(dtype), np.empty(SIZE, dtype)
        expected = _run(update, dtype, range(4))
        update.start(params)
        stepper = update.stepper(params)
        for number in range(4):
            direction = _direction(dtype, number)
            norm, _ = stepper(params, direction, _stepsize(dtype), out)
            squared = float(np.sum(direction.astype(np.float64) ** 2))
            assert math.isclose(norm, squared, rel_tol=1e-5), f"the squared norm is {squared}, the step says {norm}"
            params = out.copy()
        assert np.array_equal(params, expected), "stepper and apply make different steps"


def momentum_is_a_fraction(update: Update) -> None:
    """``momentum_factor`` is at least 0 and below 1."""
    assert 0 <= update.momentum_factor < 1, f"momentum_factor is {update.momentum_factor}"


def config_describes_the_update(update: Update) -> None:
    """Its description for ``config.json`` is valid JSON and contains the class name."""
    described = json.loads(json.dumps(describe(update)))
    assert described.get("type") == type(update).__name__, f"config.json would call it {described.get('type')!r}"


UPDATE_CHECKS: list[Callable[[Update], None]] = [
    a_step_writes_all_of_out_and_nothing_else,
    params_move_against_the_direction,
    start_makes_all_state_anew,
    a_restored_update_goes_on_with_the_same_bits,
    a_bad_direction_changes_nothing,
    params_that_overflow_are_reported,
    a_checked_step_is_a_step,
    momentum_is_a_fraction,
    config_describes_the_update,
]


def _params(dtype: Any) -> Vector:
    return _frozen(1.0 + sampler(1).sample(0, 0).uniforms(SIZE), dtype)


def _direction(dtype: Any, number: int) -> Vector:
    return _frozen(sampler(2).sample(0, number).normals(SIZE), dtype)


def _frozen(values: Any, dtype: Any) -> Vector:
    vector: Vector = np.array(values, dtype)
    vector.flags.writeable = False
    return vector


def _stepsize(dtype: Any) -> float:
    stepsize: float = STEPSIZE if dtype == np.float64 else dtype(STEPSIZE)
    return stepsize


def _run(update: Update, dtype: Any, numbers: range) -> Vector:
    """Start a new run, and return the params after steps along the directions with these numbers."""
    update.start(_params(dtype))
    return _continue(update, _params(dtype), dtype, numbers)


def _continue(update: Update, params: Vector, dtype: Any, numbers: range) -> Vector:
    for number in numbers:
        params = _step(update.apply, params, _direction(dtype, number))
    return params


def _step(apply: Callable[..., Any], params: Vector, direction: Vector) -> Vector:
    out = np.full_like(params, math.nan)
    apply(params, direction, _stepsize(params.dtype.type), out)
    return out
