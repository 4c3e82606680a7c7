"""``nw.simulate(evaluate_seconds=)``."""

import math

import pytest

import nowait as nw
from nowait.engines.budget import Budget, EvaluationPlan
from nowait.recording import describe

PROBLEM = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1)


@pytest.mark.parametrize("engine", [None, "reference"])
@pytest.mark.parametrize("method", [nw.MinibatchSGD(0.1), nw.AsynchronousSGD(0.1)])
def test_evaluations_are_made_at_the_first_event_after_each_multiple(engine, method):
    speeds = nw.speeds.Fixed([0.7, 1.3])

    run = nw.simulate(PROBLEM, method, speeds, seconds=20, evaluate_seconds=2.0, engine=engine)

    times = run.history.time[1:-1]
    assert [math.floor(time / 2.0) for time in times] == list(range(1, len(times) + 1))
    assert (times % 2.0 < 1.3).all()


def test_steps_and_seconds_both_count():
    run = nw.simulate(
        PROBLEM, nw.AsynchronousSGD(0.1), nw.speeds.Fixed([1.0]), steps=10, evaluate_every=4, evaluate_seconds=3.0
    )

    assert run.history.step.tolist() == [0, 3, 4, 6, 8, 9, 10]


def test_a_time_of_0_is_refused():
    with pytest.raises(ValueError, match="evaluate_seconds"):
        nw.simulate(PROBLEM, nw.AsynchronousSGD(0.1), nw.speeds.Fixed([1.0]), steps=10, evaluate_seconds=0.0)


def test_folders_of_sweeps_of_earlier_versions_are_described_alike():
    described = describe(EvaluationPlan.of(None, Budget(steps=100)))

    assert described == {"type": "EvaluationPlan", "steps": 1, "gradients": "inf", "seconds": "inf"}
