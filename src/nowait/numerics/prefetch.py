"""A hint to the processor that a row of a matrix will be read soon. It imports numba."""

# mypy: disable-error-code="call-arg"
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from nowait.numerics.compiled import inlined

NUMBERS_PER_LINE = 8
"""So many numbers of float64 come from memory together."""
MOST_LINES = 24
"""The processor goes on by itself after these."""


@intrinsic
def _prefetch(typing: Any, array: Any, place: Any) -> Any:
    """Prefetch the cache line of an entry of an array, counted over all its dimensions."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        integer = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, integer, integer, integer])
        function = builder.module.globals.get("llvm.prefetch.p0i8")
        if function is None:
            function = ir.Function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [pointer, integer(0), integer(2), integer(1)])  # to read, into the second cache, data
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@inlined
def prefetch_row(matrix: Any, row: int) -> None:
    """Have the beginning of a row of a contiguous matrix come from memory."""
    lines = min(MOST_LINES, matrix.shape[1] // NUMBERS_PER_LINE + 1)
    for line in range(lines):
        _prefetch(matrix, row * matrix.shape[1] + line * NUMBERS_PER_LINE)
