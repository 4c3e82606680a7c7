"""What a method sees while its plan is made, in place of vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, final

from nowait.core import Arrival
from nowait.core.sums import BaseSum
from nowait.engines.simulator.plan import (
    ADD,
    CLEAR,
    FIRST_SUM,
    MERGE,
    READS_POINTS,
    READS_SUMS,
    NotPlannable,
)

if TYPE_CHECKING:
    from nowait.engines.simulator.planner import Planner


def unknown(reason: str) -> Any:
    """Return a property that raises ``NotPlannable``: while a plan is made, its value is not known."""

    def read(_: object) -> NoReturn:
        raise NotPlannable(reason)

    return property(read, doc=f"Raises ``NotPlannable``: {reason}.")


@final
class UnknownVersion:
    """The version of every arrival of a plan. Its point is not known."""

    __slots__ = ()
    point = unknown(READS_POINTS)


@final
class PlannedSum(BaseSum):
    """A sum without a vector. Its number is used again when the sum is deleted."""

    __slots__ = ("_codes", "_numbers", "_planner", "number")

    def __init__(self, planner: Planner, number: int, codes: Any, numbers: Any) -> None:
        super().__init__(planner)
        self.number = number
        self._codes = codes
        self._numbers = numbers
        self._planner = planner

    def __del__(self) -> None:
        planner = getattr(self, "_planner", None)  # missing if a signal interrupted the constructor
        if planner is not None:
            planner.free_sum(self.number)

    vector = unknown(READS_SUMS)
    norm = unknown(READS_SUMS)

    def _add(self, arrival: Arrival, weight: float) -> None:
        self._codes.extend((ADD, FIRST_SUM + self.number))
        self._numbers.append(weight)

    def _merge(self, other: PlannedSum, weight: float, *, statistics: bool) -> None:  # plans have no statistics
        self._codes.extend((MERGE, FIRST_SUM + self.number, FIRST_SUM + other.number))
        self._numbers.append(weight)

    def _clear(self) -> None:
        self._codes.extend((CLEAR, FIRST_SUM + self.number))
