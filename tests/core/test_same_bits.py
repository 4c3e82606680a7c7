"""The same numbers wherever arrays are in memory, and whichever processor they are compiled for."""

import math
import os
import subprocess
import sys
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pytest
from numba import njit

import golden_traces
from compiled_code import depends_on_the_processor
from nowait.core.types import norm
from nowait.numerics import elementary, elementary_kernels
from nowait.numerics.kernels import add_scaled, inner, move_towards, sgd_step, squared_norm, sum_of
from nowait.numerics.lanes import LANES, LANES_OF_EIGHT
from nowait.problems.full_kernels import dense_margins
from nowait.problems.kernels import batch_gradient, margins_of_eight, row_gradient

TESTS = Path(__file__).parents[1]
OFFSETS = range(17)
SIZES = (3, 16, 37)


def sum_in_lanes(terms, lanes=LANES):
    """The written order, in plain numpy: one addition at a time."""
    whole = len(terms) - len(terms) % lanes
    sums, rest = np.zeros(lanes), 0.0
    for start in range(0, whole, lanes):
        sums = sums + terms[start : start + lanes]
    for term in terms[whole:].tolist():
        rest += term
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    return float(sums[0]) + rest


def placed(values, offset):
    """A copy of an array that begins this many entries after a multiple of 64 bytes."""
    room = np.empty(values.size + 64, values.dtype)
    start = (-room.ctypes.data // values.itemsize) % (64 // values.itemsize) + offset
    copy = room[start : start + values.size].reshape(values.shape)
    copy[...] = values
    return copy


def normals(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("size", SIZES)
def test_a_step_has_the_same_bits_wherever_its_arrays_are(size, dtype):
    params, direction = normals(2, size).astype(dtype)
    stepsize = dtype(0.3)
    expected = params - stepsize * direction
    squares = sum_in_lanes(direction.astype(float) * direction.astype(float))
    for first in OFFSETS:
        for second in (0, 1, 5, first):
            out = placed(np.zeros(size, dtype), (first + second) % 9)
            result = sgd_step(placed(params, first), placed(direction, second), stepsize, out)
            assert np.array_equal(out, expected)
            assert result == (squares, 0.0)
    assert squared_norm(direction) == squares


def test_a_step_may_overwrite_its_params_and_lie_close_to_its_direction():
    params, direction = normals(2, 37)
    for distance in range(17):
        room = np.zeros(37 + 37 + distance)
        point, way = room[:37], room[37 + distance :]
        point[:], way[:] = params, direction
        result = sgd_step(point, way, 0.3, point)
        assert np.array_equal(point, params - 0.3 * direction)
        assert result == (squared_norm(direction), 0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 15, 16, 36])
def test_a_step_tells_of_params_that_are_not_finite(bad, place):
    params = np.zeros(37)
    params[place] = bad
    assert math.isnan(sgd_step(params, np.ones(37), 0.1, np.empty(37))[1])


def test_a_step_along_every_second_entry_of_an_array():
    params, direction = normals(37), normals(74)[::2]
    out = np.empty(37)
    assert sgd_step(params, direction, 0.3, out)[0] == squared_norm(direction) == squared_norm(direction.copy())
    assert np.array_equal(out, params - 0.3 * direction)


@pytest.mark.parametrize("size", SIZES)
def test_sums_have_the_same_bits_wherever_their_arrays_are(size):
    first, second = normals(2, size)
    for offset in OFFSETS:
        one, other = placed(first, offset), placed(second, offset * 5 % 7)
        assert inner(one, other) == sum_in_lanes(first * second)
        assert sum_of(one) == sum_in_lanes(first)
        assert norm(one) == np.abs(first).max() * math.sqrt(sum_in_lanes((first / np.abs(first).max()) ** 2))
        moved, added = other.copy(), other.copy()
        move_towards(moved, one, 0.3)
        add_scaled(added, one, 0.3)
        assert np.array_equal(moved, second + 0.3 * (first - second))
        assert np.array_equal(added, second + 0.3 * first)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("size", SIZES)
def test_margins_of_eight_rows_are_added_up_in_four_lanes_wherever_they_are(size, dtype):
    features, point = normals(11, size).astype(dtype), normals(size, seed=1).astype(dtype)
    rows = np.array([0, 3, 3, 10, 1, 2, 9, 4, 5, 6])
    terms = features[rows[1:9]].astype(float) * point.astype(float)
    expected = [sum_in_lanes(row, LANES_OF_EIGHT) for row in terms]
    for offset in OFFSETS:
        margins = np.zeros(10)
        margins_of_eight(placed(features, offset), rows, 1, placed(point, offset * 3 % 5), margins)
        assert margins.tolist() == [0.0, *expected, 0.0]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("size", SIZES)
def test_margins_of_several_points_are_added_up_like_those_of_one(size, dtype):
    features, points = normals(11, size).astype(dtype), normals(5, size, seed=1).astype(dtype)
    rows = np.array([0, 3, 3, 10, 1, 2, 9, 4, 5])
    for offset in OFFSETS:
        together, alone = np.zeros((5, 9)), np.zeros((5, 9))
        dense_margins(placed(features, offset), rows, placed(points, offset * 3 % 5), together)
        for place, point in enumerate(points):
            dense_margins(features, rows, point[None].copy(), alone[place : place + 1])
        assert np.array_equal(together, alone)


@pytest.mark.parametrize("size", SIZES)
def test_gradients_have_the_same_bits_wherever_their_arrays_are(size):
    features, targets, point = normals(20, size), normals(20, seed=1), normals(size, seed=2)
    rows = np.arange(19)
    plain = np.empty(size)
    batch_gradient(1, features, np.sign(targets), rows, point, plain)
    single = features[7] * (sum_in_lanes(features[7] * point) - targets[7])
    for offset in OFFSETS:
        data, x = placed(features, offset), placed(point, (3 * offset) % 8)
        out, one = placed(np.zeros(size), offset % 5), placed(np.zeros(size), offset % 7)
        batch_gradient(1, data, np.sign(targets), rows, x, out)
        row_gradient(0, data, targets, 7, x, one)
        assert np.array_equal(out, plain)
        assert np.array_equal(one, single)


# Elementary functions


@njit
def compiled_values(x, unit):
    values = np.empty((5, x.size))
    for i in range(x.size):
        values[0, i] = elementary_kernels.exp(x[i])
        values[1, i] = elementary_kernels.log(unit[i])
        values[2, i] = elementary_kernels.log1p_of_share(unit[i])
        values[3, i] = elementary_kernels.cos_of_turns(unit[i])
        values[4, i] = elementary_kernels.power(unit[i], -1 / 1.7)
    return values


ODD = [0.0, -0.0, -1.0, math.inf, -math.inf, math.nan, 5e-324, 1e-310, 2.0**-1022, 1.7e308, -745.0, -746.5, 709.7]


def test_elementary_functions_have_the_same_bits_in_python_in_numpy_and_compiled():
    random = np.random.default_rng(0)
    x, unit = random.uniform(-745, 709, 500), random.random(500)
    compiled = compiled_values(x, unit)
    functions = (
        elementary.exp,
        elementary.log,
        elementary.log1p_of_share,
        elementary.cos_of_turns,
        lambda value: elementary.power(value, -1 / 1.7),
    )
    for values, function, arguments in zip(compiled, functions, (x, unit, unit, unit, unit), strict=True):
        assert [function(value) for value in arguments.tolist()] == values.tolist()
        if function is not elementary.log1p_of_share:
            assert function(arguments).tolist() == values.tolist()


@pytest.mark.parametrize("function", [elementary.exp, elementary.log])
def test_elementary_functions_at_their_limits(function):
    odd = np.array(ODD)
    compiled = compiled_values(odd, odd)[0 if function is elementary.exp else 1]
    assert np.array_equal(function(odd), compiled, equal_nan=True)
    assert np.array_equal([function(value) for value in ODD], compiled, equal_nan=True)
    with np.errstate(all="ignore"):
        assert np.allclose(compiled, getattr(np, function.__name__)(odd), equal_nan=True)


def ulps(value, exact):
    return abs(float((Decimal(value) - exact) / Decimal(math.ulp(float(exact)))))


def test_exp_log_and_power_are_right_to_about_the_last_digit():
    random = np.random.default_rng(1)
    with localcontext() as context:
        context.prec = 60
        for x in random.uniform(-100, 100, 300).tolist():
            assert ulps(elementary.exp(x), Decimal(x).exp()) < 1.0
            assert ulps(elementary.log(abs(x)), Decimal(abs(x)).ln()) < 1.0
            exact = (Decimal("-0.625") * Decimal(abs(x)).ln()).exp()
            assert ulps(elementary.power(abs(x), -0.625), exact) < 1.5
            share = abs(x) / 100
            assert ulps(elementary.log1p_of_share(share), (1 + Decimal(share)).ln()) < 1.0


def test_cosines_of_turns_are_right_to_about_the_last_digit():
    for degrees in range(0, 361, 3):
        assert elementary.cos_of_turns(degrees / 360) == pytest.approx(math.cos(math.radians(degrees)), abs=2e-15)
        assert elementary.sin_of_turns(degrees / 360) == pytest.approx(math.sin(math.radians(degrees)), abs=2e-15)
    assert [elementary.cos_of_turns(quarters / 4) for quarters in range(5)] == [1.0, 0.0, -1.0, 0.0, 1.0]


def test_whole_powers_are_products_in_a_fixed_order():
    assert elementary.integer_power(0.9, 7) == (0.9 * (0.9 * 0.9)) * ((0.9 * 0.9) * (0.9 * 0.9))
    assert elementary.integer_power(0.5, -3) == 8.0
    assert elementary.integer_power(0.5, np.array([0, 3, 1, 3])).tolist() == [1.0, 0.125, 0.5, 0.125]


# Whole runs


def golden(option, folder, **environment):
    """What the golden script prints in a process of its own, with this folder as the cache of compiled code."""
    paths = {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, str(TESTS / "golden.py"), option]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | paths | environment, check=False)
    return result.stdout or result.stderr


