"""Arithmetic that is bit-identical on every machine: elementary functions, sums in a fixed order, compiled kernels.

Importing a module named ``*kernels``, ``lanes``, ``prefetch`` or ``vectors`` imports numba; the others do not.
"""
