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
from nowait.core.memory import HOST, Memory, memory_of, namespace_of, to_host
from nowait.core.state import copies
from nowait.core.types import Vector, norm
from nowait.recording import describe

SIZE = 7
DTYPES: tuple[Any, ...] = (np.float64, np.float32)
STEPSIZE = 0.05


def a_step_writes_all_of_out_and_nothing_else(update: Update, memory: Memory = HOST) -> None:
    """Params and direction are read-only; every entry of ``out`` is written, in its own dtype."""
    for dtype in DTYPES:
        params, direction = _params(dtype, memory), _direction(dtype, 0, memory)
        out = memory.from_host(np.full(SIZE, math.nan, dtype))
        update.start(params)
        for _ in range(3):
            update.apply(params, direction, STEPSIZE, out)
            assert memory.is_finite(out), f"an entry of out was not written, or is not finite ({dtype.__name__})"
            assert _equal(params, _params(dtype, memory)), "a step wrote to params"
            assert _equal(direction, _direction(dtype, 0, memory)), "a step wrote to its direction"


def params_move_against_the_direction(update: Update) -> None:
    """Steps along gradients of ½‖x‖² make ‖x‖ at least ten times smaller."""
    for dtype in DTYPES:
        params = _params(dtype)
        first = norm(params)
        update.start(params)
        for _ in range(400):
            params = _step(update.apply, params, params)
        last = norm(params)
        assert last < first / 10, f"400 steps along gradients of ½‖x‖² took ‖x‖ from {first:.3g} to {last:.3g} only"


def start_makes_all_state_anew(update: Update, memory: Memory = HOST) -> None:
    """A second run of the same object gives the same bits."""
    for dtype in DTYPES:
        first, second = (_run(update, dtype, range(5), memory) for _ in range(2))
        assert _equal(first, second), "a second run differs: start must make all state anew"


def a_restored_update_goes_on_with_the_same_bits(update: Update, memory: Memory = HOST) -> None:
    """``state`` returns numbers and vectors, from which ``restore`` continues as if nothing had happened."""
    for dtype in DTYPES:
        middle = _run(update, dtype, range(5), memory)
        state = copies(update.state())
        bad = [name for name, value in state.items() if not isinstance(value, int | float | np.generic | np.ndarray)]
        assert not bad, f"state() must hold numbers and vectors, but {bad} cannot be written to a checkpoint"
        expected, last = _continue(update, middle, dtype, range(5, 10)), copies(update.state())
        update.start(_params(dtype, memory))
        update.restore(state)
        again = _continue(update, middle, dtype, range(5, 10))
        assert _equal(again, expected), "a restored update makes other steps: its state is incomplete"
        different = [name for name, value in copies(update.state()).items() if not np.array_equal(value, last[name])]
        assert not different, f"after a restore the run ends with another state: {different}"


def a_bad_direction_changes_nothing(update: Update, memory: Memory = HOST) -> None:
    """A step along NaN or infinity is reported by a norm that is not finite, and leaves the state as it was."""
    for dtype in DTYPES:
        expected = _run(update, dtype, range(6), memory)
        for bad in (math.nan, math.inf, -math.inf):
            params = _run(update, dtype, range(3), memory)
            direction = memory.from_host(_direction(dtype, 0))
            direction[3] = bad
            squares, _ = update.stepper(params)(params, direction, _stepsize(params), memory.empty(to_host(params)))
            assert not squares < math.inf, f"a direction with {bad} was not reported: its squared norm is {squares}"
            again = _continue(update, params, dtype, range(3, 6))
            assert _equal(again, expected), f"a direction with {bad} changed the state of the update"


def params_that_overflow_are_reported(update: Update, memory: Memory = HOST) -> None:
    """The second number that a checked step returns is 0 while params are finite, and NaN if they are not."""
    for dtype in DTYPES:
        params = _params(dtype, memory)
        out = memory.empty(to_host(params))
        update.start(params)
        _, finite = update.stepper(params)(params, _direction(dtype, 0, memory), _stepsize(params), out)
        assert finite == 0.0, f"a finite step was reported as {finite}"
        huge = memory.from_host(np.full(SIZE, np.finfo(dtype).max / 2, dtype))
        with np.errstate(over="ignore", invalid="ignore"):
            update.start(huge)
            _, finite = update.stepper(huge)(huge, -huge, dtype(4.0) if memory is HOST else 4.0, out)
        assert memory.is_finite(out) == (finite == 0.0), f"params are {out[0]}, but the step reported {finite}"


