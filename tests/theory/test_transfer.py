"""From the learning rate of a single process to a stepsize for delays."""

import numpy as np
import pytest

import nowait as nw


def test_fresh_gradients_keep_learning_rate_and_momentum():
    found = nw.theory.stepsize_range(0.1, [1, 1, 1], momentum=0.9)
    assert (found.low, found.high) == pytest.approx((0.1, 0.1))
    assert found.momentum == pytest.approx(0.9)


def test_the_effective_step_stays_and_momentum_makes_room_for_delays():
    found = nw.theory.stepsize_range(0.1, np.full(8, 4), momentum=0.9)
    assert found.momentum == pytest.approx(0.6)
    assert found.high / (1 - found.momentum) == pytest.approx(0.1 / (1 - 0.9))
    assert nw.theory.stepsize_range(0.1, [20], momentum=0.9).momentum == 0.0


def test_gradient_descent_is_stable_just_below_the_lower_stepsize_of_the_limit():
    """On a quadratic with L = 1, with lr at the limit of 2 and delays of 4, by the recursion itself."""
    limit = nw.theory.stepsize_range(2.0, [4]).low
    for share, stable in ((0.98, True), (1.02, False)):
        points = [1.0] * 4
        for _ in range(3_000):
            points.append(points[-1] - share * limit * points[-4])
        assert (max(map(abs, points[-20:])) < 1e-3) is stable


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((0.0, [1]), "lr must be"), ((0.1, []), "delays must not be empty"), ((0.1, [1], 1.0), "momentum must be")],
)
def test_wrong_arguments_are_errors(arguments, words):
    with pytest.raises(ValueError, match=words):
        nw.theory.stepsize_range(*arguments)
