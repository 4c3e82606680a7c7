"""Prescriptions for other methods: guarantees hold in simulations, and parameters follow the rules of the papers."""

import math

import numpy as np
import pytest

import nowait as nw
from nowait.theory import (
    Constants,
    prescribe,
    prescribe_m_synchronous,
    prescribe_malenia,
    prescribe_minibatch,
    prescribe_quantile,
    prescribe_rennala,
    prescribe_ringleader,
    prescribe_ringmaster,
)

ALL = Constants(L=2.0, mu=0.1, sigma=0.5, B=1.5, Delta=0.7)
SECONDS = [1.0, 1.3, 2.0, 9.0]
M = len(SECONDS)
PROBLEMS = {
    "convex": nw.problems.NoisyQuadratic(dimension=6, L=1.0, mu=0.0, sigma=1.0, distance=3.0),
    "strongly-convex": nw.problems.NoisyQuadratic(dimension=6, L=1.0, mu=0.3, sigma=1.0, distance=3.0),
    "nonconvex": nw.problems.NoisyQuadratic(dimension=6, L=1.0, mu=0.1, sigma=1.0, distance=3.0),
    "heterogeneous": nw.problems.NoisyQuadratic(dimension=6, L=1.0, mu=0.1, sigma=1.0, distance=3.0).split(M, zeta=2.0),
}
PRESCRIBED = {
    "rennala": lambda setting, c: prescribe_rennala(setting, c, workers=M, batch=6, steps=300),
    "m-synchronous": lambda setting, c: prescribe_m_synchronous(setting, c, workers=M, m=3, steps=300),
    "malenia": lambda setting, c: prescribe_malenia(setting, c, workers=M, batch=6, steps=300),
    "quantile": lambda setting, c: prescribe_quantile(setting, c, workers=M, quantile=0.9, delay=6, gradients=4_000),
    "ringmaster": lambda setting, c: prescribe_ringmaster(setting, c, workers=M, max_delay=3, steps=1_500),
    "ringleader": lambda setting, c: prescribe_ringleader(setting, c, workers=M, steps=3_000),
}
COVERED = [
    *((name, setting) for name in ("rennala", "m-synchronous", "quantile") for setting in list(PROBLEMS)[:3]),
    *(("malenia", setting) for setting in PROBLEMS),
    *(("ringmaster", setting) for setting in ("convex", "nonconvex")),
    *(("ringleader", setting) for setting in ("nonconvex", "heterogeneous")),
]


def method_of(p):
    return getattr(nw, p.method)(p.stepsize, **p.parameters)


def error_of(problem, measure, x):
    gradient = problem.full_gradient(x)
    return problem.loss(x) - problem.minimum()[1] if "F*" in measure else gradient @ gradient


@pytest.mark.parametrize(("name", "setting"), COVERED)
def test_a_guarantee_holds_and_says_something(name, setting):
    """The mean error over seeds is below the bound, and the bound is below the error of x_0."""
    problem = PROBLEMS[setting]
    p = PRESCRIBED[name](setting, problem.constants())
    speeds = nw.speeds.Fixed(SECONDS)
    errors = []
    for seed in range(8):
        run = nw.simulate(problem, method_of(p), speeds, steps=p.steps, output=p.output, seed=seed)
        errors.append(error_of(problem, p.guarantee.measure, run.params))
    assert np.mean(errors) <= float(p.guarantee)
    assert float(p.guarantee) < error_of(problem, p.guarantee.measure, problem.initial())


@pytest.mark.parametrize("setting", ["convex", "nonconvex"])
def test_the_bound_of_ringmaster_holds_for_delays_that_are_as_long_as_allowed(setting):
    """All delays are R in turn: R workers in a fixed order, exact gradients, on one eigenvalue at a time."""
    R = 12
    for curvature in (0.01, 0.1, 1.0):
        problem = nw.problems.NoisyQuadratic(dimension=1, L=curvature, mu=curvature, sigma=0.0, distance=3.0)
        constants = Constants(L=1.0, sigma=0.0, B=3.0, Delta=problem.loss(problem.initial()))
        p = prescribe_ringmaster(setting, constants, workers=R, max_delay=R, steps=400)
        run = nw.simulate(problem, method_of(p), nw.speeds.Fixed([1.0] * R), steps=400, evaluate_every=1)
        assert run.trace.delay.max() == R
        assert run.stats.dropped == 0
        losses = run.history.loss[1:]
        mean = losses.mean() if setting == "convex" else 2 * curvature * losses.mean()
        assert mean <= float(p.guarantee)


