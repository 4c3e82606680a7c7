"""Software prefetch of a matrix row that will be read soon. Imports numba."""

# mypy: disable-error-code="call-arg"
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from nowait.numerics.compiled import inlined

VALUES_PER_CACHE_LINE = 8
"""float64 values per cache line."""
MOST_LINES = 24
"""Cache lines to prefetch; the hardware prefetcher fetches the ones after these."""


@intrinsic
def _prefetch(typing: Any, array: Any, index: Any) -> Any:
    """Prefetch the cache line of an array entry, given its index in the flattened array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        integer = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, integer, integer, integer])
        function = builder.module.globals.get("llvm.prefetch.p0i8")
        if function is None:
            function = ir.Function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [pointer, integer(0), integer(2), integer(1)])  # read, L2 cache, data
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@inlined
def prefetch_row(matrix: Any, row: int) -> None:
    """Prefetch the beginning of a row of a contiguous matrix."""
    lines = min(MOST_LINES, matrix.shape[1] // VALUES_PER_CACHE_LINE + 1)
    for line in range(lines):
        _prefetch(matrix, row * matrix.shape[1] + line * VALUES_PER_CACHE_LINE)
