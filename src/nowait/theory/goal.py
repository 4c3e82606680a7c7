"""The number of steps of a prescription: given, or the least with which the guarantee reaches an accuracy."""

from __future__ import annotations

from collections.abc import Callable

from nowait.core import checks
from nowait.theory.guarantee import Prescription

MOST_STEPS = 1 << 60


def prescribed(make: Callable[[int], Prescription], steps: int | None, accuracy: float | None) -> Prescription:
    """Return ``make(steps)``, or, given an accuracy, the prescription with the fewest steps that guarantees it.

    Raises ValueError unless exactly one of the two is given, and if no number of steps is enough.
    """
    if (steps is None) == (accuracy is None):
        raise ValueError(
            f"give either steps= or accuracy=, got steps={steps!r} and accuracy={accuracy!r}: stepsizes depend on it"
        )
    if steps is not None:
        return make(steps)
    aim = checks.positive(accuracy, "accuracy", "it is the error to guarantee")
    found = fewest_steps(make, aim)
    if found is None:
        raise ValueError(
            f"no number of steps guarantees an accuracy of {aim:g}: a term of the guarantee stays above it"
        )
    return found


def fewest_steps(make: Callable[[int], Prescription], accuracy: float, least: int = 1) -> Prescription | None:
    """Return the prescription with the fewest steps whose best guarantee is at most ``accuracy``; None if none is."""

    def reaches(steps: int) -> bool:
        return float(make(steps).guarantee.best) <= accuracy

    enough = least
    while not reaches(enough):
        if enough >= MOST_STEPS:
            return None
        enough *= 2
    short = enough // 2 if enough > least else least - 1
    while enough - short > 1:
        middle = (short + enough) // 2
        short, enough = (short, middle) if reaches(middle) else (middle, enough)
    return make(enough)
