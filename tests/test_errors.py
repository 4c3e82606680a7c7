"""Every wrong argument of the public functions raises an error that shows the value and says what to do."""

import math

import numpy as np
import pytest

import nowait as nw

GOOD = {
    "problem": nw.problems.NoisyQuadratic(3),
    "method": nw.AsynchronousSGD(nw.Constant(0.1)),
    "speeds": nw.speeds.Fixed([1.0, 2.0]),
    "steps": 5,
}


class Bare:
    dimension = 3


class WrongInitial:
    dimension = 3

    def __init__(self, initial):
        self._initial = initial

    def initial(self):
        return self._initial

    def gradient(self, point, sample):
        return np.zeros(3)

    def loss(self, point):
        return 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"steps": None},
            "a run needs an end: give at least one of steps=, gradients=, seconds=, target_loss= and target=",
        ),
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"steps": 2.5}, "steps must be an integer of at least 1, got 2.5"),
        ({"steps": True}, "steps must be an integer of at least 1, got True"),
        ({"gradients": -3}, "gradients must be an integer of at least 1, got -3"),
        ({"seconds": 0.0}, "seconds must be a finite number above 0, got 0.0"),
        ({"seconds": math.nan}, "seconds must be a finite number above 0, got nan"),
        ({"target_loss": math.nan}, "target_loss must be a finite number, got nan"),
        ({"target_loss": "0.1"}, "target_loss must be a finite number, got '0.1'"),
        ({"seconds": 10**400}, "seconds must be a finite number above 0, got 1000"),
        (
            {"faults": nw.speeds.Faults([(1.0, "leave", 20)])},
            r'worker 20 has a "leave" entry at t=1, but there are 2 workers \(0 to 1\) and it did not join before',
        ),
        ({"callbacks": nw.Callback()}, r"callbacks must be a list of callbacks, .* write callbacks=\[...\]"),
        ({"update": nw.Proximal(lambda values, stepsize: None)}, "must return the proximal point, got NoneType"),
        ({"evaluate_every": 0}, "evaluate_every must be an integer of at least 1, got 0"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"seed": 0.5}, "seed must be an integer of at least 0, got 0.5"),
        ({"speeds": [1.0, 2.0]}, r"speeds must be a nowait Speeds such as nw.speeds.Fixed\(\[1.0, 1.0, 10.0\]\)"),
        ({"speeds": nw.speeds.Fixed}, "speeds must be an object, got the class Fixed"),
        ({"method": nw.AsynchronousSGD}, "method must be an object, got the class AsynchronousSGD"),
        ({"method": nw.Constant(0.1)}, "method must be a nowait Method"),
        ({"update": nw.Momentum}, "update must be an object, got the class Momentum"),
        ({"update": "adam"}, "update must be a nowait Update"),
        ({"output": "last"}, "output must be a nowait Output"),
        ({"faults": [(1.0, "leave", 0)]}, "faults must be a nowait Faults"),
        ({"callbacks": [3]}, "a callback is a nowait.Callback object or a function of control, got 3"),
        ({"callbacks": [nw.Callback]}, "a callback is a nowait.Callback object or a function of control"),
        ({"problem": Bare()}, "Bare has no initial, no gradient, no loss"),
        ({"problem": nw.problems.NoisyQuadratic}, "problem must be an object, got the class NoisyQuadratic"),
        ({"problem": WrongInitial(np.zeros(2))}, "has 2 entries, but the problem's dimension is 3"),
        (
            {"problem": WrongInitial(np.zeros(3, dtype=int))},
            "one-dimensional numpy array of float32 or float64, got int64",
        ),
        ({"problem": WrongInitial([0.0, 0.0, 0.0])}, "one-dimensional numpy array of float32 or float64, got list"),
        ({"problem": WrongInitial(np.zeros((3, 1)))}, r"got float64 \(3, 1\)"),
        ({"initial": np.array([0.0, math.nan, 0.0])}, "initial contains NaN or infinity at index 1"),
        ({"initial": np.zeros(4)}, "initial has 4 entries, but the problem's dimension is 3"),
        ({"faults": nw.speeds.Faults([(1.0, "join", 0), (1.0, "join", 1)])}, "there are no workers at the start"),
    ],
)
def test_bad_arguments_of_simulate(change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        nw.simulate(**(GOOD | change))


def test_budgets_and_options_are_keyword_only():
    with pytest.raises(TypeError):
        nw.simulate(GOOD["problem"], GOOD["method"], GOOD["speeds"], 100)


def test_a_problem_whose_gradient_has_the_wrong_size_is_told_so():
    class TooLong(WrongInitial):
        def gradient(self, point, sample):
            return np.zeros(4)

    with pytest.raises(nw.BadWorkerError, match=r"sent float64 of shape \(4,\) for a gradient"):
        nw.simulate(**(GOOD | {"problem": TooLong(np.zeros(3))}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trace": "trace.npz"}, "trace must be a nowait Trace such as run.trace, got 'trace.npz'"),
        ({"seed": -1}, "seed must be an integer of at least 0"),
        ({"method": None}, "method must be a nowait Method"),
    ],
)
def test_bad_arguments_of_replay(change, message):
    run = nw.simulate(**GOOD)
    arguments = {"trace": run.trace, "problem": GOOD["problem"], "method": GOOD["method"]} | change
    with pytest.raises((ValueError, TypeError), match=message):
        nw.replay(**arguments)


def test_an_empty_trace_cannot_be_replayed():
    run = nw.simulate(**(GOOD | {"steps": None, "seconds": 0.5}))
    assert len(run.trace) == 0
    with pytest.raises(ValueError, match="the trace has no arrivals"):
        nw.replay(run.trace, GOOD["problem"], GOOD["method"])
