"""The sharper bounds: their formulas, runs that they must cover, and instances that come close to them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nowait as nw
from nowait.theory import Constants, bounds
from nowait.theory.case import Case
from nowait.theory.envelope import least_share


def asynchronous_sgd(order, workers, start, gradient, rule):
    """Return x_1 … x_K and their γ̂, straight from Algorithm 1. ``gradient(point, worker)`` is exact."""
    steps = len(order)
    held = [(0, np.asarray(start, float))] * workers  # version and point of each worker
    point, iterates, hats = held[0][1], [], np.zeros(steps + 1)
    for k, worker in enumerate(order, start=1):
        version, old = held[worker]
        hats[version] = rule(k - version, workers, k)
        point = point - hats[version] * gradient(old, worker)
        held[worker] = (k, point)
        iterates.append(point)
    for version, _ in held:
        if version:
            hats[version] = rule(max(1, steps - version), workers, steps)
    return np.array(iterates), hats[1:]


def alternating(workers, steps):
    """Worker 0 alternates with a cycle of the others: the order with the least sum of stepsizes."""
    others = [1 + place % (workers - 1) for place in range(steps)]
    return [0 if k % 2 else others[k // 2] for k in range(1, steps + 1)]


def a_case(setting, workers, steps, **constants):
    return Case(setting, Constants(**constants), workers, steps)


# The sum of the stepsizes

RULES = st.one_of(
    st.builds(nw.DelayAdaptive, st.just(0.1), cut=st.floats(0.2, 40.0)),
    st.builds(nw.ExponentialDelayAdaptive, st.just(0.1), cut=st.floats(0.2, 40.0), rate=st.floats(0.0, 0.5)),
)


@settings(max_examples=200)
@given(st.integers(2, 6), st.lists(st.integers(0, 5), min_size=6, max_size=80), RULES)
def test_the_stepsizes_add_up_to_their_least_share_for_every_order(workers, order, rule):
    mine = [worker % workers for worker in order]
    _, hats = asynchronous_sgd(mine, workers, np.zeros(1), lambda point, worker: point, rule)
    assert hats.sum() >= rule.gamma * len(mine) * least_share(rule, workers) * (1 - 1e-12)


@given(st.integers(1, 60), RULES)
def test_the_least_share_is_the_lowest_mixture_of_delay_1_and_a_longer_one(workers, rule):
    near, far = 3 * workers + 40, 400 * workers + 400
    longer = np.concatenate([np.arange(workers, near, 0.05), np.arange(near, far) + 0.0])
    weight = (workers - 1) / np.maximum(longer - 1, 1e-300) if workers > 1 else np.zeros(len(longer))
    first = float(rule(1.0, workers, 1)) / rule.gamma
    mixtures = first - weight * (first - rule(longer, workers, 1) / rule.gamma)
    assert least_share(rule, workers) <= mixtures.min() * (1 + 1e-9) + 1e-12  # it is a difference of larger numbers
    assert least_share(rule, workers) >= mixtures.min() * 0.98 - 1e-9  # the mixtures are of some delays only


def test_the_alternating_order_nearly_has_the_least_share():
    rule, workers = nw.DelayAdaptive(0.1, cut=8.0), 8
    order = alternating(workers, 4_000)
    _, hats = asynchronous_sgd(order, workers, np.zeros(1), lambda point, worker: point, rule)
    share = hats.sum() / (0.1 * len(order))
    assert 1.0 <= share / least_share(rule, workers) < 1.03


def test_a_constant_stepsize_keeps_everything():
    assert least_share(nw.Constant(0.3), 7) == 1.0


def test_the_share_depends_on_m_where_the_rule_follows_it():
    assert least_share(nw.DelayAdaptive(0.1), 8) == least_share(nw.DelayAdaptive(0.1, cut=8.0), 8)


# Runs without noise, for any order: the bound with the run's own sum of stepsizes covers the error

ORDERS = st.tuples(st.integers(2, 5), st.lists(st.integers(0, 4), min_size=15, max_size=60))


def huber(slope, L=1.0):
    """Return F, ∇F and the width of the quadratic part of a function that is L-smooth with slopes up to ``slope``."""
    width = slope / L

    def loss(point):
        size = np.abs(point)
        return float(np.where(size <= width, L * size**2 / 2, slope * (size - width / 2)).sum())

    return loss, lambda point, worker=0: np.clip(L * point, -slope, slope)


@settings(max_examples=150)
@given(ORDERS, st.floats(0.001, 3.0), st.sampled_from([1.0, 2.0]))
def test_theorem_3_1_covers_huber_functions_for_every_order(drawn, slope, scale):
    workers, order = drawn[0], [worker % drawn[0] for worker in drawn[1]]
    loss, gradient = huber(slope)
    gamma = scale / (4 * workers)
    rule = nw.DelayAdaptive(gamma, cut=scale / (4 * gamma))
    iterates, hats = asynchronous_sgd(order, workers, np.ones(1), gradient, rule)
    answer = hats @ iterates / hats.sum()
    bound = bounds.convex_bound(a_case("convex", workers, len(order), L=1.0, B=1.0, sigma=0.0), gamma, hats.sum())
    assert loss(answer) <= float(bound) * (1 + 1e-9)


def test_a_huber_function_nearly_attains_theorem_3_1():
    """The slope B/S keeps the run on the linear part until the end. A bound that is 5 % smaller would be wrong."""
    workers, steps = 8, 4_000
    order = alternating(workers, steps)
    rule = nw.DelayAdaptive(1 / (4 * workers))
    _, hats = asynchronous_sgd(order, workers, np.ones(1), lambda point, worker: 0 * point, rule)
    loss, gradient = huber(1 / hats.sum())
    iterates, hats = asynchronous_sgd(order, workers, np.ones(1), gradient, rule)
    error = loss(hats @ iterates / hats.sum())
    case = a_case("convex", workers, steps, L=1.0, B=1.0, sigma=0.0)
    prescribed = nw.theory.prescribe("convex", case.constants, workers=workers, steps=steps)
    assert prescribed.stepsize(np.arange(1, 99), workers, 1) == pytest.approx(rule(np.arange(1, 99), workers, 1))
    assert 1.0 <= float(bounds.convex_bound(case, rule.gamma, hats.sum())) / error < 1.05
    assert 1.0 <= float(prescribed.guarantee.sharpened) / error < 1.05


@settings(max_examples=150)
@given(ORDERS, st.lists(st.floats(0.05, 1.0), min_size=2, max_size=3))
def test_theorem_3_2_covers_quadratics_for_every_order(drawn, curvatures):
    workers, order = drawn[0], [worker % drawn[0] for worker in drawn[1]]
    curvature = np.array(curvatures) / max(curvatures)
    mu, gamma = float(curvature.min()), 1 / (8 * workers)
    rule = nw.ExponentialDelayAdaptive(gamma, cut=1 / (4 * gamma), rate=mu / (4 * workers))
    start = np.ones(len(curvature)) / math.sqrt(len(curvature))
    iterates, hats = asynchronous_sgd(order, workers, start, lambda point, worker: curvature * point, rule)
    weights = hats * np.exp(mu / 2 * np.cumsum(hats))
    answer = weights @ iterates / weights.sum()
    case = a_case("strongly-convex", workers, len(order), L=1.0, mu=mu, B=1.0, sigma=0.0)
    bound = bounds.strongly_convex_bound(case, gamma, hats.sum())
    assert 0.5 * float(curvature @ answer**2) <= float(bound) * (1 + 1e-9)


@settings(max_examples=150)
@given(ORDERS, st.floats(0.3, 3.0), st.floats(0.5, 3.0))
def test_theorem_3_3_covers_a_nonconvex_function_for_every_order(drawn, frequency, start):
    """F(x) = (1 − cos(ωx))/ω² is 1-smooth."""
    workers, order = drawn[0], [worker % drawn[0] for worker in drawn[1]]
    gamma = 1 / (2 * workers)
    rule = nw.DelayAdaptive(gamma, cut=1 / (4 * gamma))

    def gradient(point, worker=0):
        return np.sin(frequency * point) / frequency

    iterates, hats = asynchronous_sgd(order, workers, np.array([start]), gradient, rule)
    measured = hats @ (gradient(iterates) ** 2).sum(axis=1) / hats.sum()
    Delta = (1 - math.cos(frequency * start)) / frequency**2
    case = a_case("nonconvex", workers, len(order), L=1.0, sigma=0.0, Delta=max(Delta, 1e-12))
    assert measured <= float(bounds.nonconvex_bound(case, gamma, hats.sum())) * (1 + 1e-9)


@settings(max_examples=150)
@given(ORDERS, st.lists(st.floats(-1.0, 1.0), min_size=5, max_size=5), st.floats(0.0, 3.0))
def test_theorem_4_with_the_printed_stepsize_covers_quadratics_for_every_order(drawn, shifts, start):
    workers, order = drawn[0], [worker % drawn[0] for worker in drawn[1]]
    bias = np.array(shifts[:workers]) - np.mean(shifts[:workers])
    zeta, gamma = float(np.abs(bias).max()), 1 / (4 * workers)
    rule = nw.DelayAdaptive(gamma, cut=1 / (8 * gamma))
    iterates, hats = asynchronous_sgd(
        order, workers, np.array([start]), lambda point, worker: point + bias[worker], rule
    )
    measured = hats @ (iterates**2).sum(axis=1) / hats.sum()
    case = a_case("heterogeneous", workers, len(order), L=1.0, sigma=0.0, Delta=max(start**2 / 2, 1e-12), zeta=zeta)
    assert measured <= float(bounds.heterogeneous_bound(case, gamma, hats.sum())) * (1 + 1e-9)


def test_one_worker_alone_nearly_attains_the_floor_of_theorem_4():
    """The others never deliver, so the run ends where ∇F_0 = 0 and ‖∇F‖ = ζ."""
    constants = Constants(L=1.0, sigma=0.0, Delta=0.5, zeta=0.3)
    p = nw.theory.prescribe("heterogeneous", constants, workers=64, steps=100_000)
    assert 0.3**2 <= p.guarantee.sharpened.heterogeneity <= 1.4 * 0.3**2


# Constant stepsizes without smoothness


@settings(max_examples=150)
@given(ORDERS, st.floats(0.001, 3.0))
def test_theorem_1_covers_the_absolute_value_for_every_order(drawn, gamma):
    workers, order = drawn[0], [worker % drawn[0] for worker in drawn[1]]
    iterates, _ = asynchronous_sgd(order, workers, np.ones(1), lambda point, worker: np.sign(point), nw.Constant(gamma))
    case = a_case("convex-lipschitz", workers, len(order), G=1.0, B=1.0)
    assert abs(iterates.mean()) <= float(bounds.convex_lipschitz_bound(case, gamma)) * (1 + 1e-9)


def test_the_best_alpha_is_the_best():
    case = a_case("nonconvex", 6, 5_000, L=1.3, sigma=0.4, Delta=0.8)
    gamma, total = 0.03, 90.0
    found = float(bounds.nonconvex_bound(case, gamma, total))
    q, most = 5 * 1.3 * gamma / 4, 1 - 1.3 * gamma / 2

    def with_alpha(alpha):
        n, kept = 0.5 + 1 / (8 * alpha), most - alpha / 2 - q / (2 * alpha)
        return (0.8 + n * 1.3 * 6 * (0.4 * gamma) ** 2) / (kept * total) + n * 1.3 * 0.4**2 * gamma / kept

    others = [with_alpha(alpha) for alpha in np.geomspace(0.25, 1.5, 2_000)]
    assert found == pytest.approx(min(others), rel=1e-6)
    assert found <= min(others)


def test_one_worker_has_no_gradients_in_flight():
    """With M = 1 and no noise the bounds are those of gradient descent."""
    smooth = bounds.nonconvex_bound(a_case("nonconvex", 1, 100, L=1.0, sigma=0.0, Delta=1.0), 0.5, 50.0)
    assert float(smooth) == pytest.approx(1 / 50 / (1 - 0.125))
    lipschitz = bounds.nonconvex_lipschitz_bound(
        a_case("nonconvex-lipschitz", 1, 100, L=1.0, G=1.0, sigma=0.0, Delta=1.0), 0.5
    )
    assert float(lipschitz) == pytest.approx(1 / 50 / 0.75)
