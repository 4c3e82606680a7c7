"""Encodings of vectors, and the problem wrapper that rounds to them."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nowait as nw
from nowait.core import sampler
from nowait.core.capabilities import Capabilities
from nowait.numerics.compiled import encoding_kernels as kernels
from nowait.problems import Compressed, Encoded, LocalSteps, RandomK, Sign, TopK
from nowait.problems.encodings import FORMATS, Encodings, checked_encoding, codec_of

DTYPES = (np.float32, np.float64)
WIRES = ("float32", "float16", "bfloat16", "int8", "topk:3", "topk:0.2")
SAMPLE = sampler(0).sample(0, 0)


def vectors(dtype, *, finite=True):
    """Vectors of any length; many entries are special."""
    limits = np.finfo(dtype)
    special = [0.0, -0.0, 1.0, -1.0, 65504.0, 65520.0, 2.0**-24, 2.0**-25, 6e-5, 1e-45, float(limits.max)]
    special += [float(limits.tiny), float(limits.smallest_subnormal), -(2.0**-14), 2.0**-133, 3.4e38]
    special += [] if finite else [np.inf, -np.inf, np.nan]
    width = np.dtype(dtype).itemsize * 8
    some = st.floats(width=width, allow_nan=not finite, allow_infinity=not finite)
    with np.errstate(over="ignore"):
        kept = [number for number in map(dtype, special) if not finite or np.isfinite(number)]
    entries = some | st.sampled_from([float(number) for number in kept])
    return hnp.arrays(dtype, st.integers(1, 40), elements=entries)


def same_bits(first, second):
    return first.dtype == second.dtype and first.tobytes() == second.tobytes()


def sent(codec, vector):
    """The vector after it was encoded and decoded."""
    code = np.full(codec.num_bytes, 255, np.uint8)
    codec.encode(vector, code)
    out = np.full_like(vector, np.nan)
    codec.decode(code, out)
    return out


def rounded(encoding, vector, memory=None):
    """What a worker sends of a gradient, and its memory."""
    memory, out = np.zeros_like(vector) if memory is None else memory.copy(), np.empty_like(vector)
    with np.errstate(over="ignore", invalid="ignore"):
        Encoded(Fixed(vector), encoding).gradient_with_memory(vector, SAMPLE, memory, out)
    return out, memory


class Fixed:
    """A problem with one gradient."""

    def __init__(self, gradient, num_statistics=0):
        self.dimension, self._gradient, self.num_statistics = len(gradient), gradient, num_statistics

    def initial(self):
        return np.zeros_like(self._gradient)

    def gradient(self, point, sample):
        return self._gradient.copy()

    def loss(self, point):
        return 1.0


# Codecs


@pytest.mark.parametrize("encoding", WIRES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_worker_sends_arrives_with_the_same_bits(encoding, dtype):
    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(vectors(dtype), vectors(dtype))
    def check(vector, memory):
        memory = np.resize(memory, vector.shape)
        out, _ = rounded(encoding, vector, memory)
        codec = codec_of(encoding, len(vector), dtype)
        if codec is None:
            with np.errstate(over="ignore"):
                assert same_bits(out, vector + memory)
        elif np.isfinite(out).all():
            assert same_bits(sent(codec, out), out)
        else:
            assert not np.isfinite(sent(codec, out)).all()

    check()


@pytest.mark.parametrize("encoding", [*WIRES, "sign"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_vector_that_is_not_finite_arrives_not_finite(encoding, dtype):
    vector = np.linspace(-1, 1, 37).astype(dtype)
    for bad in (np.nan, np.inf, -np.inf):
        for place in (0, 36):
            vector[place] = bad
            codec = codec_of(encoding, len(vector), dtype)
            assert codec is None or not np.isfinite(sent(codec, vector)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_float16_has_the_bits_of_numpy(dtype):
    @settings(max_examples=50, deadline=None, derandomize=True)
    @given(vectors(dtype, finite=False))
    def check(vector):
        out, words = np.empty_like(vector), np.empty(len(vector), np.uint16)
        kernels().round_into(vector, out, FORMATS["float16"].rounding)
        kernels().to_words(out, words, FORMATS["float16"].to_words)
        with np.errstate(over="ignore"):
            expected = vector.astype(np.float16)
        beyond = np.isinf(expected) & np.isfinite(vector)
        expected[beyond] = np.copysign(np.float16(65504), vector[beyond].astype(np.float64))
        expected[np.isnan(expected)] = np.nan
        nan = np.isnan(vector)
        assert (words[~nan] == expected[~nan].view(np.uint16)).all()
        assert (words[nan] & 0x7FFF == 0x7E00).all()

    check()


@pytest.mark.parametrize(
    ("name", "dtype"), [("float32", np.float64), *itertools.product(("float16", "bfloat16"), DTYPES)]
)
def test_numbers_next_to_a_tie_are_rounded_once(name, dtype):
    """Also those of float64 that are a tie in float32."""
    low, tie, high = (numbers.astype(dtype) for numbers in neighbours(name))
    below, above = np.nextafter(tie, dtype(0)), np.nextafter(tie, dtype(np.inf))
    vector, expected = np.concatenate([low, below, above, high]), np.concatenate([low, low, high, high])
    codec = codec_of(name, len(vector), dtype)
    for sign in (dtype(1), dtype(-1)):
        out = np.empty_like(vector)
        kernels().round_into(sign * vector, out, FORMATS[name].rounding)
        assert same_bits(out, sign * expected)
        assert same_bits(sent(codec, sign * vector), sign * expected)


def neighbours(name):
    """Return numbers of a format, the ties above them, and the next numbers, in float64; also some below the normal."""
    if name == "float16":
        numbers = np.arange(0x7C00, dtype=np.uint16).view(np.float16)
    elif name == "bfloat16":
        numbers = (np.arange(0x7F80, dtype=np.uint32) << 16).view(np.float32)
    else:
        numbers = np.arange(0x7FF000, 0x801000, dtype=np.uint32).view(np.float32)
    low, high = numbers[:-1].astype(np.float64), numbers[1:].astype(np.float64)
    return low, (low + high) / 2, high


def test_ties_go_to_the_even_number():
    low, tie, high = neighbours("float16")
    out = np.empty_like(tie)
    kernels().round_into(tie, out, FORMATS["float16"].rounding)
    even = np.arange(len(tie)) % 2 == 0
    assert same_bits(out, np.where(even, low, high))


@pytest.mark.parametrize("encoding", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_point_arrives_as_the_problem_rounds_it(encoding, dtype):
    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(vectors(dtype))
    def check(point):
        codec = codec_of(encoding, len(point), dtype)
        near = Encoded(Fixed(point), points=encoding)._at(point)
        assert codec is None or same_bits(sent(codec, point), near)
        assert same_bits(Encoded(Fixed(near), points=encoding)._at(near), near), "rounding twice changes nothing"

    check()


def test_every_word_of_16_bits_is_a_number_that_is_written_as_this_word():
    words = np.arange(2**16, dtype=np.uint16)
    for name in ("float16", "bfloat16"):
        for dtype in DTYPES:
            values, again = np.empty(2**16, dtype), np.empty(2**16, np.uint16)
            kernels().from_words(words, values, FORMATS[name].from_words)
            kernels().to_words(values, again, FORMATS[name].to_words)
            number = ~np.isnan(values)
            assert (again[number] == words[number]).all()
            expected = words.view(np.float16) if name == "float16" else (words.astype(np.uint32) << 16).view(np.float32)
            assert same_bits(values[number], expected[number].astype(dtype))


def test_bfloat16_is_the_nearest_number_with_eight_bits():
    """Ties go to the even one; float64 is rounded once, not through float32."""
    tie = 1.0 + 2.0**-8
    vector = np.array([tie, 1 + 3 * 2.0**-8, tie + 2.0**-40, -tie, 3.0, 1e-45, 1e300, -1e300])
    out = np.empty_like(vector)
    kernels().round_into(vector, out, FORMATS["bfloat16"].rounding)
    largest = float(np.array([0x7F7F0000], np.uint32).view(np.float32)[0])
    assert out.tolist() == [1.0, 1 + 2.0**-6, 1 + 2.0**-7, -1.0, 3.0, 0.0, largest, -largest]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("compressor", [TopK(3), RandomK(4), RandomK(4, unbiased=True), Sign()], ids=repr)
def test_what_compressors_leave_arrives_with_the_same_bits(compressor, dtype):
    @settings(max_examples=30, deadline=None, derandomize=True)
    @given(vectors(dtype))
    def check(vector):
        with np.errstate(over="ignore"):
            compressor.compress(vector, SAMPLE)
        codec = codec_of(compressor.encoding, len(vector), dtype)
        if codec is not None and np.isfinite(vector).all():
            assert same_bits(sent(codec, vector), vector)

    check()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_entries_are_kept_and_of_equal_ones_the_first(dtype):
    @settings(max_examples=30, deadline=None, derandomize=True)
    @given(vectors(dtype), st.integers(1, 45), st.booleans())
    def check(vector, count, few_values):
        if few_values:
            vector = np.round(np.clip(vector, -2, 2))
        expected = np.zeros_like(vector)
        largest = sorted(range(len(vector)), key=lambda i: (-abs(vector[i]), i))[:count]
        expected[largest] = vector[largest]
        TopK(count).compress(vector, SAMPLE)
        assert same_bits(vector, expected)

    check()


def test_a_code_with_an_index_beyond_the_vector_is_refused():
    codec = codec_of("topk:2", 10, np.float64)
    code = np.zeros(codec.num_bytes, np.uint8)
    code[16:].view(np.uint32)[1] = 10
    with pytest.raises(ValueError, match="an index is beyond the 10 entries"):
        codec.decode(code, np.empty(10))
    with pytest.raises(ValueError, match="a gradient has more than the 2 entries"):
        codec.encode(np.ones(10), code)


@pytest.mark.parametrize("encoding", WIRES)
def test_sizes_are_known_in_advance_and_multiples_of_8(encoding):
    for length in (1, 7, 4095, 4096, 4097, 8193):
        for dtype in DTYPES:
            codec = codec_of(encoding, length, dtype)
            if codec is not None:
                assert codec.num_bytes % 8 == 0
                assert codec.num_bytes < length * np.dtype(dtype).itemsize
    million = {name: codec_of(name, 10**6, np.float64).num_bytes for name in WIRES}
    assert million["float16"] == million["bfloat16"] == 2 * 10**6
    assert million["int8"] == 10**6 + 245 * 8
    assert million["topk:0.2"] == 200_000 * 12
    assert codec_of("float32", 10, np.float32) is None, "that is what is sent anyway"


# Error feedback


def reference(encoding, gradient, memory):
    """What is sent and what is kept, by the definition, in NumPy."""
    whole = gradient + memory
    if encoding.startswith("topk"):
        order = sorted(range(len(whole)), key=lambda i: (-abs(whole[i]), i))
        c = np.zeros_like(whole)
        c[order[:3]] = whole[order[:3]]
    elif encoding == "int8":
        c = np.empty_like(whole)
        for start in range(0, len(whole), 4096):
            block = whole[start : start + 4096]
            scale = np.abs(block).max().astype(np.float64) / 127
            exponent = np.floor(np.log2(scale))
            scale = np.floor(scale * 2.0 ** (15 - exponent)) * 2.0 ** (exponent - 15)
            c[start : start + 4096] = np.rint(block / scale) * scale
    else:
        c = whole.astype(encoding).astype(whole.dtype)
    return c, whole - c


@pytest.mark.parametrize("encoding", ["float32", "float16", "int8", "topk:3"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_error_feedback_is_that_of_the_definition(encoding, dtype):
    rng = np.random.default_rng(3)
    memory = expected_memory = np.zeros(5_000, dtype)
    for _ in range(4):
        gradient = (rng.normal(size=5_000) * 10.0 ** rng.integers(-3, 2, 5_000)).astype(dtype)
        out, memory = rounded(encoding, gradient, memory)
        expected, expected_memory = reference(encoding, gradient, expected_memory)
        if encoding == "float32" and dtype is np.float32:
            expected, expected_memory = gradient, np.zeros_like(gradient)
        assert same_bits(out + 0.0, expected + 0.0)
        assert same_bits(memory + 0.0, expected_memory + 0.0)


@pytest.mark.parametrize("encoding", WIRES)
@pytest.mark.parametrize("statistics", [0, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_code_that_is_computed_at_once_is_that_of_the_gradient(encoding, statistics, dtype):
    @settings(max_examples=20, deadline=None, derandomize=True)
    @given(vectors(dtype, finite=False), vectors(dtype))
    def check(gradient, memory):
        gradient, memory = np.resize(gradient, 37), np.resize(memory, 37)
        problem = Encoded(Fixed(gradient, statistics), encoding)
        codec = codec_of(encoding, 37, dtype, statistics)
        if codec is None:
            return
        out, after, code = np.empty_like(memory), np.full_like(memory, 7), np.zeros(codec.num_bytes, np.uint8)
        expected, same, before = memory.copy(), np.zeros_like(code), memory.copy()
        with np.errstate(over="ignore", invalid="ignore"):
            problem.gradient_with_memory(gradient, SAMPLE, expected, out)
            problem.encoded_gradient(gradient, SAMPLE, before, after, code)
        codec.encode(out, same)
        head = 37 - statistics
        assert same_bits(after[:head], expected[:head])
        assert same_bits(before, memory)
        assert same_bits(code, same)

    check()


def test_numbers_beyond_float16_are_sent_in_parts():
    gradient, memory, total = np.array([100_000.0, -1e6, 1.0]), np.zeros(3), np.zeros(3)
    out, memory = rounded("float16", gradient, memory)
    assert out.tolist() == [65504.0, -65504.0, 1.0]
    total += out
    for _ in range(20):
        out, memory = rounded("float16", np.zeros(3), memory)
        total += out
    assert total.tolist() == gradient.tolist()


@pytest.mark.parametrize("encoding", WIRES)
def test_a_gradient_that_is_not_finite_leaves_the_memory_alone(encoding):
    memory = np.arange(30.0)
    out, after = rounded(encoding, np.where(np.arange(30) == 7, np.inf, 1.0), memory)
    assert after.tolist() == memory.tolist()
    assert not np.isfinite(out).all()


# The problem


def test_gradients_are_computed_at_the_rounded_point():
    problem = nw.problems.NoisyQuadratic(dimension=20, L=1.0, mu=0.3)
    point = np.random.default_rng(0).normal(size=20)
    point.flags.writeable = False
    near = point.astype(np.float16).astype(np.float64)
    encoded = Encoded(problem, points="float16")
    assert Capabilities.of(encoded).gradient_with_memory is None
    for _ in range(2):
        assert same_bits(encoded.gradient(point, SAMPLE), problem.gradient(near, SAMPLE))
    both = Encoded(problem, gradients="bfloat16", points="float16")
    assert same_bits(both.gradient(point, SAMPLE), rounded("bfloat16", problem.gradient(near, SAMPLE))[0])
    assert same_bits(pickle.loads(pickle.dumps(both)).gradient(point, SAMPLE), both.gradient(point, SAMPLE))


def test_points_of_a_compressed_problem_may_be_rounded():
    inner = Compressed(nw.problems.NoisyQuadratic(dimension=20, L=1.0, mu=0.3), TopK(3))
    encoded = Encoded(inner, points="float16")
    found = Capabilities.of(encoded)
    assert (found.gradient_encoding, found.point_encoding) == ("topk:3", "float16")
    memory, other, out, same = np.ones(20), np.ones(20), np.empty(20), np.empty(20)
    point = np.full(20, 1 / 3)
    encoded.gradient_with_memory(point, SAMPLE, memory, out)
    inner.gradient_with_memory(point.astype(np.float16).astype(np.float64), SAMPLE, other, same)
    assert same_bits(out, same)
    assert same_bits(memory, other)


def test_statistics_are_sent_as_they_are():
    gradient = np.array([1 / 3, 1e-9, 2.0, 1 / 7, 1e9, 1.0])
    problem = Encoded(Fixed(gradient, num_statistics=3), gradients="float16", points="bfloat16")
    memory, out = np.zeros(6), np.empty(6)
    problem.gradient_with_memory(gradient, SAMPLE, memory, out)
    assert same_bits(out[3:], gradient[3:])
    assert not memory[3:].any()
    assert memory[0] != 0
    codec = Encodings("float16", "bfloat16", exact=3).codecs(6, np.float64).gradients
    assert same_bits(sent(codec, out), out)
    assert codec.num_bytes == problem.message_bytes(out) == 8 + 24
    assert Capabilities.of(problem).num_statistics == 3
    near = problem._at(gradient)
    assert same_bits(near[3:], gradient[3:]), "nor are those of points rounded"
    assert near[0] != gradient[0]


@pytest.mark.parametrize("encoding", WIRES)
def test_runs_with_error_feedback_reach_the_minimum_and_replay(encoding):
    problem = Encoded(nw.problems.NoisyQuadratic(dimension=30, L=1.0, mu=0.3), encoding, "float32")
    method, speeds = nw.AsynchronousSGD(nw.Constant(0.05)), nw.speeds.Exponential(1.0, workers=3)
    run = nw.simulate(problem, method, speeds, steps=600)
    assert run.history.loss[-1] < 1e-4
    assert same_bits(nw.replay(run.trace, problem, method).last, run.last)
    assert run.stats.bytes_up == run.stats.gradients * problem.message_bytes(run.last)
    assert run.stats.bytes_up < run.stats.gradients * 240


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: checked_encoding("float8", "wire", points=False), "wire must be None, 'float32', .*got 'float8'"),
        (lambda: checked_encoding(16, "wire", points=False), "wire must be None, .*got 16"),
        (lambda: checked_encoding("topk:0", "wire", points=False), "such as 'topk:0.01' or 'topk:1000', got 'topk:0'"),
        (lambda: checked_encoding("topk:1.5", "wire", points=False), "got 'topk:1.5'"),
        (lambda: checked_encoding("topk:", "wire", points=False), "got 'topk:'"),
        (lambda: checked_encoding("topk:nan", "wire", points=False), "got 'topk:nan'"),
        (lambda: checked_encoding("int8", "points_wire", points=True), "points_wire must be None, .*got 'int8'"),
        (lambda: codec_of("zip", 3, np.float64), "'zip' is not an encoding: there are 'float32'"),
        (
            lambda: Encoded(Compressed(Fixed(np.ones(2)), TopK(1)), gradients="float16"),
            "gradients of Compressed are compressed already: they cannot be sent as 'float16' too",
        ),
        (
            lambda: Encoded(Encoded(Fixed(np.ones(2)), points="float16"), points="float32"),
            "points are sent as 'float16' already",
        ),
    ],
)
def test_bad_encodings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_local_steps_go_inside():
    problem = Encoded(LocalSteps(nw.problems.NoisyQuadratic(dimension=4), steps=2, stepsize=0.1), "float16")
    assert Capabilities.of(problem).gradient_encoding == "float16"
