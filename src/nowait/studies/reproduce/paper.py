"""A published experiment as data: its panels, the methods in them, and what the paper reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import final

from nowait.core import Method, Problem, Update
from nowait.speeds import Speeds
from nowait.studies.reproduce.measured import Measured

AGREES, PARTLY, DISAGREES, UNCHECKED = "agrees", "partly", "disagrees", "not checked"
"""How a result compares with a claim."""
Make = Callable[[float], Method]
"""Makes a method with a stepsize."""


@final
@dataclass(frozen=True)
class Entry:
    """A method, and what is tried for it: every variant with every stepsize."""

    name: str
    variants: Mapping[str, Make]
    """The method by the value of its other parameter, such as "batch 10"; one with an empty name if it has none."""
    stepsizes: tuple[float, ...]
    update: Update | None = None
    fastest: int | None = None
    """Simulate only the first workers of the panel, if the others never finish a gradient that this method uses."""

    @classmethod
    def of(cls, name: str, make: Make, *stepsizes: float) -> Entry:
        """Return an entry without another parameter."""
        return cls(name, {"": make}, stepsizes)

    @property
    def is_tuned(self) -> bool:
        """True if there is something to choose."""
        return len(self.variants) * len(self.stepsizes) > 1


@final
@dataclass(frozen=True)
class Panel:
    """Methods on one problem with one set of workers, each with the same budget."""

    title: str
    problem: Problem
    speeds: Callable[[int], Speeds]
    """Makes the speeds of the first so many workers."""
    workers: int
    entries: tuple[Entry, ...]
    seeds: int
    seconds: float | None = None
    gradients: int | None = None

    @property
    def axis(self) -> str:
        """What errors are drawn against: the budget."""
        return "time" if self.gradients is None else "gradients"


@final
@dataclass(frozen=True)
class Verdict:
    """What we get, and how it compares with what the paper reports."""

    got: str
    agreement: str


def agreement_of(holds: Iterable[bool]) -> str:
    """Return whether a claim agrees, by the cases in which it holds: in all, in some or in none.

    >>> agreement_of([True, False])
    'partly'
    """
    cases = list(holds)
    return AGREES if all(cases) else PARTLY if any(cases) else DISAGREES


def not_checked(why: str) -> Callable[[Measured], Verdict]:
    """Return the check of a claim that cannot be checked here."""
    return lambda _: Verdict(why, UNCHECKED)


@final
@dataclass(frozen=True)
class Claim:
    """One statement of a paper, and the function that checks it."""

    source: str
    """Where the paper says so."""
    reported: str
    judge: Callable[[Measured], Verdict]


@final
@dataclass(frozen=True)
class Paper:
    """One reproduction: the setting, the claims, and what is known to differ."""

    name: str
    citation: str
    shows: str
    """What the figure compares, in one line."""
    minutes: float
    """About how long it takes on two cores."""
    panels: Callable[[bool], list[Panel]]
    """Makes the panels; True for the quick form, a smaller setting."""
    claims: tuple[Claim, ...]
    differences: tuple[str, ...]
    """What differs from the published setting, and what is our reading of it."""
