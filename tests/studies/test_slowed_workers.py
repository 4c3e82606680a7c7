"""``slowdown=`` names workers that exist, wherever it is taken; others are refused before any work starts."""

import pytest

import nowait as nw


class Untouched:
    """A problem that nobody may compute with."""

    dimension = 2

    def initial(self):
        return [0.0, 0.0]

    def gradient(self, point, sample):
        raise AssertionError("a gradient was computed")

    def loss(self, point):
        raise AssertionError("a loss was computed")


def make(size):
    return nw.AsynchronousSGD(size)


CALLS = {
    "train": lambda **options: nw.train(Untouched(), make(0.1), steps=3, **options),
    "race": lambda **options: nw.race(Untouched(), {"mine": make}, gradients=100, **options),
    "tune": lambda **options: nw.tune(Untouched(), make, steps=3, **options),
    "plan": lambda **options: nw.plan(Untouched(), **options),
}


@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize(
    ("workers", "slowdown", "message"),
    [
        (3, {3: 2.0}, "slowdown names worker 3, but the workers are 0 to 2"),
        (1, {0: 2.0, 1: 2.0}, "slowdown names worker 1, but the only worker is 0"),
        (2, {-1: 2.0}, "a worker in slowdown must be an integer of at least 0, got -1"),
        (2, {0: float("nan")}, r"slowdown\[0\] must be a finite number above 0, got nan"),
        (2, {0: 0.5}, r"slowdown\[0\] must be at least 1, got 0.5"),
    ],
)
def test_a_slowdown_of_a_worker_that_does_not_exist_is_refused(verb, workers, slowdown, message):
    with pytest.raises(ValueError, match=message):
        CALLS[verb](workers=workers, slowdown=slowdown)


@pytest.mark.parametrize("verb", ["train", "race", "tune"])
def test_the_default_number_of_workers_counts_as_well(verb, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with pytest.raises(ValueError, match="slowdown names worker 2, but the workers are 0 to 1"):
        CALLS[verb](slowdown={2: 5.0})


def test_a_plan_from_given_speeds_has_no_workers_to_slow():
    with pytest.raises(ValueError, match="slowdown= slows the workers of a probe, but seconds_per_gradient= gives"):
        nw.plan(seconds_per_gradient=[1.0, 2.0], slowdown={0: 2.0})
