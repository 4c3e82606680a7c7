"""Every method once or more, ready to run: what the contract suite runs over."""

from __future__ import annotations

from nowait.core import Constant, DelayAdaptive, Method
from nowait.methods import (
    AsynchronousSGD,
    GradientTable,
    MinibatchSGD,
    RandomAssignment,
    RennalaSGD,
    RingleaderASGD,
    RingmasterASGD,
)

CATALOGUE: dict[str, Method] = {
    "AsynchronousSGD": AsynchronousSGD(DelayAdaptive(0.05)),
    "AsynchronousSGD, constant": AsynchronousSGD(Constant(0.05)),
    "GradientTable": GradientTable(Constant(0.05)),
    "MinibatchSGD": MinibatchSGD(Constant(0.1)),
    "RandomAssignment": RandomAssignment(DelayAdaptive(0.05)),
    "RennalaSGD": RennalaSGD(Constant(0.1), batch=4),
    "RennalaSGD, cancel=False": RennalaSGD(Constant(0.1), batch=4, cancel=False),
    "RingleaderASGD": RingleaderASGD(Constant(0.05)),
    "RingmasterASGD": RingmasterASGD(Constant(0.05), max_delay=4),
    "RingmasterASGD, cancel_stale=True": RingmasterASGD(Constant(0.05), max_delay=4, cancel_stale=True),
}
