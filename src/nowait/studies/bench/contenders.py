"""The methods that the benchmark compares, with the parameters and updates that each may try."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

from nowait import methods
from nowait.core import AMSGrad, Constant, DelayAdaptive, Method, Momentum, Sgd, Update

Make = Callable[[float], Method]
"""Makes a method with a stepsize."""

UPDATES: dict[str, Update | None] = {
    "usual": None,
    "sgd": Sgd(),
    "momentum": Momentum(0.9),
    "amsgrad": AMSGrad(0.9, 0.99),
}
"""The updates that are tried, by name; "usual" is the method's own, which is plain SGD for most."""
PLAIN, EITHER = ("usual",), ("usual", "momentum")


@final
@dataclass(frozen=True)
class Scales:
    """Lengths of a problem, for parameters of methods that are lengths."""

    gradient: float
    """The norm of the gradient at the start."""
    distance: float
    """How far params move, about."""


@final
@dataclass(frozen=True)
class Contender:
    """A method to compare: a function of the stepsize for each choice of its parameters, and the updates to try."""

    choices: Mapping[str, Make]
    updates: tuple[str, ...] = EITHER
    center: float | None = None
    """The middle of the stepsizes; None is the problem's unit, divided by what the method says."""

    def combinations(self) -> list[tuple[str, str]]:
        """Return every choice of parameters with every update."""
        return [(choice, update) for choice in self.choices for update in self.updates]

    def middle(self, choice: str, update: str, unit: float, num_workers: int) -> float:
        """Return the stepsize in the middle of the grid."""
        if self.center is not None:
            return self.center
        rule = UPDATES[update]
        momentum = 0.0 if rule is None else rule.momentum_factor
        return unit * (1.0 - momentum) / self.choices[choice](1.0).stepsize_divisor(num_workers)


def single(make: Make, **options: Any) -> Contender:
    """Return a contender without parameters."""
    return Contender({"": make}, **options)


def varied(name: str, values: tuple[Any, ...], make: Callable[[float, Any], Method], **options: Any) -> Contender:
    """Return a contender with one parameter.

    >>> list(
    ...     varied(
    ...         "batch",
    ...         (4, 16),
    ...         lambda size, batch: methods.RennalaSGD(Constant(size), batch),
    ...     ).choices
    ... )
    ['batch=4', 'batch=16']
    """

    def with_value(value: Any) -> Make:
        return lambda size: make(size, value)

    return Contender({f"{name}={_shown(value)}": with_value(value) for value in values}, **options)


def contenders(scales: Scales) -> dict[str, Contender]:
    """Return all methods of the suite, for ten workers or so."""
    return _minibatches() | _at_once(scales) | _own_data() | _buffers_and_corrections()


def _minibatches() -> dict[str, Contender]:
    batches = (5, 10, 40)
    return {
        "MinibatchSGD": single(lambda size: methods.MinibatchSGD(Constant(size))),
        "MSynchronousSGD": varied("m", (5, 8, 9), lambda size, m: methods.MSynchronousSGD(Constant(size), m)),
        "CycleSGD": varied("group", (2, 5), lambda size, group: methods.CycleSGD(Constant(size), group)),
        "RennalaSGD": varied("batch", batches, lambda size, n: methods.RennalaSGD(Constant(size), n)),
        "RennalaSGD, cancel=False": varied(
            "batch", batches, lambda size, n: methods.RennalaSGD(Constant(size), n, cancel=False)
        ),
        "QuantileMinibatchSGD": varied(
            "quantile", (0.25, 0.5, 0.9), lambda size, q: methods.QuantileMinibatchSGD(Constant(size), q)
        ),
        "ATA": varied("batch", batches, lambda size, n: methods.ATA(Constant(size), n)),
        "MindFlayerSGD": varied(
            "timeout_seconds", (1.5, 4.0, 12.0), lambda size, limit: methods.MindFlayerSGD(Constant(size), limit, 1)
        ),
    }