def a_checked_step_is_a_step(update: Update, memory: Memory = HOST) -> None:
    """``stepper`` gives the bits of ``apply``, and the squared norm of the direction."""
    for dtype in DTYPES:
        params = _params(dtype, memory)
        out = memory.empty(to_host(params))
        expected = _run(update, dtype, range(4), memory)
        update.start(params)
        stepper = update.stepper(params)
        for number in range(4):
            direction = _direction(dtype, number, memory)
            squares, _ = stepper(params, direction, _stepsize(params), out)
            squared = float(np.sum(to_host(direction).astype(np.float64) ** 2))
            assert math.isclose(squares, squared, rel_tol=1e-5), f"the squared norm is {squared}, not {squares}"
            params = memory.from_host(to_host(out))
        assert _equal(params, expected), "stepper and apply make different steps"


def steps_in_this_memory_are_those_of_host_memory(update: Update, memory: Memory) -> None:
    """Steps with vectors in another memory, and a state that was saved in host memory, give the same up to rounding."""
    for dtype in DTYPES:
        middle = _run(update, dtype, range(5), HOST)
        state = copies(update.state())
        expected = _continue(update, middle, dtype, range(5, 10))
        tolerance = 1e3 * np.finfo(dtype).eps
        update.start(_params(dtype, memory))
        update.restore(state)
        for moved in (
            _continue(update, memory.from_host(middle), dtype, range(5, 10)),
            _run(update, dtype, range(10), memory),
        ):
            np.testing.assert_allclose(to_host(moved), expected, rtol=tolerance, atol=tolerance)


def momentum_is_a_fraction(update: Update) -> None:
    """``momentum_factor`` is at least 0 and below 1."""
    assert 0 <= update.momentum_factor < 1, f"momentum_factor is {update.momentum_factor}"


def a_plain_update_makes_plain_steps(update: Update) -> None:
    """With ``is_plain`` every step is x − γ·g: methods then add their own momentum."""
    if not update.is_plain:
        return
    params = _params(np.float64)
    update.start(params)
    for number in range(3):
        direction, out = _direction(np.float64, number), np.empty(SIZE)
        update.apply(params, direction, STEPSIZE, out)
        same = np.allclose(out, params - STEPSIZE * direction, rtol=1e-12)
        assert same, f"step {number + 1} is not x − γ·g, but is_plain is True"


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
    a_plain_update_makes_plain_steps,
    config_describes_the_update,
]
"""Checks of an update."""
UPDATE_MEMORY_CHECKS: list[Callable[[Update, Memory], None]] = [
    steps_in_this_memory_are_those_of_host_memory,
    a_step_writes_all_of_out_and_nothing_else,
    start_makes_all_state_anew,
    a_restored_update_goes_on_with_the_same_bits,
    a_bad_direction_changes_nothing,
    params_that_overflow_are_reported,
    a_checked_step_is_a_step,
]
"""Checks of an update with vectors in a memory, such as ``nowait.pytorch.TorchMemory("cpu")``."""


def _params(dtype: Any, memory: Memory = HOST) -> Vector:
    return _frozen(1.0 + sampler(1).sample(0, 0).uniforms(SIZE), dtype, memory)


def _direction(dtype: Any, number: int, memory: Memory = HOST) -> Vector:
    return _frozen(sampler(2).sample(0, number).normals(SIZE), dtype, memory)


def _frozen(values: Any, dtype: Any, memory: Memory) -> Vector:
    """Return a new vector, read-only if the memory has such vectors."""
    vector: Vector = memory.read_only(memory.from_host(np.array(values, dtype)))
    return vector


def _stepsize(params: Vector) -> Any:
    """Return the stepsize; for arrays of float32 as a scalar of this type."""
    return params.dtype.type(STEPSIZE) if params.dtype == np.float32 else STEPSIZE


def _equal(first: Vector, second: Vector) -> bool:
    return bool(np.array_equal(to_host(first), to_host(second)))


def _run(update: Update, dtype: Any, numbers: range, memory: Memory) -> Vector:
    """Start a new run, and return the params after steps along the directions with these numbers."""
    update.start(_params(dtype, memory))
    return _continue(update, _params(dtype, memory), dtype, numbers)


def _continue(update: Update, params: Vector, dtype: Any, numbers: range) -> Vector:
    for number in numbers:
        params = _step(update.apply, params, _direction(dtype, number, memory_of(params)))
    return params


def _step(apply: Callable[..., Any], params: Vector, direction: Vector) -> Vector:
    out: Vector = namespace_of(params).full_like(params, math.nan)
    apply(params, direction, _stepsize(params), out)
    return out
