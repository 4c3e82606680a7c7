"""The methods of a race, and their settings that are tuned."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from nowait.api.sweep import maker
from nowait.core import Constant, DelayAdaptive, Method, Nesterov, Problem, Update, checks
from nowait.core.capabilities import Capabilities
from nowait.methods import AsynchronousSGD, Auto, MinibatchSGD, MSynchronousSGD
from nowait.studies.own_code import signature_of
from nowait.studies.tuner import Make
from nowait.theory.speedup import MINIBATCH

CONSTANT = "Asynchronous SGD, constant"
ADAPTIVE = "Asynchronous SGD, delay-adaptive"
MINIBATCH_MOMENTUM = "Minibatch SGD, momentum"
FIRST_M = "First m, momentum"
AUTO = "Auto"
MOMENTA = (0.0, 0.9, 0.97)
"""The momenta that are tried by default."""
MOMENTUM_NAMES = ("momentum", "beta", "β")
"""What the second parameter of a function of stepsize and momentum is called."""


@final
@dataclass(frozen=True)
class Settings:
    """The settings of a method that are tuned."""

    stepsize: float
    momentum: float | None = None
    """None for a method without momentum, or with one that is not tuned."""
    m: int | None = None
    """How many gradients a round waits for; None for a method that is not asked."""

    @property
    def known(self) -> dict[str, float]:
        """The settings that the method has, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


class Entry(NamedTuple):
    """A method, and its own update."""

    method: Method
    update: Update | None
    """None: the update of the race."""


MakeEntry = Callable[[Settings], Entry]
MakeWithMomentum = Callable[[float, float], "Method | tuple[Method, Update]"]
"""A function of stepsize and momentum."""
MakeWithUpdate = Callable[[float], "Method | tuple[Method, Update]"]


@final
@dataclass(frozen=True)
class Entrant:
    """A method in a race: a function of its settings, or a method as it is."""

    name: str
    make: MakeEntry
    tuned: bool
    """True if settings are tuned before the race."""
    momenta: tuple[float, ...] = ()
    """The momenta to try; empty if the method has none to tune."""
    waits: bool = False
    """True if m is tuned."""
    settings_of: str = ""
    """The entrant whose stepsize and momentum it gets without trials of its own; empty for none."""

    def method(self, stepsize: float) -> Method:
        """Return the method with this stepsize, and any other settings."""
        return self.make(Settings(stepsize, self.momenta[0] if self.momenta else None, 1)).method


Methods = Mapping[str, Method | Make | MakeWithUpdate | MakeWithMomentum | Entrant]


def paper_methods() -> dict[str, Make]:
    """Return the methods of the paper's Figure 1 for ``nw.race``: plain minibatch SGD and asynchronous SGD.

    >>> list(paper_methods())
    ['Minibatch SGD', 'Asynchronous SGD, constant', 'Asynchronous SGD, delay-adaptive']
    """
    return {
        MINIBATCH: lambda size: MinibatchSGD(Constant(size)),
        CONSTANT: lambda size: AsynchronousSGD(Constant(size)),
        ADAPTIVE: lambda size: AsynchronousSGD(DelayAdaptive(size)),
    }


def usual_methods() -> dict[str, Make | Entrant]:
    """Return the methods that ``nw.race`` compares by default; ``usual_methods() | {"mine": ...}`` adds yours.

    Minibatch SGD and asynchronous SGD with the delay-adaptive rule, both plain; minibatch SGD and the first m of M
    gradients, both with Nesterov's momentum; and ``Auto``, which gets stepsize and momentum of the former.

    >>> list(usual_methods())[:3]
    ['Minibatch SGD', 'Asynchronous SGD, delay-adaptive', 'Minibatch SGD, momentum']
    >>> list(usual_methods())[3:]
    ['First m, momentum', 'Auto']
    """
    papers = paper_methods()
    return {
        MINIBATCH: papers[MINIBATCH],
        ADAPTIVE: papers[ADAPTIVE],
        MINIBATCH_MOMENTUM: Entrant(MINIBATCH_MOMENTUM, _minibatch, tuned=True, momenta=MOMENTA),
        FIRST_M: Entrant(FIRST_M, _first_m, tuned=True, momenta=MOMENTA, waits=True),
        AUTO: Entrant(AUTO, _auto, tuned=False, settings_of=MINIBATCH_MOMENTUM),
    }


def _minibatch(settings: Settings) -> Entry:
    return Entry(MinibatchSGD(Constant(settings.stepsize)), nesterov(settings.momentum))


def _first_m(settings: Settings) -> Entry:
    return Entry(MSynchronousSGD(Constant(settings.stepsize), m=settings.m or 1), nesterov(settings.momentum))