def test_a_huber_function_nearly_attains_the_bound_of_ringmaster():
    """It is linear until the end: its slope is B/(γK), so that K steps lead to the minimum."""
    R, K = 6, 2_000
    p = prescribe_ringmaster("convex", Constants(L=1.0, sigma=0.0, B=1.0), workers=R, max_delay=R, steps=K)
    slope = 1.0 / (p.stepsize.gamma * K)
    points, losses = [1.0], []
    for step in range(K):
        points.append(points[-1] - p.stepsize.gamma * np.clip(points[max(0, step - R + 1)], -slope, slope))
        size = abs(points[-1])
        losses.append(size**2 / 2 if size <= slope else slope * (size - slope / 2))
    average = np.mean(points[1:])
    assert 0.95 * float(p.guarantee) < slope * (average - slope / 2) <= np.mean(losses) <= float(p.guarantee)


def test_the_formulas_of_ringmaster():
    p = prescribe_ringmaster("nonconvex", ALL, workers=8, max_delay=5, steps=10_000)
    gamma = min((math.sqrt(1 + 8 * 16) - 1) / (4 * 16 * 2.0), math.sqrt(2 * 0.7 / (10_000 * 2.0 * 0.25)))
    assert p.stepsize.gamma == pytest.approx(gamma)
    noise = (1 + 1e-4) * 2.0 * gamma * 0.25 * (1 + 2 * 2.0 * gamma * 4)
    assert float(p.guarantee) == pytest.approx(2 * 0.7 / (gamma * 10_000) + noise)
    assert p.output == nw.UniformIterate()
    one = prescribe_ringmaster("convex", ALL, workers=8, max_delay=1, steps=10_000)
    plain = prescribe("convex", ALL, workers=1, steps=10_000)
    assert float(one.guarantee) <= float(plain.guarantee.sharpened), "with R = 1 it is SGD"


def test_ringmasters_constants_are_no_worse_than_the_papers():
    """Maranjyan, Tyurin and Richtárik: γ = min(1/(2RL), ε/(4Lσ²)) and K ≥ 8RLΔ/ε + 16σ²LΔ/ε² steps."""
    for accuracy in (1.0, 0.1, 1e-3):
        p = prescribe_ringmaster("nonconvex", ALL, workers=8, accuracy=accuracy)
        R = max(1, math.ceil(0.25 / accuracy))
        assert p.parameters == {"max_delay": R}
        assert p.steps <= math.ceil(8 * R * 2.0 * 0.7 / accuracy + 16 * 0.25 * 2.0 * 0.7 / accuracy**2)


def test_the_formulas_of_ringleader():
    p = prescribe_ringleader("heterogeneous", ALL, workers=4, steps=10**6, gradients_each=2.0)
    L, D, variance = 2.0, 6, 0.25 / 8
    gamma = min(1 / (L * (4 + math.sqrt(16 + 72))), math.sqrt(0.7 / (1e6 * L * variance * 10)))
    assert p.stepsize.gamma == pytest.approx(gamma)
    noise = (1 + 1e-6) * 2 * L * gamma * variance * (10 + L * gamma * D**2)
    assert float(p.guarantee) == pytest.approx(2 * 0.7 / (gamma * 1e6) + noise)
    for workers in (1, 2, 5, 100):
        quiet = prescribe_ringleader("nonconvex", Constants(L=1.0, sigma=0.0, Delta=1.0), workers=workers, steps=9)
        assert quiet.stepsize.gamma >= 1 / (4 * workers)


def test_rounds_are_minibatch_sgd_with_the_batch_for_workers():
    minibatch = prescribe_minibatch("convex", ALL, workers=6, steps=500)
    for p in (
        prescribe_rennala("convex", ALL, workers=8, batch=6, steps=500),
        prescribe_m_synchronous("convex", ALL, workers=8, m=6, steps=500),
        prescribe_malenia("convex", ALL, workers=4, batch=6, steps=500),
    ):
        assert (p.stepsize, p.output, p.guarantee) == (minibatch.stepsize, minibatch.output, minibatch.guarantee)
        assert "nowait's own" in p.notes[0]


