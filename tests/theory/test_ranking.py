"""The ranking of all methods: its times hold in simulations, and it agrees with the prescriptions."""

import math

import numpy as np
import pytest

import nowait as nw
from nowait.theory import Constants, lower_bound_time, malenia_time, ranking, rennala_time
from nowait.theory.durations import longest_delay, time_for, time_for_started, time_of_malenia_round

CONSTANTS = Constants(L=1.0, mu=0.1, sigma=1.0, B=2.0, Delta=1.0)
APART = Constants(L=1.0, sigma=1.0, Delta=1.0, zeta=0.1)
SPEEDS = ([1.0, 1.3, 2.0, 9.0], [1.0, 1.0, 1.0], [0.3, 5.0])
PROBLEM = nw.problems.NoisyQuadratic(dimension=2, L=1.0, mu=0.1, sigma=1.0)


@pytest.mark.parametrize("seconds", SPEEDS)
@pytest.mark.parametrize(("setting", "constants"), [("nonconvex", CONSTANTS), ("heterogeneous", APART)])
def test_no_method_takes_longer_for_its_steps_than_the_ranking_says(setting, constants, seconds):
    for row in ranking(seconds, constants, accuracy=0.3, setting=setting):
        p = row.prescription
        used = np.sort(seconds)[: p.workers]
        method = getattr(nw, p.method)(p.stepsize, **p.parameters)
        run = nw.simulate(PROBLEM, method, nw.speeds.Fixed(used), steps=p.steps, evaluate_every=p.steps)
        assert run.stats.seconds <= row.seconds * (1 + 1e-9), row.method
        assert row.seconds <= 12 * run.stats.seconds, row.method


@pytest.mark.parametrize("setting", ["convex", "strongly-convex", "nonconvex", "heterogeneous"])
def test_every_row_guarantees_the_accuracy_and_the_first_one_is_fastest(setting):
    constants = APART if setting == "heterogeneous" else CONSTANTS
    rows = ranking([1.0, 1.0, 1.0, 30.0], constants, accuracy=0.1, setting=setting)
    times = [row.seconds for row in rows]
    assert times == sorted(times)
    assert all(float(row.prescription.guarantee.best) <= 0.1 for row in rows)
    names = {row.method for row in rows}
    assert {"Minibatch SGD", "Malenia SGD", "Delay-adaptive ASGD"} <= names
    assert ("Rennala SGD" in names) == (setting != "heterogeneous"), "it is biased if data differ"
    assert ("Ringleader ASGD" in names) == (setting in ("nonconvex", "heterogeneous"))


def test_with_one_straggler_minibatch_sgd_comes_last_but_for_those_that_wait_for_it_too():
    rows = [row.method for row in ranking([1.0] * 7 + [1_000.0], CONSTANTS, accuracy=0.01)]
    waiting = {"Minibatch SGD", "Malenia SGD", "Ringleader ASGD", "Constant-stepsize ASGD"}
    assert set(rows[-4:]) == waiting


def test_a_method_whose_error_stays_above_the_accuracy_never_reaches_it():
    rows = {row.method: row for row in ranking([1.0, 2.0], APART, accuracy=0.005, setting="heterogeneous")}
    assert math.isinf(rows["Delay-adaptive ASGD"].seconds)
    assert rows["Delay-adaptive ASGD"].prescription is None
    assert math.isfinite(rows["Malenia SGD"].seconds)


def test_when_gradients_are_finished():
    seconds = np.array([1.0, 2.0, 5.0])
    assert time_for(1, seconds) == 1.0
    assert [time_for(count, seconds) for count in (2, 3, 8)] == [2.0, 2.0, 5.0]
    assert time_for_started(1, seconds) == 2.0
    assert time_for_started(3, seconds) == 4.0
    assert time_for(3, np.array([0.1])) == pytest.approx(0.3)
    assert time_of_malenia_round(1, seconds) == 5.0
    assert time_of_malenia_round(9, seconds) == 10.0, "after 5 s the sum is 1/5 + 1/2 + 1 > 9/9"
    assert time_of_malenia_round(5.5, seconds) == 6.0, "after 6 s it is 1/6 + 1/3 + 1 ≤ 9/5.5"


def test_no_delay_is_longer_than_the_bound():
    for seconds in SPEEDS:
        run = nw.simulate(PROBLEM, nw.AsynchronousSGD(0.01), nw.speeds.Fixed(seconds), steps=500)
        assert run.trace.delay.max() <= longest_delay(np.array(seconds)) <= 2 * run.trace.delay.max() + len(seconds)


def test_the_lower_bounds_are_the_times_of_the_optimal_methods():
    seconds = [1.0, 2.0, 50.0]
    assert lower_bound_time(seconds, CONSTANTS, 0.1) == rennala_time(seconds, CONSTANTS, 0.1)
    assert lower_bound_time(seconds, APART, 0.1, "heterogeneous") == malenia_time(seconds, APART, 0.1)
    with pytest.raises(ValueError, match="setting must be one of 'nonconvex', 'heterogeneous', got 'convex'"):
        lower_bound_time(seconds, CONSTANTS, 0.1, "convex")


@pytest.mark.parametrize("accuracy", [0.1, 0.001])
@pytest.mark.parametrize("seconds", SPEEDS)
def test_rennala_is_optimal_up_to_a_constant(seconds, accuracy):
    rows = {row.method: row.seconds for row in ranking(seconds, CONSTANTS, accuracy)}
    assert 1 < rows["Rennala SGD"] / lower_bound_time(seconds, CONSTANTS, accuracy) < 12
