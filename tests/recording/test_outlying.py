"""A run that diverged because of one worker's gradients says so."""

import numpy as np
import pytest

import nowait as nw
from faulty import Quadratic
from nowait.recording import outlying
from nowait.recording.outlying import FAR_LARGER, Outlier, first_outlier
from nowait.testing import train_scripted
from nowait.testing.scripted import Report

ASYNCHRONOUS = nw.AsynchronousSGD(nw.Constant(0.1))


class Enlarging:
    """A quadratic; the gradients of one worker are far too large from some job on."""

    def __init__(self, worker, first, factor):
        self.worker, self.first, self.factor = worker, first, factor
        self.problem, self.dimension = Quadratic(5, 0.1), 5
        self.initial, self.loss = self.problem.initial, self.problem.loss

    def gradient(self, point, sample):
        is_wrong = sample.worker == self.worker and sample.job >= self.first
        return self.problem.gradient(point, sample) * (self.factor if is_wrong else 1.0)


def columns(rows):
    return [
        np.array(column, dtype) for column, dtype in zip(zip(*rows, strict=True), (int, int, int, float), strict=True)
    ]


def test_the_first_gradient_far_above_those_of_other_workers_at_points_of_its_age_is_named():
    rows = [(0, 0, 1, 1.0), (1, 0, 2, 0.5), (0, 1, 2, 2e4), (1, 1, 3, 1.5), (0, 3, 1, 9e9), (1, 3, 2, 8e9)]
    assert first_outlier(*columns(rows)) == Outlier(0, 2e4 / 1.5)


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 0, 1, 1.0), (1, 0, 2, 1.0), (0, 1, 2, FAR_LARGER), (1, 1, 3, 1.0)],  # not more than FAR_LARGER
        [(0, 0, 1, 1e-9), (0, 1, 1, 1e9), (0, 2, 1, 1e12)],  # nobody to compare with
        [(0, 0, 1, 1.0), (1, 0, 2, 1e6), (0, 1, 2, 1e12), (1, 2, 2, 1e12), (0, 3, 2, 1e18)],  # it grows for all
        [(0, 0, 1, np.nan), (1, 0, 1, 1e-9), (0, 0, 2, 0.0)],  # rejected and late ones
        [],
    ],
)
def test_other_gradients_are_not_named(rows):
    assert first_outlier(*(columns(rows) if rows else [np.zeros(0)] * 4)) is None


def test_the_quick_look_at_a_long_run_leaves_no_outlier_out(monkeypatch):
    rng = np.random.default_rng(0)
    rows = [
        (rng.integers(0, 3, 40), rng.integers(0, 40, 40), rng.integers(0, 6, 40), np.exp(4 * rng.normal(size=40)))
        for _ in range(50)
    ]
    quick = [first_outlier(*columns) for columns in rows]
    monkeypatch.setattr(outlying, "_may_be_outliers", lambda worker, *_: np.ones(len(worker), bool))
    assert quick == [first_outlier(*columns) for columns in rows]
    assert {outlier is None for outlier in quick} == {True, False}


def test_a_gradient_whose_norm_overflows_is_named():
    rows = [(0, 0, 1, 1.0), (1, 0, 2, np.inf)]
    assert first_outlier(*columns(rows)) == Outlier(1, np.inf)


@pytest.mark.parametrize("factor", [1e30, 1e300])
def test_a_run_that_diverged_because_of_one_worker_names_it(factor, caplog):
    script = [Report(worker) for worker in (0, 1, 2) * 100]
    run = train_scripted(Enlarging(2, 7, factor), ASYNCHRONOUS, workers=3, steps=300, script=script, evaluate_every=30)
    assert run.stats.diverged
    assert "Before that, worker 2 sent a gradient " in run.stats.advice
    assert "check its data and its machine" in run.stats.advice


def test_a_run_that_diverged_for_its_stepsize_names_no_worker(caplog):
    method = nw.AsynchronousSGD(nw.Constant(9.0))
    run = train_scripted(Quadratic(5, 0.1), method, workers=3, steps=3_000, evaluate_every=30)
    assert run.stats.diverged
    assert run.stats.advice.endswith("Try a stepsize ten times smaller")
