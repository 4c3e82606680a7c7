"""Passes over large vectors: the same bits for every number of threads."""

import itertools
import math
import os
import threading
import warnings

import numpy as np
import pytest

from nowait.numerics import kernels, vectors
from nowait.numerics.chunks import LARGE, LONGEST_CHUNK, MOST_CHUNKS, SHORTEST_CHUNK, chunk_size, chunks_of
from nowait.numerics.elementary import added
from nowait.numerics.parallel import ThreadPool, in_chunks, using_threads

THREADS = (1, 2, 3, 7, 16)
SIZE = LARGE + 3
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def normals(count, size, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal((count, size), dtype=np.float32).astype(dtype)


def helpers():
    return [thread for thread in threading.enumerate() if thread.name == "nowait-server"]


# Chunks


@pytest.mark.parametrize("size", [LARGE, LARGE + 1, MOST_CHUNKS * SHORTEST_CHUNK + 1, 10**7, 10**8, 10**9 + 7])
def test_the_chunks_of_a_large_vector_cover_it_in_order(size):
    chunks = chunks_of(size)
    assert chunks[0].start == 0
    assert chunks[-1].stop == size
    assert all(one.stop == next_one.start for one, next_one in itertools.pairwise(chunks))
    assert all(chunk.start * np.float32().itemsize % 64 == 0 for chunk in chunks)
    assert SHORTEST_CHUNK <= chunk_size(size) <= LONGEST_CHUNK < LARGE
    assert len(chunks) <= MOST_CHUNKS or chunk_size(size) == LONGEST_CHUNK


@pytest.mark.parametrize("size", [1, 16, LARGE - 1])
def test_a_small_vector_is_one_chunk(size):
    assert chunks_of(size) == (slice(0, size),)


def test_an_empty_vector_has_no_chunks():
    empty = np.empty(0)
    with using_threads(2):
        assert (vectors.squared_norm(empty), vectors.is_finite(empty)) == (0.0, True)
    assert chunks_of(0) == ()


# Sums


@DTYPES
def test_the_squared_norm_of_a_large_vector_is_the_sum_over_its_chunks_in_order(dtype):
    [vector] = normals(1, SIZE, dtype)
    expected = added(kernels.squared_norm(vector[chunk]) for chunk in chunks_of(SIZE))
    assert kernels.squared_norm(vector) == expected
    assert kernels.squared_norm(vector) != kernels.inner(vector, vector)  # otherwise these data would show nothing
    for threads in THREADS:
        with using_threads(threads):
            assert vectors.squared_norm(vector) == expected


def test_the_squared_norm_of_a_vector_just_below_the_limit_is_one_sum():
    [vector] = normals(1, LARGE - 1, np.float64)
    with using_threads(2):
        assert vectors.squared_norm(vector) == kernels.inner(vector, vector)


# Steps


@DTYPES
def test_a_step_has_the_same_bits_with_any_number_of_threads(dtype):
    params, direction = normals(2, SIZE, dtype)
    params.flags.writeable = False
    stepsize = dtype(0.3)
    expected = params - stepsize * direction
    norm = kernels.squared_norm(direction)
    whole = np.empty_like(params)
    assert kernels.sgd_step(params, direction, stepsize, whole) == (norm, 0.0)
    assert np.array_equal(whole, expected)
    for threads in THREADS:
        out = np.zeros_like(params)
        with using_threads(threads):
            assert vectors.sgd_step(params, direction, stepsize, out) == (norm, 0.0)
        assert np.array_equal(out, expected)


def test_a_step_along_every_second_entry_of_a_large_array():
    params, direction = normals(1, SIZE, np.float64)[0], normals(1, 2 * SIZE, np.float64)[0, ::2]
    out = np.empty(SIZE)
    with using_threads(3):
        assert vectors.sgd_step(params, direction, 0.3, out)[0] == kernels.squared_norm(direction.copy())
    assert np.array_equal(out, params - 0.3 * direction)


@pytest.mark.parametrize("place", [0, chunk_size(SIZE), SIZE - 1])
def test_every_chunk_is_checked_for_numbers_that_are_not_finite(place):
    params = np.zeros(SIZE)
    params[place] = math.inf
    with using_threads(2):
        assert math.isnan(vectors.sgd_step(params, np.ones(SIZE), 0.1, np.empty(SIZE))[1])
        assert not vectors.is_finite(params)
        assert vectors.squared_norm(params) == math.inf
        params[place] = 1.0
        assert vectors.is_finite(params)


@DTYPES
def test_sums_and_averages_have_the_same_bits_with_any_number_of_threads(dtype):
    first, second = normals(2, SIZE, dtype)
    weight = dtype(0.3)
    for threads in THREADS:
        added_up, mean, scaled, cleared = second.copy(), second.astype(float), np.empty_like(first), first.copy()
        with using_threads(threads):
            vectors.add_scaled(added_up, first, weight)
            vectors.move_towards(mean, first, 0.3)
            vectors.scale_into(first, 0.3, scaled)
            vectors.set_to_zero(cleared)
        assert np.array_equal(added_up, second + weight * first)
        assert np.array_equal(mean, second.astype(float) + 0.3 * (first.astype(float) - second.astype(float)))
        assert np.array_equal(scaled, first * weight)
        assert not cleared.any()


# Updates with state, against numpy: every operation is rounded by itself


def adam_in_numpy(direction, mean, square, betas):
    mean *= betas[0]
    mean += direction * (1 - betas[0])
    square *= betas[1]
    square += direction * direction * (1 - betas[1])


@DTYPES
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("size", [37, SIZE])
def test_momentum_has_the_bits_of_numpy(size, nesterov, dtype):
    params, direction, momentum = normals(3, size, dtype)
    step = vectors.nesterov_step if nesterov else vectors.momentum_step
    expected = momentum * 0.9 + direction
    way = expected * 0.9 + direction if nesterov else expected
    for threads in (1, 3) if size == SIZE else (1,):
        state, out = momentum.copy(), np.empty_like(params)
        with using_threads(threads):
            assert step(params, direction, state, out, beta=0.9, stepsize=0.01) == 0.0
        assert np.array_equal(state, expected)
        assert np.array_equal(out, params - way * 0.01)


@DTYPES
@pytest.mark.parametrize("size", [37, SIZE])
def test_adam_has_the_bits_of_numpy(size, dtype):
    params, direction, start = normals(3, size, dtype)
    betas, start_square = (0.9, 0.999), start * start
    mean, square = start.copy(), start_square.copy()
    adam_in_numpy(direction, mean, square, betas)
    expected = params - mean / (np.sqrt(square / 0.19) + 1e-8) * 0.01
    for threads in (1, 3) if size == SIZE else (1,):
        means, squares, out = start.copy(), start_square.copy(), np.empty_like(params)
        settings = {"betas": betas, "epsilon": 1e-8, "stepsize": 0.01, "square_bias": 0.19}
        with using_threads(threads):
            assert vectors.adam_step(params, direction, means, squares, out, **settings) == 0.0
        assert np.array_equal(means, mean)
        assert np.array_equal(squares, square)
        assert np.array_equal(out, expected)


@DTYPES
@pytest.mark.parametrize("size", [37, SIZE])
def test_amsgrad_has_the_bits_of_numpy(size, dtype):
    params, direction, start, before = normals(4, size, dtype)
    betas, start_square, before = (0.9, 0.99), start * start, np.abs(before)
    mean, square = start.copy(), start_square.copy()
    adam_in_numpy(direction, mean, square, betas)
    largest = np.maximum(before, square)
    expected = params - mean / (np.sqrt(largest) + 1e-8) * 0.01
    for threads in (1, 3) if size == SIZE else (1,):
        means, squares, highest, out = start.copy(), start_square.copy(), before.copy(), np.empty_like(params)
        settings = {"betas": betas, "epsilon": 1e-8, "stepsize": 0.01}
        with using_threads(threads):
            assert vectors.amsgrad_step(params, direction, means, squares, highest, out, **settings) == 0.0
        assert np.array_equal(squares, square)
        assert np.array_equal(highest, largest)
        assert np.array_equal(out, expected)


def test_updates_divide_by_zero_and_pass_nan_on_as_numpy_does():
    zeros = np.zeros(3)
    settings = {"betas": (0.9, 0.99), "epsilon": 0.0, "stepsize": 0.01}
    state = [np.zeros(3) for _ in range(3)]
    out = np.empty(3)
    assert math.isnan(vectors.adam_step(zeros, zeros, *state[:2], out, **settings, square_bias=0.1))
    assert np.isnan(out).all()
    for largest, square in ((math.nan, 1.0), (1.0, math.nan), (math.nan, math.nan)):
        state = [np.zeros(3), np.full(3, square), np.full(3, largest)]
        assert math.isnan(vectors.amsgrad_step(zeros, zeros, *state, out, **settings))
        assert np.isnan(state[2]).all()


# Threads


def test_threads_start_at_the_first_pass_over_a_large_vector_and_end_with_the_block():
    with using_threads(3):
        vectors.squared_norm(np.ones(LARGE - 1))
        assert helpers() == []
        vectors.squared_norm(np.ones(LARGE))
        assert len(helpers()) == 2
        vectors.squared_norm(np.ones(LARGE))
        assert len(helpers()) == 2
    assert helpers() == []


def test_without_a_block_the_calling_thread_does_all():
    threads = in_chunks(lambda chunk: threading.current_thread(), np.ones(LARGE))
    assert set(threads) == {threading.current_thread()}
    assert len(threads) == len(chunks_of(LARGE))


def test_all_threads_work_at_the_same_time():
    barrier = threading.Barrier(3, timeout=60)
    pool = ThreadPool(3)
    assert sorted(pool.map(lambda number: (barrier.wait(), number)[1], 3)) == [0, 1, 2]
    pool.close()


def test_there_are_no_more_threads_than_chunks():
    pool = ThreadPool(1_000_000)
    assert pool.map(lambda number: number * number, 4) == [0, 1, 4, 9]
    assert len(helpers()) == 3
    pool.close()


def test_the_error_of_a_helper_reaches_the_caller_after_all_threads_are_done():
    barrier = threading.Barrier(2, timeout=60)
    caller, finished = threading.current_thread(), []

    def fail(number):
        barrier.wait()
        if threading.current_thread() is not caller:
            raise ValueError("in a helper")
        finished.append(number)

    pool = ThreadPool(2)
    with pytest.raises(ValueError, match="in a helper"):
        pool.map(fail, 2)
    assert len(finished) == 1
    assert pool.map(lambda number: number, 2) == [0, 1]
    pool.close()


def test_numpy_does_not_warn_in_helpers():
    with using_threads(2), np.errstate(over="ignore"):
        in_chunks(lambda chunk: chunk * 1e300, np.full(LARGE, 1e300))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_makes_passes_with_threads_of_its_own():
    vector = np.ones(LARGE)
    with using_threads(3), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on: the process has threads
        vectors.squared_norm(vector)
        child = os.fork()
        if child == 0:
            right = vectors.squared_norm(vector) == float(LARGE) and len(helpers()) == 2
            os._exit(0 if right else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert vectors.squared_norm(vector) == float(LARGE)


def test_passes_go_on_with_the_threads_that_the_system_allows(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    vector = np.ones(SIZE)
    with using_threads(4):
        monkeypatch.setattr(threading.Thread, "start", start)
        assert vectors.squared_norm(vector) == SIZE