@pytest.mark.timeout(900)
def test_runs_record_the_same_bits_compiled_for_any_processor(tmp_path):
    """``generic`` has neither fused multiplications nor long vectors. The process also looks at the compiled code."""
    assert golden("--look", tmp_path, NUMBA_CPU_NAME="generic") == "OK\n"


@pytest.mark.timeout(600)
def test_runs_record_the_same_bits_compiled_for_this_processor():
    """The cache is warm, if another process has compiled the kernels, as in CI (``make warm-kernels``)."""
    assert golden_traces.differing() == []


@pytest.mark.parametrize(
    "line",
    [
        "%.5 = fadd reassoc double %.3, %.4",
        "%.5 = fmul fast <4 x double> %.3, %.4",
        "%.5 = tail call double @llvm.fmuladd.f64(double %.1, double %.2, double %.3)",
        "%.5 = call double @exp(double %.4)",
        "%.5 = call <4 x double> @llvm.cos.v4f64(<4 x double> %.4)",
    ],
)
def test_the_look_at_compiled_code_finds_arithmetic_that_depends_on_the_processor(line):
    assert depends_on_the_processor(f"define double @expected() {{\n  {line}\n  ret double %.5\n}}") == [line]


def test_floats_are_added_one_after_the_other():
    """``sum`` compensates for rounding from Python 3.12 on, so runs would differ between versions of Python."""
    assert elementary.added([1e16, 1.0, -1e16]) == 0.0
    assert elementary.added([0.1] * 10) == 0.9999999999999999
    assert elementary.added([0.5], 2.0) == 2.5
