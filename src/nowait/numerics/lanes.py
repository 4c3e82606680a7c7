# mypy: disable-error-code="call-arg, no-untyped-call"
"""Sums in SIMD lanes: fast on any processor with vector instructions, and bit-identical on all of them.

A compiler may not reorder floating-point additions, so a plain loop adds one entry at a time; with reordering allowed,
the order depends on the processor and on the alignment of the arrays. Here the order is fixed: of W lanes, lane l adds
up the entries l, l + W, l + 2W, …; the lanes are added in pairs (lane l and lane l + W/2, and so on); the remaining
entries are added up one by one, and their sum is added last. W is sixteen, and four where eight sums are computed in
one pass (of eight rows and a vector, or of four rows and two vectors). Multiplications and additions are never fused.
The code is generated as LLVM IR, because numba has no vector types. Imports numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import NumbaTypeError
from numba.extending import intrinsic

from nowait.numerics.compiled import inlined

LANES = 16
LANES_OF_EIGHT = 4
"""Lanes of each sum in ``eight_dots``: as many as fit into the vector registers."""
DOUBLE = ir.DoubleType()
SCALAR = 1
"""The width of a single entry."""


@intrinsic
def _total(typing: Any, values: Any, start: Any, size: Any) -> Any:
    """Return Σ values over ``size`` entries from ``start`` on, in float64."""
    _check_contiguous(values)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = _data(context, builder, signature, arguments, 0)
        return _sums(builder, arguments[2], LANES, lambda entries: [entries.load(data)])[0]

    return types.float64(values, types.int64, types.int64), generate


@intrinsic
def _dot(typing: Any, first: Any, start: Any, second: Any, second_start: Any, size: Any) -> Any:
    """Return Σ first·second over ``size`` entries of two arrays, from the given starts on, in float64."""
    _check_contiguous(first, second)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, b = (_data(context, builder, signature, arguments, number) for number in (0, 2))

        def terms(entries: _Entries) -> list[Any]:
            return [entries.builder.fmul(entries.load(a), entries.load(b))]

        return _sums(builder, arguments[4], LANES, terms)[0]

    return types.float64(first, types.int64, second, types.int64, types.int64), generate


@intrinsic
def _eight_dots(typing: Any, matrix: Any, starts: Any, vector: Any, size: Any) -> Any:
    """Return Σ matrix·vector over ``size`` entries of the matrix, for each of eight starts."""
    _check_contiguous(matrix, vector)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole, x = (_first_entry(context, builder, signature, arguments, number) for number in (0, 2))
        rows = [builder.gep(whole, [start]) for start in cgutils.unpack_tuple(builder, arguments[1], 8)]

        def terms(entries: _Entries) -> list[Any]:
            factors = entries.load(x)
            return [entries.builder.fmul(entries.load(row), factors) for row in rows]

        sums = _sums(builder, arguments[3], LANES_OF_EIGHT, terms, count=8)
        return context.make_tuple(builder, signature.return_type, sums)

    return types.UniTuple(types.float64, 8)(matrix, types.UniTuple(types.int64, 8), vector, types.int64), generate


@intrinsic
def _dots_of_four_and_two(
    typing: Any, matrix: Any, starts: Any, vectors: Any, first: Any, second: Any, size: Any
) -> Any:
    """Return Σ matrix·vector over ``size`` entries, for each of four starts in the matrix, for two starts of vectors.

    The lanes of both vectors are side by side, so that processors with registers of eight numbers fill them.
    """
    _check_contiguous(matrix, vectors)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole, points = (_first_entry(context, builder, signature, arguments, number) for number in (0, 2))
        rows = [builder.gep(whole, [start]) for start in cgutils.unpack_tuple(builder, arguments[1], 4)]
        x, y = (builder.gep(points, [arguments[number]]) for number in (3, 4))

        def terms(entries: _Entries) -> list[Any]:
            factors = entries.beside(entries.load(x), entries.load(y))
            loaded = [entries.load(row) for row in rows]
            return [entries.builder.fmul(entries.beside(row, row), factors) for row in loaded]

        def single_terms(entries: _Entries) -> list[Any]:
            return [entries.builder.fmul(entries.load(row), entries.load(point)) for row in rows for point in (x, y)]

        size = arguments[5]
        blocked = builder.and_(size, size.type(-LANES_OF_EIGHT))
        span = (size.type(0), blocked, LANES_OF_EIGHT)
        lanes = _add_up(builder, span, terms, count=4, lanes=2 * LANES_OF_EIGHT)
        rest = _add_up(builder, (blocked, size, SCALAR), single_terms, count=8)
        totals = [_pairwise_sum(builder, lane, LANES_OF_EIGHT, half) for lane in lanes for half in range(2)]
        sums = [builder.fadd(total, one) for total, one in zip(totals, rest, strict=True)]
        return context.make_tuple(builder, signature.return_type, sums)

    index = types.int64
    return types.UniTuple(types.float64, 8)(matrix, types.UniTuple(index, 4), vectors, index, index, index), generate


@intrinsic
def _step_and_dot(
    typing: Any,
    point: Any,
    start: Any,
    old: Any,
    old_start: Any,
    new: Any,
    new_start: Any,
    slope: Any,
    stepsize: Any,
    size: Any,
) -> Any:
    """Compute ``point -= stepsize * (slope * old)`` and return Σ new·point after it, over ``size`` float64 entries."""
    _check_contiguous(point, old, new)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, a, b = (_data(context, builder, signature, arguments, number) for number in (0, 2, 4))

        def terms(entries: _Entries) -> list[Any]:
            builder = entries.builder
            gradient = builder.fmul(entries.broadcast(arguments[6]), entries.load(a))
            moved = builder.fsub(entries.load(x), builder.fmul(entries.broadcast(arguments[7]), gradient))
            entries.store(moved, x)
            return [builder.fmul(entries.load(b), moved)]

        return _sums(builder, arguments[8], LANES, terms)[0]

    index, number = types.int64, types.float64
    return types.float64(point, index, old, index, new, index, number, number, index), generate


@intrinsic
def _step_and_norm(typing: Any, params: Any, direction: Any, stepsize: Any, out: Any, start: Any, size: Any) -> Any:
    """Compute ``out = params - stepsize * direction``; return Σ direction², and 0 or NaN, as in ``step_and_norm``."""
    _check_contiguous(params, direction, out)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = (_first_entry(context, builder, signature, arguments, number) for number in (0, 1, 3))
        x, g, y = (builder.gep(first, [arguments[4]]) for first in arrays)

        def terms(entries: _Entries) -> list[Any]:
            builder = entries.builder
            gradient = entries.load_unconverted(g)
            moved = builder.fsub(entries.load_unconverted(x), builder.fmul(entries.broadcast(arguments[2]), gradient))
            entries.store(moved, y)
            gradient, moved = entries.to_double(gradient), entries.to_double(moved)
            return [builder.fmul(gradient, gradient), builder.fsub(moved, moved)]

        sums = _sums(builder, arguments[5], LANES, terms, count=2)
        return context.make_tuple(builder, signature.return_type, sums)

    result = types.UniTuple(types.float64, 2)
    return result(params, direction, params.dtype, out, types.int64, types.int64), generate


class _Entries:
    """``width`` consecutive entries of the arrays, from an index on."""

    def __init__(self, builder: Any, index: Any, width: int) -> None:
        self.builder, self._index, self._width = builder, index, width

    def load(self, data: Any) -> Any:
        """Load the entries, converted to float64."""
        return self.to_double(self.load_unconverted(data))

    def load_unconverted(self, data: Any) -> Any:
        """Load the entries in the precision of the array."""
        loaded = self.builder.load(self._pointer(data))
        loaded.align = _alignment(data)
        return loaded

    def to_double(self, value: Any) -> Any:
        """Convert a value to float64."""
        wanted = self._of(DOUBLE)
        return value if value.type == wanted else self.builder.fpext(value, wanted)

    def store(self, value: Any, data: Any) -> None:
        """Store a value that has the precision of the array."""
        self.builder.store(value, self._pointer(data)).align = _alignment(data)

    def broadcast(self, number: Any) -> Any:
        """Return a vector with a copy of the number for each entry."""
        if self._width == SCALAR:
            return number
        kind = self._of(number.type)
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.IntType(32)(0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), self._width), [0] * self._width)
        return self.builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)

    def beside(self, first: Any, second: Any) -> Any:
        """Return a vector with the entries of one vector after those of another."""
        places = ir.Constant(ir.VectorType(ir.IntType(32), 2 * self._width), list(range(2 * self._width)))
        return self.builder.shuffle_vector(first, second, places)

    def _pointer(self, data: Any) -> Any:
        pointer = self.builder.gep(data, [self._index])
        return self.builder.bitcast(pointer, self._of(data.type.pointee).as_pointer())

    def _of(self, kind: Any) -> Any:
        return kind if self._width == SCALAR else ir.VectorType(kind, self._width)


def _alignment(data: Any) -> int:
    return 8 if isinstance(data.type.pointee, ir.DoubleType) else 4


def _check_contiguous(*arrays: Any) -> None:
    for array in arrays:
        if array.layout != "C":
            raise NumbaTypeError(f"sums in lanes need contiguous arrays, got {array}")


def _first_entry(context: Any, builder: Any, signature: Any, arguments: Any, argument: int) -> Any:
    """Return a pointer to the first entry of the array with this argument number."""
    return context.make_array(signature.args[argument])(context, builder, arguments[argument]).data


def _data(context: Any, builder: Any, signature: Any, arguments: Any, argument: int) -> Any:
    """Return a pointer to the entry of the array whose index is the next argument."""
    return builder.gep(_first_entry(context, builder, signature, arguments, argument), [arguments[argument + 1]])


def _sums(builder: Any, size: Any, width: int, terms: Callable[[_Entries], list[Any]], count: int = 1) -> list[Any]:
    """Compute ``count`` sums over ``size`` entries, each in ``width`` lanes; ``terms`` returns one term of each."""
    blocked = builder.and_(size, size.type(-width))
    lanes = _add_up(builder, (size.type(0), blocked, width), terms, count)
    rest = _add_up(builder, (blocked, size, SCALAR), terms, count)
    return [builder.fadd(_pairwise_sum(builder, lane, width), one) for lane, one in zip(lanes, rest, strict=True)]


def _add_up(
    builder: Any,
    span: tuple[Any, Any, int],
    terms: Callable[[_Entries], list[Any]],
    count: int,
    lanes: int | None = None,
) -> list[Any]:
    """Compute sums over the entries from ``first`` to ``end``, ``width`` entries at a time; a term has ``lanes`` lanes.

    ``lanes`` None means ``width`` of them.
    """
    first, end, width = span
    zero = ir.Constant(DOUBLE if width == SCALAR else ir.VectorType(DOUBLE, lanes or width), None)
    sums = [cgutils.alloca_once_value(builder, zero) for _ in range(count)]
    with cgutils.for_range_slice(builder, first, end, end.type(width), inc=True) as (index, _):
        for total, term in zip(sums, terms(_Entries(builder, index, width)), strict=True):
            builder.store(builder.fadd(builder.load(total), term), total)
    return [builder.load(total) for total in sums]


def _pairwise_sum(builder: Any, vector: Any, width: int, part: int = 0) -> Any:
    """Return the sum of ``width`` lanes, added in pairs. ``part`` selects which group of ``width`` lanes is summed."""
    lanes = range(part * width, (part + 1) * width)
    numbers = [builder.extract_element(vector, ir.IntType(32)(lane)) for lane in lanes]
    while len(numbers) > 1:
        half = len(numbers) // 2
        numbers = [builder.fadd(numbers[lane], numbers[lane + half]) for lane in range(half)]
    return numbers[0]


@inlined
def total(values: Any) -> Any:
    """Return Σ values over a contiguous array, in float64."""
    return _total(values, 0, values.size)


@inlined
def dot(first: Any, second: Any) -> Any:
    """Return Σ first·second over two contiguous arrays of the same size, in float64."""
    return _dot(first, 0, second, 0, first.size)


@inlined
def dot_of_range(first: Any, second: Any, start: int, size: int) -> Any:
    """Return ``dot`` of ``size`` entries of two contiguous arrays, from ``start`` on."""
    return _dot(first, start, second, start, size)


@inlined
def dot_of_rows(first: Any, row: int, second: Any, second_row: int) -> Any:
    """Return ``dot`` of a row of each of two contiguous matrices, without creating views."""
    size = first.shape[1]
    return _dot(first, row * size, second, second_row * size, size)


@inlined
def eight_dots(matrix: Any, rows: Any, vector: Any) -> Any:
    """Return Σ row·vector for eight rows (a tuple) of a contiguous matrix, in float64, in one pass over the vector."""
    size = matrix.shape[1]
    a, b, c, d, e, f, g, h = rows
    starts = (a * size, b * size, c * size, d * size, e * size, f * size, g * size, h * size)
    return _eight_dots(matrix, starts, vector, size)


@inlined
def dots_of_four_and_two(matrix: Any, rows: Any, vectors: Any, first: int) -> Any:
    """Return the dot products of four rows (a tuple) of a contiguous matrix with the rows ``first`` and ``first + 1``
    of another one: those of the first row, then those of the second, and so on. The bits are those of ``eight_dots``.
    """
    size = matrix.shape[1]
    a, b, c, d = rows
    starts = (a * size, b * size, c * size, d * size)
    return _dots_of_four_and_two(matrix, starts, vectors, first * size, (first + 1) * size, size)


@inlined
def step_and_dot(points: Any, run: int, features: Any, row: int, new_row: int, slope: float, stepsize: float) -> Any:
    """Compute ``points[run] -= stepsize * (slope * features[row])`` in one pass over contiguous float64 matrices.

    Returns ``dot(features[new_row], points[run])`` after the step.
    """
    size = points.shape[1]
    return _step_and_dot(points, run * size, features, row * size, features, new_row * size, slope, stepsize, size)


@inlined
def step_and_norm(params: Any, direction: Any, stepsize: Any, out: Any, start: int, size: int) -> Any:
    """Compute ``out = params - stepsize * direction`` for ``size`` entries from ``start`` on, in one pass.

    The arrays are contiguous and have one dtype. Returns Σ direction², and a number that is 0 if these entries of
    ``out`` are finite, else NaN.
    """
    return _step_and_norm(params, direction, stepsize, out, start, size)
