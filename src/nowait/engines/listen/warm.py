"""Importing this module loads numba and some compiled functions, which most problems need.

A process that waits for its job imports it meanwhile: that takes half a second, most of it in numba's first load of a
compiled function.
"""

import numpy as np

from nowait.numerics.compiled import warm_up

warm_up(np.zeros(1))
