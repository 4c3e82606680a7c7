"""The lemmas on traces: they hold on every run, and a manipulated trace is detected."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nowait as nw
from nowait.studies.patterns import PATTERNS
from nowait.theory import check_lemmas
from nowait.theory.envelope import least_share
from nowait.theory.lemmas import Order, check_stepsize_sum

PROBLEM = nw.problems.NoisyQuadratic(dimension=3, L=1.0, mu=0.2, sigma=0.5)


def a_run(speeds, stepsize, steps=200, seed=1):
    return nw.simulate(PROBLEM, nw.AsynchronousSGD(stepsize), speeds, steps=steps, seed=seed)


def broken(trace, stepsize, seed=1):
    return [check.lemma for check in check_lemmas(trace, stepsize, PROBLEM, seed=seed) if not check.holds]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("stepsize", [nw.DelayAdaptive(0.3), nw.Constant(0.1), nw.DelayAdaptive(0.2, cut=2.0)], ids=str)
def test_the_lemmas_hold_under_every_pattern(pattern, stepsize):
    run = a_run(PATTERNS[pattern](5), stepsize)
    assert len(check_lemmas(run.trace, stepsize, PROBLEM, seed=1)) == 4
    assert broken(run.trace, stepsize) == []


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_the_lemmas_hold_for_every_order(order):
    stepsize = nw.DelayAdaptive(0.3)
    run = a_run(nw.speeds.Adversary(order, workers=4), stepsize, steps=len(order))
    assert broken(run.trace, stepsize) == []


def test_the_sum_is_not_known_for_other_rules():
    stepsize = nw.PolynomialDecay(0.1)
    run = a_run(nw.speeds.Fixed([1, 2, 9]), stepsize)
    assert [check.lemma for check in check_lemmas(run.trace, stepsize, PROBLEM, seed=1)] == [
        "delay identity",
        "stepsizes",
        "Lemma 1",
    ]


def tampered(trace, column, place, change):
    arrivals = trace.arrivals.copy()
    arrivals[column][place] += change
    return dataclasses.replace(trace, source=arrivals)


def test_a_wrong_delay_breaks_the_identity():
    stepsize = nw.Constant(0.1)
    trace = a_run(nw.speeds.Fixed([1, 2, 9]), stepsize).trace
    assert broken(tampered(trace, "delay", 50, 1), stepsize) == ["delay identity"]


def test_stepsizes_of_another_rule_are_found_out():
    trace = a_run(nw.speeds.Fixed([1, 2, 9]), nw.DelayAdaptive(0.1)).trace
    assert broken(trace, nw.DelayAdaptive(0.1)) == []
    assert broken(trace, nw.DelayAdaptive(0.1, cut=4.0)) == ["stepsizes"]


@pytest.mark.parametrize(
    "output",
    [
        nw.StepsizeWeightedAverage(),
        nw.UniformAverage(),
        nw.StronglyConvexAverage(0.2),
        nw.RandomIterate(),
        nw.LastIterate(),
    ],
    ids=str,
)
def test_the_answer_of_the_output_rule_is_recomputed(output):
    stepsize = nw.DelayAdaptive(0.2)
    run = nw.simulate(
        PROBLEM, nw.AsynchronousSGD(stepsize), nw.speeds.Fixed([1, 2, 9]), steps=100, seed=1, output=output
    )
    known = {"seed": 1, "output": output}
    assert all(check.holds for check in check_lemmas(run.trace, stepsize, PROBLEM, params=run.params, **known))
    wrong = check_lemmas(run.trace, stepsize, PROBLEM, params=run.params * 1.01, **known)
    assert [check.lemma for check in wrong if not check.holds] == ["output"]


@pytest.mark.parametrize("place", [0, 100, 198])
def test_a_wrong_stepsize_is_not_the_run(place):
    stepsize = nw.Constant(0.1)
    trace = a_run(nw.speeds.Fixed([1, 2, 9]), stepsize).trace
    assert broken(tampered(trace, "stepsize", place, 0.05), stepsize) == ["stepsizes", "Lemma 1"]


def test_another_seed_is_not_the_run():
    stepsize = nw.Constant(0.1)
    trace = a_run(nw.speeds.Fixed([1, 2, 9]), stepsize).trace
    assert broken(trace, stepsize, seed=2) == ["Lemma 1"]


def test_stepsizes_that_shrink_too_much_break_the_sum():
    """The stepsizes of the trace are smaller than those of the rule."""
    trace = a_run(nw.speeds.Fixed([1, 2, 9]), nw.Constant(0.1)).trace
    order = Order(trace)
    order.final_stepsizes = lambda rule: np.full(order.K + 1 + order.M, 0.01)
    check = check_stepsize_sum(order, nw.DelayAdaptive(0.1))
    assert (check.holds, check.deviation) == (
        False,
        pytest.approx(0.1 * 200 * least_share(nw.DelayAdaptive(0.1), 3) - 0.01 * 200),
    )


def test_other_methods_have_no_such_lemmas():
    minibatch = nw.simulate(PROBLEM, nw.MinibatchSGD(nw.Constant(0.1)), nw.speeds.Fixed([1, 2]), steps=5)
    with pytest.raises(ValueError, match="pass the trace of a run of AsynchronousSGD"):
        check_lemmas(minibatch.trace, nw.Constant(0.1), PROBLEM)
    faults = nw.speeds.Faults([(3.0, "leave", 0)])
    left = nw.simulate(PROBLEM, nw.AsynchronousSGD(nw.Constant(0.1)), nw.speeds.Fixed([1, 2]), steps=20, faults=faults)
    with pytest.raises(ValueError, match="whose workers do not change"):
        check_lemmas(left.trace, nw.Constant(0.1), PROBLEM)


def test_a_trace_of_real_workers_obeys_them_too():
    stepsize = nw.DelayAdaptive(0.1)
    run = nw.train(PROBLEM, nw.AsynchronousSGD(stepsize), workers=3, steps=300, seed=1)
    assert broken(run.trace, stepsize) == []


def test_the_lemmas_hold_in_single_precision_and_from_other_initial_params():
    features = np.random.default_rng(0).normal(size=(200, 20)).astype(np.float32)
    problem = nw.problems.LeastSquares(features, features @ np.ones(20, np.float32))
    stepsize, start = nw.DelayAdaptive(0.02), np.full(20, 3.0, np.float32)
    run = nw.simulate(
        problem, nw.AsynchronousSGD(stepsize), nw.speeds.Fixed([1, 2, 9]), steps=300, initial=start, seed=1
    )
    known = {"seed": 1, "last": run.last}
    assert all(check.holds for check in check_lemmas(run.trace, stepsize, problem, initial=start, **known))
    other = check_lemmas(run.trace, stepsize, problem, initial=np.full(20, -50.0, np.float32), **known)
    assert not all(check.holds for check in other)


def test_other_last_params_are_not_the_run():
    stepsize = nw.Constant(0.1)
    run = a_run(nw.speeds.Fixed([1, 2, 9]), stepsize)
    turned = run.last[::-1].copy()  # has the same norm
    assert broken(run.trace, stepsize) == []
    checks = check_lemmas(run.trace, stepsize, PROBLEM, seed=1, last=turned)
    assert [check.lemma for check in checks if not check.holds] == ["Lemma 1"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_stepsizes_of_theorem_3_2_add_up_under_every_pattern(pattern):
    p = nw.theory.prescribe("strongly-convex", PROBLEM.constants(), workers=5, steps=400)
    run = a_run(PATTERNS[pattern](5), p.stepsize, steps=400)
    checks = check_lemmas(run.trace, p.stepsize, PROBLEM, seed=1)
    assert [(check.lemma, check.holds) for check in checks][-1] == ("sum of the stepsizes", True)


def test_long_runs_are_checked_in_blocks(monkeypatch):
    monkeypatch.setattr("nowait.theory.lemmas.BLOCK", 50)
    stepsize = nw.DelayAdaptive(0.1)
    assert broken(a_run(nw.speeds.Fixed([1, 2, 9]), stepsize).trace, stepsize) == []
