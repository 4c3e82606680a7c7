# mypy: disable-error-code="call-arg, no-untyped-call"
"""Dot products in sixteen lanes: quick on any processor with vectors, and the same bits on all of them.

A compiler may not change the order in which a sum is added up, so a plain loop runs one entry at a time; if it is
allowed to, the order depends on the processor, and on where the loop stands. Here the order is written down: lane l
adds up the entries l, l + 16, l + 32, …; the lanes are added in pairs; what is left over follows one by one. The code
is generated for LLVM, because numba has no vectors. It imports numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from nowait.core.compiled import inlined

LANES = 16
VECTOR = ir.VectorType(ir.DoubleType(), LANES)


@intrinsic
def _dot(typing: Any, first: Any, start: Any, second: Any, second_start: Any, size: Any) -> Any:
    """Σ first·second over ``size`` entries of two arrays, from these places on, in float64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, b = (_data(context, builder, signature, arguments, place) for place in (0, 2))

        def term(builder: Any, place: _Place) -> Any:
            return builder.fmul(place.load(a), place.load(b))

        return _sum(builder, arguments[4], term)

    return types.float64(first, types.int64, second, types.int64, types.int64), generate


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

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, a, b = (_data(context, builder, signature, arguments, place) for place in (0, 2, 4))

        def term(builder: Any, place: _Place) -> Any:
            gradient = builder.fmul(place.spread(arguments[6]), place.load(a))
            moved = builder.fsub(place.load(x), builder.fmul(place.spread(arguments[7]), gradient))
            place.store(moved, x)
            return builder.fmul(place.load(b), moved)

        return _sum(builder, arguments[8], term)

    place, number = types.int64, types.float64
    return types.float64(point, place, old, place, new, place, number, number, place), generate


class _Place:
    """One entry of the arrays, or sixteen from it on."""

    def __init__(self, builder: Any, index: Any, wide: bool) -> None:
        self._builder, self._index, self._wide = builder, index, wide

    def load(self, data: Any) -> Any:
        """What is there, as float64."""
        loaded = self._builder.load(self._pointer(data))
        loaded.align = 8 if isinstance(data.type.pointee, ir.DoubleType) else 4
        wanted = VECTOR if self._wide else ir.DoubleType()
        return loaded if loaded.type == wanted else self._builder.fpext(loaded, wanted)

    def store(self, value: Any, data: Any) -> None:
        """Put it there; the array has float64."""
        self._builder.store(value, self._pointer(data)).align = 8

    def spread(self, number: Any) -> Any:
        """A number, as often as there are entries."""
        if not self._wide:
            return number
        one = self._builder.insert_element(ir.Constant(VECTOR, ir.Undefined), number, ir.IntType(32)(0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self._builder.shuffle_vector(one, ir.Constant(VECTOR, ir.Undefined), zeros)

    def _pointer(self, data: Any) -> Any:
        pointer = self._builder.gep(data, [self._index])
        wide = ir.VectorType(data.type.pointee, LANES).as_pointer()
        return self._builder.bitcast(pointer, wide) if self._wide else pointer


def _data(context: Any, builder: Any, signature: Any, arguments: Any, place: int) -> Any:
    """Where the array begins that is argument ``place``; the next argument says with which entry to begin."""
    data = context.make_array(signature.args[place])(context, builder, arguments[place]).data
    return builder.gep(data, [arguments[place + 1]])


def _sum(builder: Any, size: Any, term: Callable[[Any, _Place], Any]) -> Any:
    """The sum of the terms of all places below ``size``."""
    integer = size.type
    blocked = builder.and_(size, integer(-LANES))
    lanes = cgutils.alloca_once_value(builder, ir.Constant(VECTOR, [0.0] * LANES))
    rest = cgutils.alloca_once_value(builder, ir.Constant(ir.DoubleType(), 0.0))
    with cgutils.for_range_slice(builder, integer(0), blocked, integer(LANES), inc=True) as (index, _):
        builder.store(builder.fadd(builder.load(lanes), term(builder, _Place(builder, index, wide=True))), lanes)
    with cgutils.for_range_slice(builder, blocked, size, integer(1), inc=True) as (index, _):
        builder.store(builder.fadd(builder.load(rest), term(builder, _Place(builder, index, wide=False))), rest)
    vector = builder.load(lanes)
    numbers = [builder.extract_element(vector, ir.IntType(32)(lane)) for lane in range(LANES)]
    while len(numbers) > 1:
        half = len(numbers) // 2
        numbers = [builder.fadd(numbers[lane], numbers[lane + half]) for lane in range(half)]
    return builder.fadd(numbers[0], builder.load(rest))


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
def step_and_dot(points: Any, run: int, features: Any, row: int, new_row: int, slope: float, stepsize: float) -> Any:
    """``points[run] -= stepsize * (slope * features[row])``, and ``dot(features[new_row], points[run])`` after that.

    In one pass, over contiguous matrices of float64.
    """
    size = points.shape[1]
    return _step_and_dot(points, run * size, features, row * size, features, new_row * size, slope, stepsize, size)
