"""How the server of a run makes its steps: the method with its schedule, the update, and the default stepsize."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from nowait.cli.methods import check_has_default_stepsize, default_stepsize, parse_method, scheduled
from nowait.cli.problems import unit_of
from nowait.cli.results import open_console
from nowait.cli.schedules import parse_schedule
from nowait.cli.updates import parse_one_update
from nowait.core import Method, ScaleGradient, Sgd, Update
from nowait.core.capabilities import Capabilities
from nowait.recording import describe
from nowait.studies.own_code import Make

LIKE_SGD = ("Sgd", "SGD", "Momentum", "Nesterov", "Proximal")
"""Updates whose steps are multiples of gradients, by the names that describe them: stepsizes are near 1/L."""


@final
@dataclass(frozen=True)
class Stepping:
    """What ``--method``, ``--schedule`` and ``--update`` say."""

    make: Make
    """Makes the method, with its schedule, with a stepsize."""
    update: Update | None
    """None is the default of the method or of the problem."""

    def check_default_stepsize(self, problem: Any, option: str) -> None:
        """Raise if stepsizes cannot be chosen by L: ``option`` must then be given. None is an unknown problem."""
        method = self.make(1.0)
        check_has_default_stepsize(method)
        update = self._added_update(method, problem)
        if _name_of(update) not in LIKE_SGD:
            raise ValueError(
                f"{option} is needed with {update!r}: the default, half of 1/L or less, suits SGD and momentum only"
            )

    def words_on_update(self, problem: Any) -> str:
        """Return a sentence on the update."""
        if self.update is not None:
            return f"The update is {self.update!r}."
        return f"No --update given: {_words_on_default(self.make(1.0), problem)}."

    def method(self, stepsize: float | None, problem: Any, workers: int) -> tuple[Method, float]:
        """Return the method and its stepsize: the one given, or half of 1/L over the method's divisor."""
        if stepsize is not None:
            return self.make(stepsize), stepsize
        plain = self.make(1.0)
        size, text = default_stepsize(plain, unit_of(problem), workers)
        momentum = self._added_update(plain, problem).momentum_factor
        size *= 1.0 - momentum
        text += f", times 1 − {momentum:g} because of the momentum" if momentum else ""
        open_console(stderr=True).print(f"No --stepsize given: using {size:.3g}, half of {text}.", highlight=False)
        return self.make(size), size

    def _added_update(self, method: Method, problem: Any) -> Update:
        """Return the update by which the default stepsize goes; the method knows about an update of its own."""
        if self.update is not None:
            return self.update
        if problem is None or method.makes_its_own_update or method.usual_update() is not None:
            return Sgd()
        return Capabilities.of(problem).usual_update()


def stepping_of(method: str, update: str | None, schedule: str | None, steps: int | None) -> Stepping:
    """Return what the options of a command say, checked; ``steps`` are those of the run, for the schedule."""
    plain, factor, chosen = parse_method(method), parse_schedule(schedule, steps), parse_one_update(update)

    def make(size: float) -> Method:
        return scheduled(plain(size), factor)

    example = make(1.0)
    if chosen is not None:
        example.check_update(chosen)
    return Stepping(make, chosen)


def _name_of(update: Update) -> str:
    """Return the name of an update, or that of the optimiser of PyTorch or the update inside of it."""
    inner = update.update if isinstance(update, ScaleGradient) else update
    described: dict[str, Any] = describe(inner)
    return str(described.get("optimizer", described["type"]))


def _words_on_default(method: Method, problem: Any) -> str:
    name, own = type(method).__name__, method.usual_update()
    momentum = method.momentum_with(Capabilities.of(problem).update_for(method))
    if momentum > 0:
        return f"{name} makes its own, with momentum {momentum:g}"
    if method.makes_its_own_update:
        return f"{name} makes its own"
    if own is not None:
        return f"using {own!r}, the default of {name}"
    usual = Capabilities.of(problem).usual_update()
    return "using plain SGD" if isinstance(usual, Sgd) else f"using {usual!r}, the default of the problem"
