"""The contract of a stepsize rule, as checks that run on any rule. Each raises ``AssertionError``.

@pytest.mark.parametrize("check", STEPSIZE_CHECKS, ids=lambda check: check.__name__)
def test_my_rule(check):
    check(MyRule(0.1))
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from itertools import product
from typing import Any, final

import numpy as np

from nowait.core import Arrival, Method, Server, Stepsize
from nowait.recording import describe
from nowait.testing.workers import ScriptedWorkers

DELAYS = (1, 2, 3, 5, 8, 13, 40, 300, 100_000)
WORKERS = (1, 4, 50)
STEPS = (1, 2, 10, 1_000, 1_000_000)
GRID = list(product(DELAYS, WORKERS, STEPS))
"""(delay, number of workers, step)"""


def stepsizes_are_finite_and_not_negative(rule: Stepsize) -> None:
    """Stepsizes are finite and at least 0, and above 0 for a fresh gradient at the first step."""
    for arguments, value in zip(GRID, _values(rule), strict=True):
        assert math.isfinite(value), f"the stepsize for (delay, num_workers, step) = {arguments} is {value}"
        assert value >= 0, f"the stepsize for (delay, num_workers, step) = {arguments} is {value}"
    assert rule(1, 4, 1) > 0, "the first stepsize of a fresh gradient is 0: params would not move"


def old_gradients_get_no_longer_steps(rule: Stepsize) -> None:
    """The stepsize does not increase with the delay. Leave this check out for a rule that is meant to."""
    for num_workers, step in product(WORKERS, STEPS):
        values = [float(rule(delay, num_workers, step)) for delay in DELAYS]
        assert values == sorted(values, reverse=True), f"the stepsizes for delays {DELAYS} are {values}: one is longer"


def a_rule_has_no_memory(rule: Stepsize) -> None:
    """The same arguments give the same stepsize, in any order of calls."""
    first = _values(rule)
    again = [float(rule(*arguments)) for arguments in reversed(GRID)][::-1]
    assert first == again, "the same arguments gave another stepsize: a rule must depend on its arguments only"


def arrays_give_what_numbers_give(rule: Stepsize) -> None:
    """A rule takes arrays, elementwise, and gives plain floats for plain numbers."""
    delays, workers, steps = (np.array(column) for column in zip(*GRID, strict=True))
    values = rule(delays, workers, steps)
    assert isinstance(values, np.ndarray), f"arrays must give an array, got {type(values).__name__}"
    assert values.shape == delays.shape, f"arrays of shape {delays.shape} must give that shape, got {values.shape}"
    assert values.tolist() == _values(rule), "an array of arguments gives other stepsizes than the numbers in it"
    single = rule(3, 4, 5)
    assert type(single) is float, f"numbers must give a float, got {type(single).__name__}"


def a_run_uses_the_rule(rule: Stepsize) -> None:
    """``at`` and ``fresh`` are the rule with the delay, the number of workers and the step of a run."""
    witness = _Witness(rule)
    workers = ScriptedWorkers(witness, num_workers=3).after(12)
    workers.lose(1)
    workers.after(8)
    for kind, value, arguments in witness.seen:
        expected = float(rule(*arguments))
        assert value == expected, f"{kind} is {value}, but the rule with {arguments} is {expected}"


def another_size_is_a_factor(rule: Stepsize) -> None:
    """``with_size`` multiplies every stepsize by the same factor; a rule without a single size raises ``TypeError``."""
    try:
        small, large = rule.with_size(0.25), rule.with_size(0.5)
    except TypeError:
        return
    for arguments, one, two in zip(GRID, _values(small), _values(large), strict=True):
        assert math.isclose(2 * one, two, rel_tol=1e-12), f"twice the size is not twice the stepsize at {arguments}"


def a_copy_is_the_same_rule(rule: Stepsize) -> None:
    """A pickled copy is equal and gives the same stepsizes."""
    copy = pickle.loads(pickle.dumps(rule))
    assert copy == rule, "a pickled copy is not equal: make the rule a dataclass"
    assert _values(copy) == _values(rule), "a pickled copy gives other stepsizes"


def config_describes_the_rule(rule: Stepsize) -> None:
    """Its description for ``config.json`` is valid JSON and contains the class name."""
    described = json.loads(json.dumps(describe(rule)))
    assert described.get("type") == type(rule).__name__, f"config.json would call it {described.get('type')!r}"
    assert len(described) > 1, "config.json would not say with which numbers it was made: make the rule a dataclass"


STEPSIZE_CHECKS: list[Callable[[Stepsize], None]] = [
    stepsizes_are_finite_and_not_negative,
    old_gradients_get_no_longer_steps,
    a_rule_has_no_memory,
    arrays_give_what_numbers_give,
    a_run_uses_the_rule,
    another_size_is_a_factor,
    a_copy_is_the_same_rule,
    config_describes_the_rule,
]
"""Checks of a stepsize rule."""


def _values(rule: Stepsize) -> list[float]:
    return [float(rule(*arguments)) for arguments in GRID]


@final
class _Witness(Method):
    """Applies every gradient with a small stepsize, and records the stepsizes of the rule."""

    def __init__(self, rule: Stepsize) -> None:
        self._rule = rule
        self.seen: list[tuple[str, float, tuple[Any, ...]]] = []

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Apply the gradient with the rule's stepsize, and assign a ticket."""
        step = server.steps + 1
        self.seen.append(("at", self._rule.at(arrival, server), (arrival.delay, server.num_workers, step)))
        self.seen.append(("fresh", self._rule.fresh(server), (1, server.num_workers, step)))
        server.apply(arrival, 1e-3)
        server.assign(arrival.worker)
