"""The contract of an output rule, as checks that run on any rule. Each raises ``AssertionError``.

@pytest.mark.parametrize("check", OUTPUT_CHECKS, ids=lambda check: check.__name__)
def test_my_output(check):
    check(MyOutput())
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from nowait.core import Output, sampler
from nowait.core.memory import HOST, Memory, to_host
from nowait.core.outputs import Uses
from nowait.core.randomness import CounterRandom
from nowait.core.state import copies
from nowait.core.types import Vector
from nowait.recording import describe

SIZE = 5
STEPS = 30
DTYPES: tuple[Any, ...] = (np.float64, np.float32)


def the_answer_is_like_params(output: Output, memory: Memory = HOST) -> None:
    """The answer has the shape of params, and is finite."""
    for dtype in DTYPES:
        answer = _answer(output, dtype, memory)
        assert answer.shape == (SIZE,), f"the answer has shape {answer.shape}, params have {(SIZE,)}"
        assert np.isfinite(answer).all(), "the answer is not finite"


def without_a_step_the_answer_is_the_start(output: Output) -> None:
    """A run that made no step returns its initial params."""
    for dtype in DTYPES:
        start = _iterate(dtype, 0)
        output.start(start, _random())
        assert np.array_equal(output.result(start), start), "without a step the answer must be the initial params"


def equal_iterates_are_the_answer(output: Output) -> None:
    """Weights sum to 1: a run whose iterates are all equal returns that iterate."""
    point = _iterate(np.float64, 3)
    output.start(point, _random())
    for number in range(1, STEPS):
        output.on_iterate(point)
        output.on_gradient(point, *_weight(number))
    np.testing.assert_allclose(output.result(point), point, rtol=1e-12, err_msg="the weights do not sum to 1")


def start_makes_all_state_anew(output: Output) -> None:
    """A second run of the same object gives the same bits."""
    for dtype in DTYPES:
        first, second = (_answer(output, dtype) for _ in range(2))
        assert np.array_equal(first, second), "a second run differs: start must make all state anew"


def points_are_copied_and_not_written(output: Output, memory: Memory = HOST) -> None:
    """Params are read-only, and their memory is reused by later steps."""
    for dtype in DTYPES:
        expected = _answer(output, dtype, memory)
        params = memory.from_host(_iterate(dtype, 0))
        view = memory.read_only(params)
        output.start(view, _random())
        for number in range(1, STEPS):
            memory.write(_iterate(dtype, number), params)
            output.on_iterate(view)
            output.on_gradient(view, *_weight(number))
            assert np.array_equal(to_host(params), _iterate(dtype, number)), "the output wrote to params"
            params[:] = math.nan
        answer = _result(output, dtype, memory)
        assert np.array_equal(answer, expected), "the output kept params without a copy: their memory is reused"


def a_restored_output_goes_on_with_the_same_bits(output: Output, memory: Memory = HOST) -> None:
    """``state`` returns numbers and vectors, from which ``restore`` continues as if nothing had happened."""
    for dtype in DTYPES:
        expected, last = _answer(output, dtype, memory), copies(output.state())
        output.start(_iterate(dtype, 0, memory), _random())
        _feed(output, dtype, range(1, STEPS // 2), memory)
        state = copies(output.state())
        bad = [name for name, value in state.items() if not isinstance(value, int | float | np.generic | np.ndarray)]
        assert not bad, f"state() must hold numbers and vectors, but {bad} cannot be written to a checkpoint"
        output.start(_iterate(dtype, 0, memory), _random())
        output.restore(state)
        _feed(output, dtype, range(STEPS // 2, STEPS), memory)
        answer = _result(output, dtype, memory)
        assert np.array_equal(answer, expected), "a restored output gives another answer: its state is incomplete"
        again = copies(output.state())
        different = [name for name in last if not np.array_equal(again[name], last[name])]
        assert not different, f"after a restore the run ends with another state: {different}"


def gradients_without_weight_do_not_count(output: Output) -> None:
    """A gradient that was used with a stepsize of 0 does not change the answer."""
    expected = _answer(output, np.float64)
    output.start(_iterate(np.float64, 0), _random())
    for number in range(1, STEPS):
        _feed(output, np.float64, range(number, number + 1))
        output.on_gradient(np.full(SIZE, 1e6), 0.0, _weight(number)[1])
    answer = output.result(_iterate(np.float64, STEPS))
    assert np.array_equal(answer, expected), "a gradient with a stepsize of 0 changed the answer"


def shares_are_the_answer(output: Output) -> None:
    """``shares``, which compiled runs use, give the same answer as ``on_iterate`` and ``on_gradient``."""
    numbers = np.arange(1, STEPS)
    weights = [_weight(number) for number in numbers.tolist()]
    stepsizes, sums = (np.array(column) for column in zip(*weights, strict=True))
    shares = output.shares(Uses(numbers, stepsizes, sums, STEPS), _random())
    if shares is None:
        return
    assert len(shares) == STEPS + 1, f"shares must be those of x_0 … x_K, {STEPS + 1} of them, got {len(shares)}"
    assert math.isclose(float(np.sum(shares)), 1.0, rel_tol=1e-9), f"shares sum to {np.sum(shares)}, not to 1"
    _run(output, np.float64)
    output.on_iterate(_iterate(np.float64, STEPS))
    answer = output.result(_iterate(np.float64, STEPS))
    iterates = np.array([_iterate(np.float64, number) for number in range(STEPS + 1)])
    np.testing.assert_allclose(shares @ iterates, answer, rtol=1e-9, err_msg="shares make another answer")


def answers_in_this_memory_are_those_of_host_memory(output: Output, memory: Memory) -> None:
    """With vectors in another memory, and a state that was saved in host memory, the answer is the same."""
    for dtype in DTYPES:
        expected = _answer(output, dtype)
        np.testing.assert_allclose(_answer(output, dtype, memory), expected, rtol=1e-12)
        output.start(_iterate(dtype, 0), _random())
        _feed(output, dtype, range(1, STEPS // 2))
        state = copies(output.state())
        output.start(_iterate(dtype, 0, memory), _random())
        output.restore(state)
        _feed(output, dtype, range(STEPS // 2, STEPS), memory)
        answer = _result(output, dtype, memory)
        np.testing.assert_allclose(answer, expected, rtol=1e-12)


def config_describes_the_output(output: Output) -> None:
    """Its description for ``config.json`` is valid JSON and contains the class name."""
    described = json.loads(json.dumps(describe(output)))
    assert described.get("type") == type(output).__name__, f"config.json would call it {described.get('type')!r}"


OUTPUT_CHECKS: list[Callable[[Output], None]] = [
    the_answer_is_like_params,
    without_a_step_the_answer_is_the_start,
    equal_iterates_are_the_answer,
    start_makes_all_state_anew,
    points_are_copied_and_not_written,
    a_restored_output_goes_on_with_the_same_bits,
    gradients_without_weight_do_not_count,
    shares_are_the_answer,
    config_describes_the_output,
]
"""Checks of an output rule."""
OUTPUT_MEMORY_CHECKS: list[Callable[[Output, Memory], None]] = [
    answers_in_this_memory_are_those_of_host_memory,
    the_answer_is_like_params,
    points_are_copied_and_not_written,
    a_restored_output_goes_on_with_the_same_bits,
]
"""Checks of an output with vectors in a memory, such as ``nowait.pytorch.TorchMemory("cpu")``."""


def _random() -> CounterRandom:
    return CounterRandom(4, "output")


def _iterate(dtype: Any, number: int, memory: Memory = HOST) -> Vector:
    """Return iterate number k of an imaginary run, as a new vector, read-only if the memory has such vectors."""
    values = (1.0 + sampler(3).sample(0, number).uniforms(SIZE)).astype(dtype)
    iterate: Vector = memory.read_only(memory.from_host(values))
    return iterate


def _weight(number: int) -> tuple[float, float]:
    """Return the stepsize of the gradient at iterate k, and the sum of the stepsizes up to it."""
    return 0.1 + 0.01 * (number % 7), 0.1 * number


def _feed(output: Output, dtype: Any, numbers: range, memory: Memory = HOST) -> None:
    for number in numbers:
        output.on_iterate(_iterate(dtype, number, memory))
        output.on_gradient(_iterate(dtype, number, memory), *_weight(number))


def _run(output: Output, dtype: Any, memory: Memory = HOST) -> None:
    output.start(_iterate(dtype, 0, memory), _random())
    _feed(output, dtype, range(1, STEPS), memory)


def _answer(output: Output, dtype: Any, memory: Memory = HOST) -> Vector:
    """Return a copy of the answer of a whole run."""
    _run(output, dtype, memory)
    return _result(output, dtype, memory)


def _result(output: Output, dtype: Any, memory: Memory) -> Vector:
    answer = output.result(_iterate(dtype, STEPS, memory))
    return np.array(answer) if memory is HOST else memory.copy_to_host(answer)
