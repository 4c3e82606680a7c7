"""The identities of the paper, on random arrival orders and on every speed model."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nowait as nw
from audit import Audit

PROBLEM = nw.problems.NoisyQuadratic(dimension=3, L=1.0, mu=0.2, sigma=0.5)


def arrival_orders(most_workers=6):
    return st.integers(1, most_workers).flatmap(
        lambda workers: st.tuples(
            st.just(workers), st.lists(st.integers(0, workers - 1), min_size=workers, max_size=40)
        )
    )


SPEED_MODELS = {
    "Fixed": nw.speeds.Fixed([1.0, 1.0, 2.5, 17.0]),
    "Exponential": nw.speeds.Exponential([0.5, 1.0, 4.0]),
    "LogNormal": nw.speeds.LogNormal(1.0, sigma=1.5, workers=5),
    "Pareto": nw.speeds.Pareto(1.0, shape=0.9, workers=5),
    "TimeVarying": nw.speeds.TimeVarying(lambda worker, time: 1.0 + math.sin(time + worker), workers=3),
    "UpDown": nw.speeds.UpDown([1.0, 1.0, 3.0], up=4.0, down=6.0),
    "Adversary": nw.speeds.Adversary([0] * 20 + [1, 2, 0, 2], workers=4),
    "BySample": nw.speeds.BySample(1.0, lambda sample: 1 + 20 * (sample.index(4) == 0), workers=4),
    "Communication": nw.speeds.Communication(nw.speeds.Fixed([1.0, 2.0, 9.0]), down=0.5, up=[0.1, 0.2, 0.3]),
}


def check_lemma_1(audit):
    """x_k − x̂_k = Σ_{m ≠ m_k} γ_{next(k,m)}·∇f(x_{prev(k,m)}; ξ)."""
    everybody = range(audit.num_workers)
    virtual = audit.iterates[0] - sum(audit.gamma_at_next(1, m) * audit.gradient(1, m) for m in everybody)
    for k in range(1, audit.last + 1):
        others = [m for m in everybody if m != audit.workers[k]]
        in_flight = sum((audit.gamma_at_next(k, m) * audit.gradient(k, m) for m in others), np.zeros(3))
        np.testing.assert_allclose(audit.iterates[k] - virtual, in_flight, atol=1e-12)
        virtual = virtual - audit.gamma_hat(k) * audit.gradient(k + 1, audit.workers[k])


def check_delays(audit):
    """The recorded delays are τ(k), and Σ_{k<K} τ(k) + Σ_m τ(K, m) = K·M."""
    expected = [audit.delay(k, audit.workers[k]) for k in range(1, audit.last + 1)]
    assert audit.trace.delay.tolist() == expected
    at_the_end = sum(audit.delay(audit.last, m) for m in range(audit.num_workers))
    assert sum(expected[:-1]) + at_the_end == audit.last * audit.num_workers


@given(arrival_orders(), st.sampled_from([nw.DelayAdaptive(0.3), nw.Constant(0.1), nw.DelayAdaptive(0.2, cut=2.0)]))
def test_lemma_1_and_the_delay_identity_hold_for_any_order_of_arrivals(workers_and_order, stepsize):
    workers, order = workers_and_order
    speeds = nw.speeds.Adversary(order, workers=workers)
    audit = Audit(PROBLEM, nw.AsynchronousSGD(stepsize), speeds, steps=len(order))
    assert audit.trace.worker.tolist() == order
    check_delays(audit)
    check_lemma_1(audit)


@pytest.mark.parametrize("name", SPEED_MODELS)
def test_lemma_1_and_the_delay_identity_hold_for_every_speed_model(name):
    audit = Audit(PROBLEM, nw.AsynchronousSGD(nw.DelayAdaptive(0.3)), SPEED_MODELS[name], steps=50)
    check_delays(audit)
    check_lemma_1(audit)


@given(arrival_orders(), st.sampled_from([0.5, 1.0, 2.0]))
def test_the_stepsizes_add_up_under_any_order(workers_and_order, cut_in_workers):
    """Σ γ̂_k ≥ γ_max·K·(1 − M/(4·cut)) for all delays."""
    workers, order = workers_and_order
    cut = cut_in_workers * workers
    stepsize = nw.DelayAdaptive(0.1, cut=cut)
    audit = Audit(PROBLEM, nw.AsynchronousSGD(stepsize), nw.speeds.Adversary(order, workers=workers), steps=len(order))
    total = sum(audit.gamma_hat(k) for k in range(1, audit.last + 1))
    assert total >= 0.1 * audit.last * (1 - workers / (4 * cut)) - 1e-12


def test_the_worst_order_for_the_stepsizes_comes_close_to_the_bound():
    """One worker alternates with bursts: the bound of the sum is not vacuous."""
    workers, steps = 2, 400
    order = ([0] * 3 + [1]) * (steps // 4)
    stepsize = nw.DelayAdaptive(0.1, cut=workers / 2)
    audit = Audit(PROBLEM, nw.AsynchronousSGD(stepsize), nw.speeds.Adversary(order), steps=steps)
    total = sum(audit.gamma_hat(k) for k in range(1, audit.last + 1))
    assert 0.5 <= total / (0.1 * steps) < 0.9


def test_fixed_speeds_give_the_delays_of_the_paper():
    """In the steady state worker m's delay is about s_m·Σ 1/s, and the mean delay is M."""
    seconds = np.array([1.0, 2.0, 4.0, 40.0])
    run = nw.simulate(PROBLEM, nw.AsynchronousSGD(nw.Constant(0.01)), nw.speeds.Fixed(seconds), steps=8_000)
    settled = slice(2_000, None)
    for worker, expected in enumerate(seconds * (1 / seconds).sum()):
        delays = run.trace.delay[settled][run.trace.worker[settled] == worker]
        assert delays.mean() == pytest.approx(expected, rel=0.02)
    assert run.trace.delay[settled].mean() == pytest.approx(4.0, rel=0.01)


def test_delays_that_depend_on_the_data_bias_the_delay_adaptive_rule():
    """Assumption 1 matters (f = ½(x − ξ)², ξ = ±1, "+1" takes a hundred times longer): the paper's warning."""

    class Coin:
        dimension = 1

        def initial(self):
            return np.zeros(1)

        def gradient(self, point, sample):
            return point - (1.0 if sample.index(2) else -1.0)

        def loss(self, point):
            return float(0.5 * point[0] ** 2)

    speeds = nw.speeds.BySample(1.0, lambda sample: 100.0 if sample.index(2) else 1.0, workers=4)

    def mean_of(stepsize):
        values = []
        nw.simulate(
            Coin(),
            nw.AsynchronousSGD(stepsize),
            speeds,
            steps=40_000,
            callbacks=[lambda control: values.append(control.params[0])],
        )
        return np.mean(values[5_000:])

    assert abs(mean_of(nw.Constant(0.02))) < 0.05
    assert mean_of(nw.DelayAdaptive(0.02)) < -0.15
