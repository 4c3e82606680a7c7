"""Delay rules around plain PyTorch optimisers, and gradients that are applied late."""

import numpy as np
import pytest
import torch
from torch import nn

import nowait as nw
from nowait import rules
from nowait.pytorch import DelayAware, Delayed

DELAYS = np.array([1, 2, 4, 5, 9, 100])
STEPSIZES = {
    "constant": (nw.Constant(0.2), {}),
    "cosine_gate": (nw.CosineGate(0.2, 0.05, 8.0), {"rate": 0.05, "cutoff": 8.0}),
    "delay_adaptive": (nw.DelayAdaptive(0.2), {}),
    "delay_adaptive, cut": (nw.DelayAdaptive(0.2, 2.0), {"cut": 2.0}),
    "exponential_delay_adaptive": (nw.ExponentialDelayAdaptive(0.2, 3.0, 0.01), {"cut": 3.0, "rate": 0.01}),
    "hinge_decay": (nw.HingeDecay(0.2, 2.0, 3.0), {"slope": 2.0, "patience": 3.0}),
    "polynomial_decay": (nw.PolynomialDecay(0.2, 0.5), {"power": 0.5}),
    "threshold": (nw.Threshold(0.2, 3.0, 1.0), {"concurrency": 3.0, "beyond": 1.0}),
}


@pytest.mark.parametrize("name", STEPSIZES)
def test_a_rule_is_the_factor_of_its_stepsize(name):
    stepsize, options = STEPSIZES[name]
    function = getattr(rules, name.partition(",")[0])
    expected = stepsize(DELAYS, 4, 1) / 0.2
    np.testing.assert_allclose(function(DELAYS, 4, **options), expected, rtol=1e-15)
    np.testing.assert_allclose([rules.factor_of(stepsize)(int(delay), 4) for delay in DELAYS], expected, rtol=1e-15)


@pytest.mark.parametrize("name", STEPSIZES)
@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
def test_a_rule_of_tensors_is_a_tensor(name, kind):
    stepsize, options = STEPSIZES[name]
    function, delays = getattr(rules, name.partition(",")[0]), torch.tensor(DELAYS).to(kind)
    expected = torch.from_numpy(function(DELAYS, 4, **options)).to(torch.float32 if kind == torch.int64 else kind)
    workers = torch.full((len(DELAYS),), 4)
    for found in (function(delays, 4, **options), function(delays, workers, **options)):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    assert torch.equal(function(delays[3], 4, **options), expected[3])
    torch.testing.assert_close(rules.factor_of(stepsize)(delays, 4), expected)


def test_every_stepsize_rule_with_a_size_has_a_function():
    sized = {type(stepsize).__name__ for stepsize, _ in STEPSIZES.values()}
    schedules = {"Scheduled", "StepDecay", "Cosine"}
    public = {name for name in nw.stepsizes.__all__ if issubclass(getattr(nw.stepsizes, name), nw.Stepsize)}
    assert public - {"Stepsize", "AdaDelay"} - schedules == sized
    with pytest.raises(TypeError, match="a delay rule must be a function"):
        rules.factor_of(0.5)


class ByTable(nw.Stepsize):
    """A rule of a user, which reads the step in a way of its own."""

    def __init__(self, read):
        self.read = read

    def with_size(self, size):
        return self

    def __call__(self, delay, num_workers, step):
        return 0.5 if self.read(step) else 1.0


