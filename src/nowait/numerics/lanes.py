# mypy: disable-error-code="call-arg, no-untyped-call"
"""Sums in lanes: quick on any processor with vectors, and the same bits on all of them.

A compiler may not change the order in which a sum is added up, so a plain loop runs one entry at a time; if it is
allowed to, the order depends on the processor, and on where the arrays are in memory. Here the order is written down:
of W lanes, lane l adds up the entries l, l + W, l + 2W, …; the lanes are added in pairs (lane l and lane l + W/2, and
so on); what is left over is added up one by one, and then added. W is sixteen, and four where eight sums are made in
one pass. Multiplications and additions are never fused. The code is generated for LLVM, because numba has no vectors.
It imports numba.
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
"""Lanes of each sum in ``eight_dots``: as many as there are registers for."""
DOUBLE = ir.DoubleType()
NO_WIDTH = 1
"""Of a place with one entry."""


@intrinsic
def _total(typing: Any, values: Any, start: Any, size: Any) -> Any:
    """Σ values over ``size`` entries from this place on, in float64."""
    _check_contiguous(values)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = _data(context, builder, signature, arguments, 0)
        return _sums(builder, arguments[2], LANES, lambda place: [place.load(data)])[0]

    return types.float64(values, types.int64, types.int64), generate


@intrinsic
def _dot(typing: Any, first: Any, start: Any, second: Any, second_start: Any, size: Any) -> Any:
    """Σ first·second over ``size`` entries of two arrays, from these places on, in float64."""
    _check_contiguous(first, second)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, b = (_data(context, builder, signature, arguments, place) for place in (0, 2))

        def terms(place: _Place) -> list[Any]:
            return [place.builder.fmul(place.load(a), place.load(b))]

        return _sums(builder, arguments[4], LANES, terms)[0]

    return types.float64(first, types.int64, second, types.int64, types.int64), generate


@intrinsic
def _eight_dots(typing: Any, matrix: Any, starts: Any, vector: Any, size: Any) -> Any:
    """Eight times Σ matrix·vector over ``size`` entries of the matrix, each from another start on."""
    _check_contiguous(matrix, vector)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole, x = (_beginning(context, builder, signature, arguments, place) for place in (0, 2))
        rows = [builder.gep(whole, [start]) for start in cgutils.unpack_tuple(builder, arguments[1], 8)]

        def terms(place: _Place) -> list[Any]:
            entries = place.load(x)
            return [place.builder.fmul(place.load(row), entries) for row in rows]

        sums = _sums(builder, arguments[3], LANES_OF_EIGHT, terms, count=8)
        return context.make_tuple(builder, signature.return_type, sums)

    return types.UniTuple(types.float64, 8)(matrix, types.UniTuple(types.int64, 8), vector, types.int64), generate


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
    """``point -= stepsize * (slope * old)``, and Σ new·point after that, over ``size`` entries of float64."""
    _check_contiguous(point, old, new)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, a, b = (_data(context, builder, signature, arguments, place) for place in (0, 2, 4))

        def terms(place: _Place) -> list[Any]:
            builder = place.builder
            gradient = builder.fmul(place.spread(arguments[6]), place.load(a))
            moved = builder.fsub(place.load(x), builder.fmul(place.spread(arguments[7]), gradient))
            place.store(moved, x)
            return [builder.fmul(place.load(b), moved)]

        return _sums(builder, arguments[8], LANES, terms)[0]

    place, number = types.int64, types.float64
    return types.float64(point, place, old, place, new, place, number, number, place), generate


@intrinsic
def _step_and_norm(typing: Any, params: Any, direction: Any, stepsize: Any, out: Any, size: Any) -> Any:
    """``out = params - stepsize * direction``; Σ direction², and 0 or NaN, as ``step_and_norm`` returns them."""
    _check_contiguous(params, direction, out)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, g, y = (_beginning(context, builder, signature, arguments, place) for place in (0, 1, 3))

        def terms(place: _Place) -> list[Any]:
            builder = place.builder
            gradient = place.load_as_it_is(g)
            moved = builder.fsub(place.load_as_it_is(x), builder.fmul(place.spread(arguments[2]), gradient))
            place.store(moved, y)
            gradient, moved = place.widened(gradient), place.widened(moved)
            return [builder.fmul(gradient, gradient), builder.fsub(moved, moved)]

        sums = _sums(builder, arguments[4], LANES, terms, count=2)
        return context.make_tuple(builder, signature.return_type, sums)

    result = types.UniTuple(types.float64, 2)
    return result(params, direction, params.dtype, out, types.int64), generate


class _Place:
    """One entry of the arrays, or ``width`` entries from it on."""

    def __init__(self, builder: Any, index: Any, width: int) -> None:
        self.builder, self._index, self._width = builder, index, width

    def load(self, data: Any) -> Any:
        """What is there, as float64."""
        return self.widened(self.load_as_it_is(data))

    def load_as_it_is(self, data: Any) -> Any:
        """What is there, in the precision of the array."""
        loaded = self.builder.load(self._pointer(data))
        loaded.align = _alignment(data)
        return loaded

    def widened(self, value: Any) -> Any:
        """A value as float64."""
        wanted = self._of(DOUBLE)
        return value if value.type == wanted else self.builder.fpext(value, wanted)

    def store(self, value: Any, data: Any) -> None:
        """Write a value that has the precision of the array."""
        self.builder.store(value, self._pointer(data)).align = _alignment(data)

    def spread(self, number: Any) -> Any:
        """A number, as often as there are entries."""
        if self._width == NO_WIDTH:
            return number
        kind = self._of(number.type)
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.IntType(32)(0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), self._width), [0] * self._width)
        return self.builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)

    def _pointer(self, data: Any) -> Any:
        pointer = self.builder.gep(data, [self._index])
        return self.builder.bitcast(pointer, self._of(data.type.pointee).as_pointer())

    def _of(self, kind: Any) -> Any:
        return kind if self._width == NO_WIDTH else ir.VectorType(kind, self._width)


def _alignment(data: Any) -> int:
    return 8 if isinstance(data.type.pointee, ir.DoubleType) else 4


def _check_contiguous(*arrays: Any) -> None:
    for array in arrays:
        if array.layout != "C":
            raise NumbaTypeError(f"sums in lanes need contiguous arrays, got {array}")


def _beginning(context: Any, builder: Any, signature: Any, arguments: Any, place: int) -> Any:
    """Where the array begins that is argument ``place``."""
    return context.make_array(signature.args[place])(context, builder, arguments[place]).data


def _data(context: Any, builder: Any, signature: Any, arguments: Any, place: int) -> Any:
    """The same, from the entry on that the next argument says."""
    return builder.gep(_beginning(context, builder, signature, arguments, place), [arguments[place + 1]])


def _sums(builder: Any, size: Any, width: int, terms: Callable[[_Place], list[Any]], count: int = 1) -> list[Any]:
    """``count`` sums over all places below ``size``, each in ``width`` lanes; ``terms`` gives one term of each."""
    blocked = builder.and_(size, size.type(-width))
    lanes = _add_up(builder, (size.type(0), blocked, width), terms, count)
    rest = _add_up(builder, (blocked, size, NO_WIDTH), terms, count)
    return [builder.fadd(_in_pairs(builder, lane, width), one) for lane, one in zip(lanes, rest, strict=True)]


def _add_up(builder: Any, places: tuple[Any, Any, int], terms: Callable[[_Place], list[Any]], count: int) -> list[Any]:
    """Sums from the first place to the second, as many entries at a time as the third number says."""
    first, end, width = places
    zero = ir.Constant(DOUBLE if width == NO_WIDTH else ir.VectorType(DOUBLE, width), None)
    sums = [cgutils.alloca_once_value(builder, zero) for _ in range(count)]
    with cgutils.for_range_slice(builder, first, end, end.type(width), inc=True) as (index, _):
        for total, term in zip(sums, terms(_Place(builder, index, width)), strict=True):
            builder.store(builder.fadd(builder.load(total), term), total)
    return [builder.load(total) for total in sums]


def _in_pairs(builder: Any, vector: Any, width: int) -> Any:
    """The sum of the lanes."""
    numbers = [builder.extract_element(vector, ir.IntType(32)(lane)) for lane in range(width)]
    while len(numbers) > 1:
        half = len(numbers) // 2
        numbers = [builder.fadd(numbers[lane], numbers[lane + half]) for lane in range(half)]
    return numbers[0]


@inlined
def total(values: Any) -> Any:
    """Σ values over a contiguous array, in float64."""
    return _total(values, 0, values.size)


@inlined
def dot(first: Any, second: Any) -> Any:
    """Σ first·second over two contiguous arrays of the same size, in float64."""
    return _dot(first, 0, second, 0, first.size)


@inlined
def dot_of_rows(first: Any, row: int, second: Any, second_row: int) -> Any:
    """``dot`` of a row of each of two contiguous matrices, without views of them."""
    size = first.shape[1]
    return _dot(first, row * size, second, second_row * size, size)


@inlined
def eight_dots(matrix: Any, rows: Any, vector: Any) -> Any:
    """Σ row·vector of eight rows (a tuple) of a contiguous matrix, in float64, in one pass over the vector."""
    size = matrix.shape[1]
    a, b, c, d, e, f, g, h = rows
    starts = (a * size, b * size, c * size, d * size, e * size, f * size, g * size, h * size)
    return _eight_dots(matrix, starts, vector, size)


@inlined
def step_and_dot(points: Any, run: int, features: Any, row: int, new_row: int, slope: float, stepsize: float) -> Any:
    """``points[run] -= stepsize * (slope * features[row])``, and ``dot(features[new_row], points[run])`` after that.

    In one pass, over contiguous matrices of float64.
    """
    size = points.shape[1]
    return _step_and_dot(points, run * size, features, row * size, features, new_row * size, slope, stepsize, size)


@inlined
def step_and_norm(params: Any, direction: Any, stepsize: Any, out: Any) -> Any:
    """``out = params - stepsize * direction``, in one pass over contiguous arrays of one precision.

    Returns ``dot(direction, direction)``, and a number that is 0 if every entry of ``out`` is finite, else NaN.
    """
    return _step_and_norm(params, direction, stepsize, out, params.size)
