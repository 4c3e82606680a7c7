"""The contracts of stepsize rules, updates and outputs: all of the library keep them, and every check can fail."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

import nowait as nw
from nowait import core
from nowait.api.rebuild import rebuild
from nowait.core import Output, RandomIterate, Stepsize, Update
from nowait.pytorch import TorchMemory, TorchOptimizer
from nowait.recording import describe
from nowait.testing import (
    OUTPUT_CHECKS,
    OUTPUT_MEMORY_CHECKS,
    STEPSIZE_CHECKS,
    UPDATE_CHECKS,
    UPDATE_MEMORY_CHECKS,
)

STEPSIZES = {
    "AdaDelay": core.AdaDelay(2.0, 0.3),
    "Constant": core.Constant(0.1),
    "Cosine": core.Cosine(core.DelayAdaptive(0.1), 100),
    "Cosine, floor": core.Cosine(core.PolynomialDecay(0.1, 0.5), 100, 0.2),
    "CosineGate": core.CosineGate(0.1, 0.05, 12.0),
    "DelayAdaptive": core.DelayAdaptive(0.1),
    "DelayAdaptive, cut": core.DelayAdaptive(0.1, 7.5),
    "ExponentialDelayAdaptive": core.ExponentialDelayAdaptive(0.1, 4.0, 0.01),
    "HingeDecay": core.HingeDecay(0.1),
    "PolynomialDecay": core.PolynomialDecay(0.8),
    "PolynomialDecay, half": core.PolynomialDecay(0.8, 0.5),
    "Scheduled": core.Scheduled(core.DelayAdaptive(0.1), core.Warmup(10) * core.CosineDecay(500, 0.1)),
    "Scheduled, linear": core.Scheduled(core.AdaDelay(2.0, 0.3), core.LinearDecay(100)),
    "StepDecay": core.StepDecay(core.HingeDecay(0.1, 2.0, 3.0), 10, 0.5),
    "Threshold": core.Threshold(0.1),
    "Threshold, beyond": core.Threshold(0.1, 6.0, 3.0),
}
UPDATES = {
    "AMSGrad": core.AMSGrad(),
    "Adam": core.Adam(),
    "Adam, betas": core.Adam(0.5, 0.9, 1e-6),
    "HeLoCo": core.HeLoCo(0.5),
    "HeLoCo, keeps few": core.HeLoCo(keep=1.0, shrink=2.0, rotate=2.0),
    "LMO, euclidean": core.LMO("euclidean", beta=0.5),
    "LMO, schedule": core.LMO("sign", beta=None),
    "LMO, sign": core.LMO("sign", beta=0.5),
    "LMO, spectral": core.LMO(beta=0.5),
    "Momentum": core.Momentum(0.9),
    "Muon": core.Muon(rest=core.Momentum(0.5)),
    "Nesterov": core.Nesterov(0.7),
    "Proximal, Ball": core.Proximal(core.Ball(1.5)),
    "Proximal, Box": core.Proximal(core.Box(-1.0, 1.5)),
    "Proximal, L1": core.Proximal(core.L1(0.1)),
    "ScaleGradient, Adam": core.ScaleGradient(core.Adam()),
    "ScaleGradient, Momentum": core.ScaleGradient(core.Momentum(0.5)),
    "Sgd": core.Sgd(),
    "TorchOptimizer, AdamW": TorchOptimizer(torch.optim.AdamW, weight_decay=0.01),
    "TorchOptimizer, AdamW, scale": TorchOptimizer(torch.optim.AdamW, scale="gradient"),
    "TorchOptimizer, RMSprop": TorchOptimizer(torch.optim.RMSprop, momentum=0.5, centered=True),
    "TorchOptimizer, SGD": TorchOptimizer(torch.optim.SGD),
    "TorchOptimizer, SGD, momentum": TorchOptimizer(torch.optim.SGD, momentum=0.9, nesterov=True),
}
OUTPUTS = {
    "ExponentialAverage": core.ExponentialAverage(),
    "ExponentialAverage, short": core.ExponentialAverage(0.6),
    "LastIterate": core.LastIterate(),
    "RandomIterate": core.RandomIterate(),
    "UniformIterate": core.UniformIterate(),
    "StepsizeWeightedAverage": core.StepsizeWeightedAverage(),
    "StronglyConvexAverage": core.StronglyConvexAverage(0.5),
    "UniformAverage": core.UniformAverage(),
}
FAMILIES = {"stepsize": (STEPSIZES, Stepsize), "update": (UPDATES, Update), "output": (OUTPUTS, Output)}


@pytest.mark.parametrize("check", STEPSIZE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", STEPSIZES)
def test_stepsize_rules_keep_the_contract(name, check):
    check(STEPSIZES[name])


@pytest.mark.parametrize("check", UPDATE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", UPDATES)
def test_updates_keep_the_contract(name, check):
    check(UPDATES[name])


@pytest.mark.parametrize("check", OUTPUT_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_keep_the_contract(name, check):
    check(OUTPUTS[name])


@pytest.mark.parametrize("check", UPDATE_MEMORY_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", UPDATES)
def test_updates_of_tensors_keep_the_contract(name, check):
    check(UPDATES[name], TorchMemory("cpu"))


@pytest.mark.parametrize("check", OUTPUT_MEMORY_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_of_tensors_keep_the_contract(name, check):
    check(OUTPUTS[name], TorchMemory("cpu"))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_class_of_the_library_is_tested(family):
    examples, base = FAMILIES[family]
    public = {name for name in core.__all__ if isinstance(getattr(core, name), type)}
    classes = {name for name in public if issubclass(getattr(core, name), base) and name != base.__name__}
    assert {type(example).__name__ for example in examples.values()} >= classes


@pytest.mark.parametrize("name", STEPSIZES)
def test_config_makes_a_stepsize_rule_again(name):
    method = nw.AsynchronousSGD(STEPSIZES[name])
    assert rebuild(describe(method), "method") == method


@pytest.mark.parametrize("name", UPDATES)
def test_config_makes_an_update_again(name):
    assert repr(rebuild(describe(UPDATES[name]), "update")) == repr(UPDATES[name])


@pytest.mark.parametrize("name", OUTPUTS)
def test_config_makes_an_output_again(name):
    assert rebuild(describe(OUTPUTS[name]), "output") == OUTPUTS[name]


# One broken rule for each check of stepsizes


@dataclass(frozen=True)
class SoundRule(Stepsize):
    """γ/τ, written by hand."""

    size: float = 0.1

    def __call__(self, delay, num_workers, step):
        value = self.size / (np.asarray(delay) + 0.0 * np.asarray(step))
        return value if isinstance(delay, np.ndarray) else float(value)

    def with_size(self, size):
        return type(self)(size)


class Negative(SoundRule):
    def __call__(self, delay, num_workers, step):
        return super().__call__(delay, num_workers, step) - 0.001


class NoLimit(SoundRule):
    def __call__(self, delay, num_workers, step):
        value = np.where(np.asarray(delay) < 1_000, super().__call__(delay, num_workers, step), np.inf)
        return value if isinstance(delay, np.ndarray) else float(value)


class NeverMoves(SoundRule):
    def __call__(self, delay, num_workers, step):
        return 0.0 * super().__call__(delay, num_workers, step)


class Growing(SoundRule):
    def __call__(self, delay, num_workers, step):
        return 0.1 - 0.01 * super().__call__(delay, num_workers, step)


class Fading(SoundRule):
    calls = 0

    def __call__(self, delay, num_workers, step):
        Fading.calls += 1
        return super().__call__(delay, num_workers, step) / Fading.calls


class NumbersOnly(SoundRule):
    def __call__(self, delay, num_workers, step):
        return self.size / float(np.max(delay))


class Rounded(SoundRule):
    def __call__(self, delay, num_workers, step):
        value = super().__call__(delay, num_workers, step)
        return np.round(value, 3) if isinstance(delay, np.ndarray) else value


class Scalars(SoundRule):
    def __call__(self, delay, num_workers, step):
        return np.float64(self.size) / delay


class OtherAt(SoundRule):
    def at(self, arrival, server):
        return self(arrival.delay + 1, server.num_workers, server.steps + 1)


class OtherFresh(SoundRule):
    def fresh(self, server):
        return self(2, server.num_workers, server.steps + 1)


class Squared(SoundRule):
    def with_size(self, size):
        return type(self)(size**2)


class NotEqual(SoundRule):
    def __eq__(self, other):
        return self is other

    __hash__ = None


class Silent(SoundRule):
    def described(self):
        return {"type": "Silent"}


class Renamed(SoundRule):
    def described(self):
        return {"type": "Constant", "value": 0.1}


BROKEN_STEPSIZES = [
    ("stepsizes_are_finite_and_not_negative", Negative, "is -0.0"),
    ("stepsizes_are_finite_and_not_negative", NoLimit, "is inf"),
    ("stepsizes_are_finite_and_not_negative", NeverMoves, "params would not move"),
    ("old_gradients_get_no_longer_steps", Growing, "one is longer"),
    ("a_rule_has_no_memory", Fading, "must depend on its arguments only"),
    ("arrays_give_what_numbers_give", NumbersOnly, "arrays must give an array, got float"),
    ("arrays_give_what_numbers_give", Rounded, "gives other stepsizes than the numbers in it"),
    ("arrays_give_what_numbers_give", Scalars, "numbers must give a float, got float64"),
    ("a_run_uses_the_rule", OtherAt, "^at is"),
    ("a_run_uses_the_rule", OtherFresh, "^fresh is"),
    ("another_size_is_a_factor", Squared, "twice the size is not twice the stepsize"),
    ("a_copy_is_the_same_rule", NotEqual, "a pickled copy is not equal"),
    ("config_describes_the_rule", Silent, "would not say with which numbers"),
    ("config_describes_the_rule", Renamed, "config.json would call it 'Constant'"),
]


# One broken update for each check


@dataclass
class SoundUpdate(Update):
    """Heavy ball, written by hand."""

    beta: float = 0.5
    velocity: np.ndarray = field(init=False, repr=False, compare=False)

    def start(self, params):
        self.velocity = np.zeros_like(params)

    def apply(self, params, direction, stepsize, out):
        self.velocity = (self.beta * self.velocity + direction).astype(params.dtype)
        np.subtract(params, stepsize * self.velocity, out=out)


class InPlace(SoundUpdate):
    def apply(self, params, direction, stepsize, out):
        super().apply(params, direction, stepsize, out)
        params.flags.writeable = True
        params[:] = out


class Scaling(SoundUpdate):
    def apply(self, params, direction, stepsize, out):
        direction.flags.writeable = True
        direction *= 0.5
        super().apply(params, direction, stepsize, out)


class Partly(SoundUpdate):
    def apply(self, params, direction, stepsize, out):
        out[1:] = params[1:] - stepsize * direction[1:]


class Uphill(SoundUpdate):
    def apply(self, params, direction, stepsize, out):
        super().apply(params, -direction, stepsize, out)


class KeepsOn(SoundUpdate):
    def start(self, params):
        if not hasattr(self, "velocity") or self.velocity.dtype != params.dtype:
            super().start(params)


class Stateless(SoundUpdate):
    def state(self):
        return {}

    def restore(self, state):
        pass


class LosesCount(SoundUpdate):
    """What is lost makes no difference to the next steps, but will to the next checkpoint."""

    def start(self, params):
        super().start(params)
        self.steps = 0

    def apply(self, params, direction, stepsize, out):
        super().apply(params, direction, stepsize, out)
        self.steps += 1

    def state(self):
        return super().state() | {"steps": self.steps}

    def restore(self, state):
        super().restore({"velocity": state["velocity"]})


class Objects(SoundUpdate):
    def state(self):
        return super().state() | {"shape": "flat"}


class Unchecked(SoundUpdate):
    def checked(self, params, direction, stepsize, out):
        self.apply(params, direction, stepsize, out)
        return float(np.nansum(np.where(np.isfinite(direction), direction, 0.0) ** 2)), 0.0


class Spoiled(SoundUpdate):
    """It reports the direction that is not finite after it has used it."""

    def checked(self, params, direction, stepsize, out):
        with np.errstate(invalid="ignore"):
            self.apply(params, direction, stepsize, out)
            return float(np.sum(direction.astype(float) ** 2)), 0.0 if np.isfinite(out).all() else np.nan


class Optimist(SoundUpdate):
    def checked(self, params, direction, stepsize, out):
        return super().checked(params, direction, stepsize, out)[0], 0.0


class Pessimist(SoundUpdate):
    def checked(self, params, direction, stepsize, out):
        return super().checked(params, direction, stepsize, out)[0], np.nan


class OtherStepper(SoundUpdate):
    def stepper(self, params):
        return lambda params, direction, stepsize, out: self.checked(params, direction, stepsize / 2, out)


class OtherNorm(SoundUpdate):
    def checked(self, params, direction, stepsize, out):
        norm, finite = super().checked(params, direction, stepsize, out)
        return norm**0.5, finite


class NeverFades(SoundUpdate):
    @property
    def momentum_factor(self):
        return 1.0


class NotPlain(SoundUpdate):
    """It has momentum."""

    @property
    def is_plain(self):
        return True


class RenamedUpdate(SoundUpdate):
    def described(self):
        return {"type": "Momentum"}


BROKEN_UPDATES = [
    ("a_step_writes_all_of_out_and_nothing_else", InPlace, "a step wrote to params"),
    ("a_step_writes_all_of_out_and_nothing_else", Scaling, "a step wrote to its direction"),
    ("a_step_writes_all_of_out_and_nothing_else", Partly, "an entry of out was not written"),
    ("params_move_against_the_direction", Uphill, "400 steps along gradients"),
    ("start_makes_all_state_anew", KeepsOn, "start must make all state anew"),
    ("a_restored_update_goes_on_with_the_same_bits", Stateless, "a restored update makes other steps"),
    ("a_restored_update_goes_on_with_the_same_bits", LosesCount, r"ends with another state: \['steps'\]"),
    ("a_restored_update_goes_on_with_the_same_bits", Objects, r"\['shape'\] cannot be written to a checkpoint"),
    ("a_bad_direction_changes_nothing", Unchecked, "a direction with nan was not reported"),
    ("a_bad_direction_changes_nothing", Spoiled, "a direction with nan changed the state"),
    ("params_that_overflow_are_reported", Optimist, "but the step reported 0.0"),
    ("params_that_overflow_are_reported", Pessimist, "a finite step was reported as nan"),
    ("a_checked_step_is_a_step", OtherStepper, "stepper and apply make different steps"),
    ("a_checked_step_is_a_step", OtherNorm, "the squared norm is"),
    ("momentum_is_a_fraction", NeverFades, "momentum_factor is 1.0"),
    ("a_plain_update_makes_plain_steps", NotPlain, "step 2 is not x − γ·g, but is_plain is True"),
    ("config_describes_the_update", RenamedUpdate, "config.json would call it 'Momentum'"),
]


# One broken output for each check


@dataclass
class SoundOutput(Output):
    """The mean of x_1 … x_K, written by hand."""

    total: np.ndarray = field(init=False, repr=False, compare=False)
    count: int = field(init=False, repr=False, compare=False)

    def start(self, params, random):
        self.total, self.count = np.zeros(params.size), 0

    def on_iterate(self, params):
        self.total += params
        self.count += 1

    def shares(self, uses, random):
        return np.array([0.0] + [1 / uses.steps] * uses.steps)

    def result(self, last):
        return self.total / self.count if self.count else last


class OneNumber(SoundOutput):
    def result(self, last):
        return np.mean(last)


class Divided(SoundOutput):
    def result(self, last):
        with np.errstate(all="ignore"):
            return super().result(last) / 0.0


class Zeros(SoundOutput):
    def result(self, last):
        return self.total / max(1, self.count)


class Undivided(SoundOutput):
    def result(self, last):
        return self.total if self.count else last


class GoesOn(SoundOutput):
    def start(self, params, random):
        if not hasattr(self, "total"):
            super().start(params, random)


class Aliasing(SoundOutput):
    def start(self, params, random):
        super().start(params, random)
        self.latest = params

    def on_iterate(self, params):
        self.latest = params

    def result(self, last):
        return self.latest


class Overwriting(SoundOutput):
    def on_iterate(self, params):
        params.flags.writeable = True
        params *= 0.5
        super().on_iterate(params)


class HalfAState(SoundOutput):
    def state(self):
        return {"total": self.total}


class LosesDraws(RandomIterate):
    def restore(self, state):
        super().restore(state | {"draws": 0})


class ObjectState(SoundOutput):
    def state(self):
        return super().state() | {"kind": "mean"}


class CountsZeros(SoundOutput):
    def on_gradient(self, point, stepsize, stepsize_sum):
        self.total += point
        self.count += 1


class OtherShares(SoundOutput):
    def shares(self, uses, random):
        return np.full(uses.steps + 1, 1 / (uses.steps + 1))


class TooMuch(SoundOutput):
    def shares(self, uses, random):
        return super().shares(uses, random) * 1.1


class TooFew(SoundOutput):
    def shares(self, uses, random):
        return super().shares(uses, random)[1:]


class RenamedOutput(SoundOutput):
    def described(self):
        return {"type": "UniformAverage"}


BROKEN_OUTPUTS = [
    ("the_answer_is_like_params", OneNumber, r"the answer has shape \(\)"),
    ("the_answer_is_like_params", Divided, "the answer is not finite"),
    ("without_a_step_the_answer_is_the_start", Zeros, "must be the initial params"),
    ("equal_iterates_are_the_answer", Undivided, "the weights do not sum to 1"),
    ("start_makes_all_state_anew", GoesOn, "start must make all state anew"),
    ("points_are_copied_and_not_written", Aliasing, "kept params without a copy"),
    ("points_are_copied_and_not_written", Overwriting, "the output wrote to params"),
    ("a_restored_output_goes_on_with_the_same_bits", HalfAState, "its state is incomplete"),
    ("a_restored_output_goes_on_with_the_same_bits", LosesDraws, r"ends with another state: \['draws'\]|incomplete"),
    ("a_restored_output_goes_on_with_the_same_bits", ObjectState, r"\['kind'\] cannot be written"),
    ("gradients_without_weight_do_not_count", CountsZeros, "with a stepsize of 0 changed the answer"),
    ("shares_are_the_answer", OtherShares, "shares make another answer"),
    ("shares_are_the_answer", TooMuch, "shares sum to 1.09"),
    ("shares_are_the_answer", TooFew, "shares must be those of x_0"),
    ("config_describes_the_output", RenamedOutput, "config.json would call it 'UniformAverage'"),
]

CHECKS = [
    (STEPSIZE_CHECKS, SoundRule, BROKEN_STEPSIZES),
    (UPDATE_CHECKS, SoundUpdate, BROKEN_UPDATES),
    (OUTPUT_CHECKS, SoundOutput, BROKEN_OUTPUTS),
]
BROKEN = [(checks, *row) for checks, _, rows in CHECKS for row in rows]


@pytest.mark.parametrize(("checks", "name", "make", "message"), BROKEN, ids=[row[2].__name__ for row in BROKEN])
def test_a_broken_part_fails_its_check(checks, name, make, message):
    [check] = [check for check in checks if check.__name__ == name]
    with pytest.raises(AssertionError, match=message):
        check(make())


@pytest.mark.parametrize(("checks", "sound", "broken"), CHECKS, ids=["stepsizes", "updates", "outputs"])
def test_every_check_is_shown_to_pass_and_to_fail(checks, sound, broken):
    for check in checks:
        check(sound())
    assert {name for name, *_ in broken} == {check.__name__ for check in checks}


class HalfStepsOfTensors(Update):
    def apply(self, params, direction, stepsize, out):
        out[:] = params - (0.5 if isinstance(params, torch.Tensor) else 1.0) * stepsize * direction

    def state(self):
        return {}


class FirstOfTensors(Output):
    def on_iterate(self, params):
        if isinstance(params, np.ndarray) or not hasattr(self, "kept"):
            self.kept = params + 0.0

    def start(self, params, random):
        vars(self).clear()

    def state(self):
        return {}

    def result(self, last):
        return self.kept


def test_parts_whose_results_depend_on_the_memory_fail():
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        UPDATE_MEMORY_CHECKS[0](HalfStepsOfTensors(), TorchMemory("cpu"))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        OUTPUT_MEMORY_CHECKS[0](FirstOfTensors(), TorchMemory("cpu"))
