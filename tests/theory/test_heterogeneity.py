"""Where asynchronous SGD stops when workers have different data."""

import numpy as np
import pytest

import nowait as nw
from nowait.theory import heterogeneity_floor, speedup, worker_weights

SECONDS = [0.5, 0.7, 1.0, 1.4, 2.0, 4.0, 9.0, 20.0]
RULES = [nw.Constant(0.002), nw.DelayAdaptive(0.002)]


def measured_floor(rule):
    """Return ‖∇F‖² where a long run without noise stays, at the mean of its last iterates."""
    problem = nw.problems.NoisyQuadratic(dimension=4, L=1.0, mu=0.5, sigma=0.0).split(len(SECONDS), zeta=1.0)
    method, speeds = nw.AsynchronousSGD(rule), nw.speeds.Fixed(SECONDS)
    ends = [
        nw.simulate(problem, method, speeds, steps=steps, progress=False).params for steps in range(9_000, 9_400, 21)
    ]
    return problem, float((problem.full_gradient(np.mean(ends, axis=0)) ** 2).sum())


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_floor_is_where_runs_stay(rule):
    problem, measured = measured_floor(rule)
    assert measured == pytest.approx(heterogeneity_floor(SECONDS, problem.shifts, rule), rel=0.01)


def test_the_rule_raises_the_floor():
    shifts = nw.problems.NoisyQuadratic(dimension=2).split(len(SECONDS), zeta=1.0).shifts
    constant, adaptive = (heterogeneity_floor(SECONDS, shifts, rule) for rule in RULES)
    assert adaptive > 1.05 * constant


def test_weights_are_inverse_to_the_seconds_for_constant_stepsizes():
    rates = 1 / np.array(SECONDS)
    np.testing.assert_allclose(worker_weights(SECONDS, nw.Constant(0.1)), rates / rates.sum())


def test_weights_of_the_rule_are_cut_above_its_cut():
    gain = speedup(SECONDS)
    cut = np.minimum(1, len(SECONDS) / gain.delays) / gain.seconds
    np.testing.assert_allclose(worker_weights(SECONDS, nw.DelayAdaptive(0.1)), cut / cut.sum())


def test_equal_workers_have_no_floor():
    shifts = nw.problems.NoisyQuadratic(dimension=2).split(6, zeta=1.0).shifts
    assert heterogeneity_floor([2.0] * 6, shifts, nw.DelayAdaptive(0.1)) == pytest.approx(0, abs=1e-30)


@pytest.mark.parametrize(
    ("differences", "message"),
    [
        ([[1.0]], "a row for each of the 2 workers"),
        ([1.0, 2.0], r"got shape \(2,\)"),
        ([[1.0], [float("nan")]], "must be finite"),
        ([[1.0], [2.0, 3.0]], "must be a table of numbers"),
        ([["a"], ["b"]], "must be a table of numbers"),
    ],
)
def test_wrong_differences_are_refused(differences, message):
    with pytest.raises(ValueError, match=message):
        heterogeneity_floor([1.0, 2.0], differences, nw.Constant(0.1))


def test_a_stepsize_must_be_a_stepsize():
    with pytest.raises(TypeError, match="stepsize"):
        worker_weights([1.0, 2.0], 0.1)