def test_every_worker_counts_in_malenia():
    p = prescribe_malenia("nonconvex", ALL, workers=8, batch=2, steps=500)
    assert p.parameters == {"batch": 8}


@pytest.mark.parametrize("name", [prescribe_rennala, prescribe_malenia, prescribe_ringmaster])
@pytest.mark.parametrize("accuracy", [1.0, 0.01])
def test_an_accuracy_is_reached_with_the_fewest_steps(name, accuracy):
    for setting in ("convex", "nonconvex"):
        p = name(setting, ALL, workers=4, accuracy=accuracy)
        assert float(p.guarantee) <= accuracy
        if p.steps > 1:
            key, value = next(iter(p.parameters.items()))
            fewer = name(setting, ALL, workers=4, steps=p.steps - 1, **{key: value})
            assert float(fewer.guarantee) > accuracy


def test_the_batch_follows_the_noise():
    sizes = [
        prescribe_rennala(setting, ALL, workers=4, accuracy=0.001).parameters["batch"]
        for setting in ("nonconvex", "convex", "strongly-convex")
    ]
    assert sizes == [250, 63, 125]
    assert prescribe_rennala("convex", Constants(L=1.0, sigma=0.0, B=1.0), workers=4, accuracy=0.1).parameters == {
        "batch": 1
    }


def test_asynchronous_mini_batching_makes_its_steps_with_as_many_gradients_as_promised():
    speeds = nw.speeds.Fixed(SECONDS)
    problem = PROBLEMS["convex"]
    p = prescribe_quantile("convex", problem.constants(), workers=M, quantile=0.9, delay=6, gradients=3_000)
    run = nw.simulate(problem, method_of(p), speeds, gradients=3_000)
    arrivals = np.arange(1, len(run.trace) + 1)
    before = dict.fromkeys(range(M), 0)
    delays = []
    for arrival, worker in zip(arrivals.tolist(), run.trace.worker.tolist(), strict=True):
        delays.append(arrival - before[worker])
        before[worker] = arrival
    assert np.mean(np.array(delays) <= 6) >= 0.9
    assert run.stats.steps >= p.steps > 0.4 * run.stats.steps


def test_a_prescription_says_how_to_make_its_method():
    text = str(prescribe_rennala("convex", ALL, workers=8, batch=6, steps=500))
    assert "method     RennalaSGD(stepsize, batch=6)" in text
    assert "Rennala SGD (convex), 8 workers, 500 steps" in text
    assert prescribe("convex", ALL, workers=8, steps=500).call == "AsynchronousSGD(stepsize)"
    assert prescribe_minibatch("convex", ALL, workers=8, steps=500).call == "MinibatchSGD(stepsize)"


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: prescribe_rennala("convex", ALL, workers=4, batch=2), "give either steps= or accuracy="),
        (lambda: prescribe_rennala("convex", ALL, workers=4, steps=5), "batch= is missing"),
        (lambda: prescribe_ringmaster("convex", ALL, workers=4, steps=5), "max_delay= is missing"),
        (lambda: prescribe_rennala("heterogeneous", ALL, workers=4, batch=2, steps=5), "is biased if workers have"),
        (lambda: prescribe_ringmaster("strongly-convex", ALL, workers=4, steps=5), "'convex' and 'nonconvex', got"),
        (lambda: prescribe_ringleader("convex", ALL, workers=4, steps=5), "'heterogeneous' and 'nonconvex', got"),
        (lambda: prescribe_ringleader("nonconvex", ALL, workers=4, steps=5, gradients_each=0.5), "at least 1, got 0.5"),
        (lambda: prescribe_m_synchronous("convex", ALL, workers=4, m=5, steps=5), "at most the number of workers, 4"),
        (
            lambda: prescribe_quantile("convex", ALL, workers=4, quantile=2.0, delay=5, gradients=50),
            "quantile must be at most 1, got 2.0",
        ),
        (
            lambda: prescribe_quantile("convex", ALL, workers=4, quantile=0.5, delay=5, gradients=20),
            "20 gradients are not enough for one step: with quantile=0.5 and delay=5, take at least 26",
        ),
        (lambda: prescribe_rennala("convex", ALL, workers=4, batch=2, accuracy=1e-30), "no number of steps"),
    ],
)
def test_wrong_arguments_are_explained(ask, words):
    with pytest.raises(ValueError, match=words):
        ask()
