"""Schedules: factors of the stepsize over the steps, around any rule."""

import math

import numpy as np
import pytest

import nowait as nw
from nowait.api.rebuild import rebuild
from nowait.core.schedules import ScheduleProduct
from nowait.recording import describe

SPEEDS = nw.speeds.Exponential([1.0, 2.0, 5.0])


def half_after_ten(step):
    assert type(step) is int
    return 0.5 if step > 10 else 1.0


def test_the_factors_of_schedules():
    steps = np.array([1, 2, 4, 6, 11, 50])
    assert nw.schedules.warmup(4)(steps).tolist() == [0.25, 0.5, 1.0, 1.0, 1.0, 1.0]
    assert nw.schedules.linear(10, final=0.5)(steps) == pytest.approx([1.0, 0.95, 0.85, 0.75, 0.5, 0.5])
    cosine = nw.schedules.cosine(10, final=0.2)
    assert cosine(steps) == pytest.approx([0.2 + 0.4 * (1 + math.cos(math.pi * min(1, t / 10))) for t in steps - 1])
    product = nw.schedules.warmup(4) * cosine
    assert product == ScheduleProduct(nw.schedules.warmup(4), cosine)
    assert product(2) == 0.5 * cosine(2)


def test_a_schedule_multiplies_what_the_delay_rule_gives():
    rule = nw.Scheduled(nw.DelayAdaptive(0.8), half_after_ten)
    assert [rule(delay, 4, step) for delay, step in ((1, 1), (8, 10), (1, 11), (8, 11))] == [0.8, 0.4, 0.4, 0.2]
    assert nw.Scheduled(0.1, half_after_ten).rule == nw.Constant(0.1)
    assert rule.with_size(0.2)(1, 4, 11) == 0.1


def test_a_cosine_schedule_is_the_cosine_rule():
    delays, steps = np.array([1, 3, 9, 2]), np.array([1, 40, 80, 200])
    scheduled = nw.Scheduled(nw.DelayAdaptive(0.3), nw.schedules.cosine(100, final=0.1))
    assert scheduled(delays, 4, steps) == pytest.approx(nw.Cosine(nw.DelayAdaptive(0.3), 100, 0.1)(delays, 4, steps))


@pytest.mark.parametrize("schedule", [nw.schedules.warmup(20) * nw.schedules.linear(80), half_after_ten])
def test_a_scheduled_run_is_compiled_and_replayed_with_the_same_stepsizes(schedule):
    method = nw.AsynchronousSGD(nw.Scheduled(nw.DelayAdaptive(0.3), schedule))
    problem = nw.problems.LeastSquares.random(20, 5)
    run = nw.simulate(problem, method, SPEEDS, steps=60)
    assert run.stats.engine == "compiled"
    arrivals = zip(run.trace.delay.tolist(), run.trace.step.tolist(), strict=True)
    assert run.trace.stepsize.tolist() == [method.stepsize(delay, 3, step) for delay, step in arrivals]
    assert np.array_equal(nw.replay(run.trace, problem, method).last, run.last)


def test_config_cannot_hold_a_function_of_ones_own():
    method = nw.AsynchronousSGD(nw.Scheduled(0.1, half_after_ten))
    with pytest.raises(ValueError, match="pass method= again"):
        rebuild(describe(method), "method")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nw.schedules.warmup(0), "steps must be an integer of at least 1, got 0"),
        (lambda: nw.schedules.linear(0), "steps must be an integer of at least 1, got 0"),
        (lambda: nw.schedules.cosine(10, final=-0.1), "final must be"),
        (lambda: nw.schedules.warmup(10) * 3, "second must be"),
        (lambda: nw.Scheduled(0.1, 3), "schedule must be a function of the step"),
        (lambda: nw.Scheduled("0.1", half_after_ten), "rule must be a number or a stepsize rule"),
        (lambda: nw.Scheduled(0.1, lambda step: -1.0)(1, 1, 5), "finite factor of at least 0, got -1.0 for step 5"),
        (lambda: nw.Scheduled(0.1, lambda step: math.nan)(1, 1, np.array([5])), "got nan for step 5"),
    ],
)
def test_bad_schedules(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
