"""Searches the code that this process has compiled for arithmetic whose result depends on the processor."""

import re
import sys

from numba.core.dispatcher import Dispatcher

FREE = re.compile(r"\bf(add|sub|mul|div|rem|neg|cmp) (fast|reassoc|contract|arcp|afn|nnan|ninf|nsz)\b")
FUSED = re.compile(r"@llvm\.(fma|fmuladd)\b")
LIBRARY = re.compile(
    r"@(llvm\.)?(exp|exp2|exp10|expm1|log|log2|log10|log1p|pow|powi|sin|cos|tan|tanh|hypot|cbrt|ldexp|frexp)"
    r"(f|\.f64|\.f32|\.v\d+f\d\d)?\("
)


def kernels():
    """Return the loaded compiled functions of the package, by name."""
    return {
        f"{module}.{name}": value
        for module in sorted(sys.modules)
        if module.startswith("nowait")
        for name, value in vars(sys.modules[module]).items()
        if isinstance(value, Dispatcher)
    }


def depends_on_the_processor(code):
    """Return the lines of LLVM code that fuse or reorder arithmetic, or call a math library."""
    return [line.strip() for line in code.splitlines() if any(p.search(line) for p in (FREE, FUSED, LIBRARY))]


def suspicious():
    """Return these lines for all kernels that this process compiled, with the names of the kernels."""
    return [
        f"{name}: {line}"
        for name, kernel in kernels().items()
        for code in kernel.inspect_llvm().values()
        for line in depends_on_the_processor(code)
    ]