@pytest.mark.parametrize(
    "rule",
    [
        nw.Scheduled(nw.DelayAdaptive(0.1), nw.schedules.warmup(100)),
        nw.Scheduled(nw.DelayAdaptive(0.1), lambda step: 1.0),
        nw.StepDecay(nw.Constant(0.1), every=10**7),
        nw.Cosine(nw.DelayAdaptive(0.1), steps=100),
        ByTable(lambda step: step == 5),
        ByTable(lambda step: step in {1, 2}),
        ByTable(lambda step: step),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_a_rule_that_depends_on_the_step_is_refused(rule):
    with pytest.raises(ValueError, match=r"depends on the number of the step, .* would stay at step 1: give the delay"):
        DelayAware(torch.optim.SGD(a_model().parameters(), lr=0.1), rule, workers=4)


def test_a_rule_without_a_size_says_so():
    class Inverse(nw.Stepsize):
        def __call__(self, delay, num_workers, step):
            return 0.1 / delay

    optimizer = torch.optim.SGD(a_model().parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"Inverse has no with_size\(size\), .* give a function of \(delay, workers\)"):
        DelayAware(optimizer, Inverse(), workers=4)
    with pytest.raises(ValueError, match=r"AdaDelay depends on the number of the step"):
        DelayAware(optimizer, nw.AdaDelay(0.1, scale=1.0), workers=4)


def a_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def backward(model, number):
    model.zero_grad()
    model(torch.randn(5, 3, generator=torch.Generator().manual_seed(number))).square().mean().backward()


def flat(model):
    return torch.cat([parameter.detach().ravel() for parameter in model.parameters()])


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_step_with_a_delay_has_a_smaller_learning_rate_for_that_step_only(kind):
    ours, theirs = a_model(), a_model()
    wrapped, plain = DelayAware(kind(ours.parameters(), lr=0.1), workers=4), kind(theirs.parameters(), lr=0.1)
    for number, delay in enumerate([1, 8, 2, 16]):
        backward(ours, number)
        backward(theirs, number)
        assert wrapped.step(delay=delay) == min(1.0, 4 / delay)
        plain.param_groups[0]["lr"] = 0.1 * min(1.0, 4 / delay)
        plain.step()
        assert wrapped.param_groups[0]["lr"] == 0.1
    assert torch.equal(flat(ours), flat(theirs))


def test_a_scaled_gradient_enters_the_moments_scaled():
    ours, theirs = a_model(), a_model()
    wrapped = DelayAware(torch.optim.Adam(ours.parameters(), lr=0.1), workers=1, scale="gradient")
    plain = torch.optim.Adam(theirs.parameters(), lr=0.1)
    for number, delay in enumerate([1, 4]):
        backward(ours, number)
        backward(theirs, number)
        wrapped.step(delay=delay)
        for parameter in theirs.parameters():
            parameter.grad /= delay
        plain.step()
    assert torch.equal(flat(ours), flat(theirs))


def test_a_factor_of_zero_makes_no_step_and_leaves_the_moments_alone():
    model = a_model()
    optimizer = DelayAware(torch.optim.Adam(model.parameters(), lr=0.1), nw.Threshold(1.0), workers=2)
    backward(model, 0)
    before = flat(model)
    assert optimizer.step(delay=9) == 0.0
    assert torch.equal(flat(model), before)
    assert not optimizer.state


def test_groups_are_those_of_the_optimiser_also_after_loading():
    model = a_model()
    for wrapped in (
        DelayAware(torch.optim.SGD(model.parameters(), lr=0.1), workers=1),
        Delayed(torch.optim.SGD(model.parameters(), lr=0.1), 2),
    ):
        wrapped.load_state_dict(wrapped.state_dict())
        assert wrapped.param_groups is wrapped.optimizer.param_groups
        assert wrapped.state is wrapped.optimizer.state


def test_a_learning_rate_that_is_a_tensor_stays_that_tensor():
    model, rate = a_model(), torch.tensor(0.1)
    optimizer = DelayAware(torch.optim.Adam(model.parameters(), lr=rate), workers=1)
    backward(model, 0)
    optimizer.step(delay=2)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate == 0.1


def test_gradients_are_applied_late():
    """Each gradient is computed at the params of two steps before the one that it changes."""
    ours, theirs = a_model(), a_model()
    wrapped, plain = (
        Delayed(torch.optim.SGD(ours.parameters(), lr=0.1), 3),
        torch.optim.SGD(theirs.parameters(), lr=0.1),
    )
    points = [flat(theirs).clone()] * 3
    made = []
    for number in range(6):
        backward(ours, number)
        made.append(wrapped.step())
    for number in range(4):
        nn.utils.vector_to_parameters(points[number].clone(), theirs.parameters())
        backward(theirs, number)
        nn.utils.vector_to_parameters(points[-1].clone(), theirs.parameters())
        plain.step()
        points.append(flat(theirs).clone())
    assert made == [False, False, True, True, True, True]
    torch.testing.assert_close(flat(ours), points[-1])


def test_delay_one_is_the_plain_optimiser_and_the_present_gradients_stay():
    ours, theirs = a_model(), a_model()
    wrapped, plain = (
        Delayed(torch.optim.SGD(ours.parameters(), lr=0.1), 1),
        torch.optim.SGD(theirs.parameters(), lr=0.1),
    )
    for number in range(3):
        backward(ours, number)
        backward(theirs, number)
        assert wrapped.step()
        plain.step()
    assert torch.equal(flat(ours), flat(theirs))
    late = Delayed(torch.optim.SGD(ours.parameters(), lr=0.1), 2)
    for number in range(2):
        backward(ours, number)
        present = [parameter.grad.clone() for parameter in ours.parameters()]
        late.step()
        assert all(map(torch.equal, present, [parameter.grad for parameter in ours.parameters()]))


def test_what_waits_is_saved_and_a_rule_and_a_delay_go_together():
    models = [a_model(), a_model()]
    first, second = (Delayed(DelayAware(torch.optim.SGD(model.parameters(), lr=0.1), workers=1), 2) for model in models)
    backward(models[0], 0)
    first.step()
    second.load_state_dict(first.state_dict())
    for model, optimizer in zip(models, (first, second), strict=True):
        backward(model, 1)
        assert optimizer.step()
    assert torch.equal(flat(models[0]), flat(models[1]))
    backward(models[0], 0)
    change = flat(a_model()) - flat(models[0])
    reference = a_model()
    backward(reference, 0)
    gradient = torch.cat([parameter.grad.ravel() for parameter in reference.parameters()])
    torch.testing.assert_close(change, 0.05 * gradient)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda optimizer: DelayAware(optimizer, workers=0), "workers must be"),
        (lambda optimizer: DelayAware("adam", workers=1), "optimizer must be"),
        (lambda optimizer: DelayAware(optimizer, workers=1, scale="lr"), "scale must be one of 'step', 'gradient'"),
        (lambda optimizer: DelayAware(optimizer, workers=1).step(delay=0), "delay must be"),
        (lambda optimizer: DelayAware(optimizer, lambda *_: -1.0, workers=1).step(delay=1), "the rule returned -1.0"),
        (lambda optimizer: Delayed(optimizer, 0), "delay must be"),
    ],
)
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(torch.optim.SGD(a_model().parameters(), lr=0.1))
