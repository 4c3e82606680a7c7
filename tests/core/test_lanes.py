"""Sums whose order is written down, and draws that are compiled: the same bits as in Python."""

import numpy as np
import pytest
from numba import njit

from nowait.core.randomness import Stream, child, many_normals, mix, sampler, unit
from nowait.numerics import random_kernels as compiled
from nowait.numerics.elementary import exp, log, power
from nowait.numerics.lanes import LANES, dot, dot_of_rows, step_and_dot
from nowait.problems.kernels import draw, draw_row
from nowait.speeds import Communication, Exponential, Fixed, LogNormal, Pareto
from nowait.speeds.kernels import finish_of, seconds_of


@njit
def call_dot(first, second):
    return dot(first, second)


@njit
def call_dot_of_rows(first, row, second, second_row):
    return dot_of_rows(first, row, second, second_row)


@njit
def call_step_and_dot(points, run, features, rows, slope, stepsize):
    return step_and_dot(points, run, features, rows[0], rows[1], slope, stepsize)


def dot_in_python(first, second):
    lanes, rest = np.zeros(LANES), 0.0
    whole = len(first) - len(first) % LANES
    for start in range(0, whole, LANES):
        lanes += first[start : start + LANES].astype(float) * second[start : start + LANES].astype(float)
    for place in range(whole, len(first)):
        rest += float(first[place]) * float(second[place])
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return lanes[0] + rest


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 31, 32, 33, 100, 400])
@pytest.mark.parametrize("kinds", [(float, float), (np.float32, np.float32), (np.float32, float)])
def test_the_order_of_a_dot_product_is_that_of_sixteen_lanes(size, kinds):
    random = np.random.default_rng(size)
    first, second = random.normal(size=(3, size)).astype(kinds[0]), random.normal(size=(2, size)).astype(kinds[1])
    assert call_dot(first[0], second[0]) == dot_in_python(first[0], second[0])
    assert call_dot_of_rows(first, 2, second, 1) == dot_in_python(first[2], second[1])


@pytest.mark.parametrize("size", [1, 15, 16, 17, 100])
def test_a_step_and_a_dot_product_in_one_pass(size):
    random = np.random.default_rng(size)
    points, features = random.normal(size=(2, size)), random.normal(size=(4, size))
    expected = points[1] - 0.3 * (1.7 * features[2])
    untouched = points[0].copy()
    result = call_step_and_dot(points, 1, features, (2, 3), 1.7, 0.3)
    assert np.array_equal(points[1], expected)
    assert np.array_equal(points[0], untouched)
    assert result == dot_in_python(features[3], expected)


def test_compiled_draws_are_those_of_python():
    stream = Stream(7, "speed")
    key = np.uint64(stream.own_key)
    for worker, job in [(0, 0), (3, 0), (3, 12), (10**6, 10**6)]:
        ticket = stream.key(worker, job)
        assert int(compiled.ticket_key(key, worker, job)) == ticket
        assert int(compiled.child(np.uint64(ticket), 5)) == child(ticket, 5)
        assert compiled.unit(np.uint64(ticket)) == unit(ticket)
        normal = compiled.normal(np.uint64(child(ticket, 0)), np.uint64(child(ticket, 1)))
        assert normal == stream.normal(worker, job)
    assert int(compiled.mix(np.uint64(12345))) == mix(12345)


def test_normals_are_the_same_compiled_and_not():
    sample = sampler(3).sample(worker=4, job=9)
    assert sample.normals(100).tolist() == many_normals(sample.key, 100).tolist()


def test_compiled_rows_are_those_of_a_sample():
    sample = sampler(3).sample(worker=4, job=9)
    order, starts = np.empty(0, np.int64), np.array([0, 1000])
    rows = [draw_row(order, starts, np.uint64(sample.key), 4, number) for number in range(20)]
    assert rows == sample.indices(1000, 20).tolist()
    assert draw(np.uint64(sample.key), np.uint64(1000), 20).tolist() == rows
    shuffled, starts = np.random.default_rng(0).permutation(1000), np.array([0, 300, 1000])
    rows = [draw_row(shuffled, starts, np.uint64(sample.key), 5, number) for number in range(20)]
    assert rows == shuffled[300 + sample.indices(700, 20)].tolist()


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [
        (Fixed([2.0, 3.0]), lambda stream, worker, job: [2.0, 3.0][worker % 2]),
        (
            Exponential([2.0, 3.0]),
            lambda stream, worker, job: -[2.0, 3.0][worker % 2] * log(stream.uniform(worker, job)),
        ),
        (
            LogNormal([2.0, 2.0], sigma=[0.5, 1.5]),
            lambda stream, worker, job: 2.0 * exp([0.5, 1.5][worker % 2] * stream.normal(worker, job)),
        ),
        (
            Pareto(2.0, shape=1.5, workers=2),
            lambda stream, worker, job: 2.0 * power(stream.uniform(worker, job), -1 / 1.5),
        ),
    ],
    ids=["fixed", "exponential", "lognormal", "pareto"],
)
def test_durations_follow_their_formula(speeds, expected):
    stream, formula, timing = Stream(5, "speed"), speeds.formula(5), speeds.timing(5)
    around = Communication(speeds, down=0.25, up=[0.5, 1.0])
    for worker, job in [(0, 0), (1, 0), (0, 1), (1, 7), (0, 300), (5, 3), (0, 2)]:
        seconds = expected(stream, worker, job)
        assert seconds_of(formula, worker, job) == seconds
        took, finish = timing(worker, job, 10.0)
        assert took == seconds_of(formula, worker, job)
        assert finish == 10.0 + took
        assert around.timing(5)(worker, job, 10.0)[1] == finish_of(around.formula(5), worker, took, 10.0)
