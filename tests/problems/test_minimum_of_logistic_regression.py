"""The minimum of logistic regression: Newton's method, and a warning where there is none."""

import numpy as np
import pytest
from scipy.sparse import csr_array, csr_matrix

import nowait as nw

RNG = np.random.default_rng(3)
FEATURES = np.round(RNG.standard_normal((300, 6)), 6)
LABELS = np.where(FEATURES @ np.arange(6) + 3 * RNG.standard_normal(300) > 0, 1, -1)


def with_a_column_for_few(features, labels):
    """Add a feature that only rows of one class have: its best weight is infinite."""
    extra = np.zeros(len(labels))
    extra[np.flatnonzero(labels < 0)[:3]] = 1.0
    return np.column_stack([features, extra])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("l2", [0.0, 0.01])
def test_the_gradient_vanishes_at_the_minimum(sparse, l2, caplog):
    problem = nw.problems.LogisticRegression(csr_array(FEATURES) if sparse else FEATURES, LABELS, l2=l2)
    solution, lowest = problem.minimum()
    assert np.linalg.norm(problem.full_gradient(solution)) < 1e-10
    assert lowest <= min(problem.loss(solution + 1e-4), problem.loss(solution - 1e-4))
    assert caplog.text == ""


def test_a_column_in_another_unit_is_no_sign_of_separable_rows(caplog):
    scaled = FEATURES * np.array([1.0, 1e-4, 1.0, 1e3, 1.0, 1.0])
    problem = nw.problems.LogisticRegression(scaled, LABELS)
    plain = nw.problems.LogisticRegression(FEATURES, LABELS)
    assert problem.minimum()[1] == pytest.approx(plain.minimum()[1], rel=1e-9)
    assert caplog.text == ""


def test_newton_and_lbfgs_find_the_same_minimum(monkeypatch):
    newton = nw.problems.LogisticRegression(FEATURES, LABELS, l2=0.01)
    monkeypatch.setattr("nowait.problems.logistic_regression.MOST_NEWTON", 1)
    lbfgs = nw.problems.LogisticRegression(FEATURES, LABELS, l2=0.01)
    assert newton.minimum()[0] == pytest.approx(lbfgs.minimum()[0], abs=1e-6)


@pytest.mark.parametrize(
    "problem",
    [
        nw.problems.LogisticRegression(FEATURES, np.where(FEATURES[:, 0] > 0, 1, -1)),
        nw.problems.LogisticRegression(with_a_column_for_few(FEATURES, LABELS), LABELS),
        nw.problems.SoftmaxRegression(FEATURES, np.where(FEATURES[:, 0] > 0, 1, 0)),
    ],
    ids=["separable", "separable in one feature", "softmax"],
)
def test_separable_rows_have_no_minimiser_and_a_warning_says_so(problem, caplog):
    problem.minimum()
    assert "has no minimiser" in caplog.text
    assert "add l2=" in caplog.text


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("model", [nw.problems.LogisticRegression, nw.problems.SoftmaxRegression])
def test_a_feature_of_one_class_is_found_without_newton(model, sparse, caplog, monkeypatch):
    monkeypatch.setattr("nowait.problems.logistic_regression.MOST_NEWTON", 1)
    features = with_a_column_for_few(FEATURES, LABELS)
    model(csr_matrix(features) if sparse else features, LABELS).minimum()
    assert "has no minimiser" in caplog.text


@pytest.mark.parametrize("model", [nw.problems.LogisticRegression, nw.problems.SoftmaxRegression])
def test_rows_that_cannot_be_separated_have_a_minimiser(model, caplog):
    zero = np.zeros((len(LABELS), 1))
    model(np.hstack([FEATURES, zero]), LABELS).minimum()
    assert caplog.text == ""


def test_with_l2_separable_rows_have_a_minimiser(caplog):
    nw.problems.LogisticRegression(FEATURES, np.where(FEATURES[:, 0] > 0, 1, -1), l2=0.01).minimum()
    assert caplog.text == ""


def test_the_gradient_of_a_worker_is_the_mean_of_its_rows():
    problem = nw.problems.LogisticRegression(FEATURES, LABELS, l2=0.1).split(4, by="label")
    point = np.linspace(-1, 1, 6)
    parts = [problem.gradient_of_worker(point, worker) for worker in range(4)]
    assert np.mean(parts, axis=0) == pytest.approx(problem.full_gradient(point))
    rows = problem.shards.rows_of(2)
    alone = nw.problems.LogisticRegression(FEATURES, LABELS, l2=0.1)
    slopes = alone.slopes(FEATURES[rows] @ point, problem.targets[rows])
    assert parts[2] == pytest.approx(slopes @ FEATURES[rows] / len(rows) + 0.1 * point)


@pytest.mark.parametrize("make", [nw.problems.LeastSquares, nw.problems.SoftmaxRegression])
@pytest.mark.parametrize("as_matrix", [np.asarray, csr_array])
def test_the_mean_of_the_workers_gradients_is_that_of_the_problem(make, as_matrix):
    labels = np.arange(len(LABELS)) % 3
    problem = make(as_matrix(FEATURES), labels, l2=0.1).split(4, by="sorted")
    point = np.linspace(-1, 1, problem.dimension)
    parts = [problem.gradient_of_worker(point, worker) for worker in range(4)]
    assert np.mean(parts, axis=0) == pytest.approx(problem.full_gradient(point))
    assert np.ptp(parts, axis=0).max() > 0.01
