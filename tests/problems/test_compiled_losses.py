"""Losses of linear models in one compiled call: the same bits as φ computed with numpy, row by row."""

import numpy as np
import pytest

import nowait as nw
from nowait.problems.logistic_regression import LogisticModel
from nowait.problems.matrix import margins_of
from problem_catalogue import PROBLEMS

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(53, 7))
LABELS = FEATURES[:, 0] > 0
LINEAR = {
    "least squares": nw.problems.LeastSquares(FEATURES, FEATURES.sum(axis=1), l2=0.1),
    "logistic, shards": nw.problems.LogisticRegression(FEATURES, LABELS, l2=0.1).split(4),
    "nonconvex": nw.problems.NonconvexLogisticRegression(FEATURES, LABELS),
    "absolute": nw.problems.AbsoluteLoss(FEATURES, FEATURES.sum(axis=1)),
    "hinge, float32": nw.problems.Hinge(FEATURES.astype(np.float32), LABELS),
}


def one_by_one(problem, points):
    margins = margins_of(problem.features, points)
    means = [problem.shards.mean(problem.losses(row, problem.targets)) for row in margins]
    return np.array([mean + problem.penalty(point) for mean, point in zip(means, points, strict=True)])


@pytest.mark.parametrize("problem", LINEAR.values(), ids=LINEAR)
def test_the_bits_are_the_same(problem):
    points = RNG.normal(size=(6, 7)) * np.array([[0.0], [1e-3], [1.0], [1.0], [30.0], [1e200]])
    points[3, 2] = np.nan
    points = points.astype(problem.targets.dtype) if problem.targets.dtype == np.float64 else points[:5].astype("f4")
    with np.errstate(all="ignore"):
        found, expected = problem.losses_at(points), one_by_one(problem, points)
    assert np.isnan(found[3])
    np.testing.assert_array_equal(found, expected)


class Squared(LogisticModel):
    """Another loss with the compiled gradient of another model: only its own losses count."""

    def losses(self, margins, targets):
        return super().losses(margins, targets) ** 2

    constants = None

    def _solve(self):
        return self.initial()


def test_a_subclass_with_other_losses_is_not_compiled():
    problem = Squared(FEATURES, np.where(LABELS, 1.0, -1.0), batch_size=1, l2=0.0)
    assert problem.loss(problem.initial()) == pytest.approx(np.log(2) ** 2)


def test_all_linear_problems_of_the_catalogue_are_compiled():
    for name, make in PROBLEMS.items():
        if isinstance(make(), nw.problems.linear_model.LinearModel):
            assert make().has_compiled_losses, name
