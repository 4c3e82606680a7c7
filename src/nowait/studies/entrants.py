"""The methods of a race."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from nowait.api.sweep import maker
from nowait.core import Constant, DelayAdaptive, Method, checks
from nowait.methods import AsynchronousSGD, MinibatchSGD
from nowait.studies.tuner import Make
from nowait.theory.speedup import MINIBATCH

CONSTANT = "Asynchronous SGD, constant"
ADAPTIVE = "Asynchronous SGD, delay-adaptive"


@final
@dataclass(frozen=True)
class Entrant:
    """A method in a race: a function of its stepsize, or a method as it is."""

    name: str
    make: Make
    tuned: bool
    """True if its stepsize is tuned before the race."""


def the_papers_three() -> dict[str, Make]:
    """Return the methods of the paper's Figure 1."""
    return {
        MINIBATCH: lambda size: MinibatchSGD(Constant(size)),
        CONSTANT: lambda size: AsynchronousSGD(Constant(size)),
        ADAPTIVE: lambda size: AsynchronousSGD(DelayAdaptive(size)),
    }


def checked_entrants(methods: Mapping[str, Method | Make] | None) -> list[Entrant]:
    """Return the entrants; functions of the stepsize are to be tuned, methods run as they are."""
    if methods is None:
        methods = the_papers_three()
    if not isinstance(methods, Mapping) or not methods:
        raise TypeError(
            f'methods must be named, as in {{"mine": lambda size: nw.AsynchronousSGD(nw.Constant(size))}}, '
            f"got {checks.shown(methods)}"
        )
    return [_entrant(str(name), method) for name, method in methods.items()]


def _entrant(name: str, method: Method | Make) -> Entrant:
    if isinstance(method, Method):
        return Entrant(name, lambda _: method, tuned=False)
    make = maker(method)
    checks.instance(make(1.0), Method, f"methods[{name!r}](stepsize)", "nw.AsynchronousSGD(nw.Constant(stepsize))")
    return Entrant(name, make, tuned=True)