def _auto(settings: Settings) -> Entry:
    return Entry(Auto(Constant(settings.stepsize), momentum=settings.momentum or 0.0), None)


def nesterov(momentum: float | None) -> Update | None:
    """Return Nesterov's momentum; None, the usual update, if it is 0."""
    return Nesterov(momentum) if momentum else None


def checked_entrants(methods: Methods | None) -> list[Entrant]:
    """Return the entrants; functions of the stepsize are to be tuned, methods run as they are. None is the usual."""
    if methods is None:
        methods = usual_methods()
    if not isinstance(methods, Mapping) or not methods:
        raise TypeError(
            f'methods must be named, as in {{"mine": lambda size: nw.AsynchronousSGD(nw.Constant(size))}}, '
            f"got {checks.shown(methods)}"
        )
    entrants = [_entrant(str(name), method) for name, method in methods.items()]
    for place, entrant in enumerate(entrants):
        before = [other.name for other in entrants[:place]]
        if entrant.settings_of and entrant.settings_of not in before:
            raise ValueError(
                f"methods[{entrant.name!r}] gets stepsize and momentum of {entrant.settings_of!r}, which must race "
                f"before it: keep that method, or enter lambda size: nw.Auto(size)"
            )
    return entrants


def check_updates(entrants: Iterable[Entrant], update: Update | None) -> None:
    """Raise if an update for all methods is given, and a method has one of its own."""
    if update is None:
        return
    for entrant in entrants:
        if entrant.settings_of or _own_update(entrant) is not None:
            raise ValueError(
                f"update= is for methods without an update of their own, but {entrant.name!r} has one: omit update=, "
                f"or give methods= without it, such as nw.studies.paper_methods()"
            )


def without_refused(entrants: list[Entrant], problem: Problem, say: Callable[[str], None]) -> list[Entrant]:
    """Leave out a default method that refuses the problem's data, and say so."""
    if Capabilities.of(problem).num_shards == 1:
        return entrants
    refused = [one.name for one in entrants if one.settings_of and one.method(1.0).needs_shared_data]
    for name in refused:
        say(f"{name} does not race: every worker has data of its own, and it would leave out those of slow workers.")
    return [entrant for entrant in entrants if entrant.name not in refused]


def _own_update(entrant: Entrant) -> Update | None:
    if not entrant.tuned:
        return None
    return entrant.make(Settings(1.0, max(entrant.momenta, default=None), 1)).update


def _entrant(name: str, method: Any) -> Entrant:
    if isinstance(method, Entrant):
        return Entrant(name, method.make, method.tuned, method.momenta, method.waits, method.settings_of)
    if isinstance(method, Method):
        return Entrant(name, lambda _: Entry(method, None), tuned=False)
    make, has_momentum = entry_maker(method, f"methods[{name!r}]")
    return Entrant(name, make, tuned=True, momenta=MOMENTA if has_momentum else ())


def entry_maker(method: Any, name: str) -> tuple[MakeEntry, bool]:
    """Return a function of the settings, and True if it takes a momentum.

    ``method`` is a method with a stepsize, or a function of the stepsize, or of stepsize and momentum, that returns a
    method, or a method and its update.
    """
    make: Callable[..., Any] = maker(method)
    has_momentum = not isinstance(method, Method) and _takes_momentum(make, name)

    def entry(settings: Settings) -> Entry:
        momentum = (settings.momentum,) if has_momentum else ()
        return _checked_entry(make(settings.stepsize, *momentum), f"{name}(stepsize{', momentum' * has_momentum})")

    entry(Settings(1.0, MOMENTA[1]))
    return entry, has_momentum


def _takes_momentum(make: Callable[..., Any], name: str) -> bool:
    """Return True if a function has a second parameter without a default, which must be the momentum."""
    signature = signature_of(make)
    items = [] if signature is None else list(signature.parameters.values())
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [item for item in items if item.default is item.empty and item.kind not in variable]
    if len(required) <= 1:
        return False
    second = required[1]
    if len(required) == 2 and second.name in MOMENTUM_NAMES and second.kind is not second.KEYWORD_ONLY:
        return True
    raise TypeError(
        f"{name} must be a function of the stepsize, or of stepsize and momentum, such as lambda size, momentum: ...; "
        f"it has the parameters {', '.join(item.name for item in required)}; the second one must be positional, and "
        f"called momentum or beta"
    )


def _checked_entry(made: Any, name: str) -> Entry:
    if isinstance(made, tuple) and len(made) == 2:
        method, update = made
        checks.instance(update, Update, f"the update of {name}", "nw.Nesterov(momentum)")
    else:
        method, update = made, None
    checks.instance(method, Method, name, "nw.AsynchronousSGD(nw.Constant(stepsize))")
    return Entry(method, update)