def _at_once(scales: Scales) -> dict[str, Contender]:
    delays, clip, radius = (5, 20, 80), scales.gradient, scales.distance
    return {
        "AsynchronousSGD, adaptive": single(lambda size: methods.AsynchronousSGD(DelayAdaptive(size))),
        "AsynchronousSGD, constant": single(lambda size: methods.AsynchronousSGD(Constant(size))),
        "RingmasterASGD": varied("max_delay", delays, lambda size, most: methods.RingmasterASGD(Constant(size), most)),
        "RingmasterASGD, cancel_stale": varied(
            "max_delay", delays, lambda size, most: methods.RingmasterASGD(Constant(size), most, cancel_stale=True)
        ),
        "RingmasterLMO": varied(
            "ball",
            ("euclidean", "sign"),
            lambda size, ball: methods.RingmasterLMO(Constant(size), ball),
            updates=PLAIN,
            center=1.0,
        ),
        "StaleSynchronousSGD": varied(
            "slack", (1, 4, 16), lambda size, slack: methods.StaleSynchronousSGD(Constant(size), slack)
        ),
        "PickySGD": varied(
            "radius",
            (0.01 * radius, 0.1 * radius, radius),
            lambda size, length: methods.PickySGD(Constant(size), length),
        ),
        "ClippedASGD": varied(
            "max_norm", (0.1 * clip, clip, 10 * clip), lambda size, norm: methods.ClippedASGD(Constant(size), norm)
        ),
        "RandomAssignment": single(lambda size: methods.RandomAssignment(DelayAdaptive(size))),
        "ShuffledAssignment": single(lambda size: methods.ShuffledAssignment(DelayAdaptive(size))),
    }


def _own_data() -> dict[str, Contender]:
    return {
        "GradientTable": single(lambda size: methods.GradientTable(Constant(size))),
        "PIAG": single(lambda size: methods.PIAG(size), center=1.5),  # noqa: PLW0108 (all are made by functions)
        "RingleaderASGD": single(lambda size: methods.RingleaderASGD(Constant(size))),
        "MaleniaSGD": varied("batch", (10, 20, 40), lambda size, n: methods.MaleniaSGD(Constant(size), n)),
        "RescaledASGD": single(lambda size: methods.RescaledASGD(Constant(size))),
        "CA2FL": varied("buffer", (3, 5, 10), lambda size, n: methods.CA2FL(Constant(size), n)),
    }


def _buffers_and_corrections() -> dict[str, Contender]:
    buffers = (3, 5, 10)
    return {
        "FedBuff": varied("buffer", buffers, lambda size, n: methods.FedBuff(Constant(size), n)),
        "FADAS, AMSGrad": varied(
            "buffer", buffers, lambda size, n: methods.FADAS(Constant(size), n), updates=("amsgrad",), center=0.1
        ),
        "FedAT": varied("tiers", (2, 4), lambda size, n: methods.FedAT(Constant(size), n), updates=PLAIN),
        "DecoupledDiLoCo": varied(
            "quorum", (3, 5, 8), lambda size, n: methods.DecoupledDiLoCo(Constant(size), n), updates=("usual", "sgd")
        ),
        "DelayedNesterov": varied(
            "every", buffers, lambda size, n: methods.DelayedNesterov(Constant(size), n), updates=PLAIN
        ),
        "OrderedMomentum": varied(
            "beta", (0.5, 0.9), lambda size, beta: methods.OrderedMomentum(DelayAdaptive(size), beta), updates=PLAIN
        ),
        "DelayCompensatedSGD": varied(
            "strength", (0.04, 0.5, 2.0), lambda size, s: methods.DelayCompensatedSGD(Constant(size), s)
        ),
        "AdaptiveRevision": single(lambda size: methods.AdaptiveRevision(Constant(size)), updates=PLAIN, center=0.6),
    }


def space_facts(contender: Contender) -> list[Any]:
    """Return the search space of a contender as JSON values, for the digest of a suite."""
    combinations = [
        [choice, update, repr(contender.choices[choice](1.0)), repr(UPDATES[update])]
        for choice, update in contender.combinations()
    ]
    return [*combinations, contender.center]


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
