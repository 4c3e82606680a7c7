"""Built-in problems: minima, constants, splits, bad arguments. The contract of problems is in test_contracts.py."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.linear_model import LogisticRegression as SklearnLogisticRegression

import nowait as nw
from nowait.core import sampler
from nowait.problems import kernels
from problem_catalogue import PROBLEMS, sparse_rows


def breast_cancer(**options):
    features, labels = load_breast_cancer(return_X_y=True)
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    return nw.problems.LogisticRegression(features, labels, **options)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(params=PROBLEMS, ids=PROBLEMS.keys())
def problem(request):
    return PROBLEMS[request.param]()


def test_the_gradient_is_zero_at_the_minimum_and_the_loss_higher_around(problem, rng):
    solution, lowest = problem.minimum()
    if not isinstance(problem, nw.problems.AbsoluteLoss | nw.problems.Hinge):
        np.testing.assert_allclose(problem.full_gradient(solution), 0, atol=1e-6)
    assert problem.loss(solution) == pytest.approx(lowest, abs=1e-15)
    for _ in range(10):
        assert problem.loss(solution + 0.1 * rng.normal(size=problem.dimension)) > lowest - 1e-12


def test_the_constants_hold(problem, rng):
    constants = problem.constants()
    solution, lowest = problem.minimum()
    if isinstance(problem, nw.problems.NonconvexLogisticRegression):
        assert (constants.B, constants.Delta) == (None, problem.loss(problem.initial()))
    else:
        assert pytest.approx(np.linalg.norm(problem.initial() - solution)) == constants.B
        assert constants.Delta == pytest.approx(problem.loss(problem.initial()) - lowest)
    for _ in range(50):
        first, second = rng.normal(size=(2, problem.dimension))
        change = problem.full_gradient(first) - problem.full_gradient(second)
        distance = np.linalg.norm(first - second)
        assert constants.L is None or np.linalg.norm(change) <= constants.L * distance * (1 + 1e-9)
        assert constants.mu is None or change @ (first - second) >= constants.mu * distance**2 * (1 - 1e-9)
        assert constants.G is None or np.linalg.norm(problem.full_gradient(first)) <= constants.G * (1 + 1e-9)


def test_the_smoothness_of_least_squares_is_exact():
    problem = PROBLEMS["least squares"]()
    hessian = problem.features.T @ problem.features / problem.samples
    eigenvalues, vectors = np.linalg.eigh(hessian)
    constants = problem.constants()
    assert pytest.approx(eigenvalues[-1]) == constants.L
    assert constants.mu == pytest.approx(eigenvalues[0])
    change = problem.full_gradient(vectors[:, -1]) - problem.full_gradient(np.zeros(6))
    assert np.linalg.norm(change) == pytest.approx(constants.L)


def test_logistic_gradients_stay_within_their_lipschitz_constant_and_variance(rng):
    problem = PROBLEMS["logistic, batch"]()
    constants = problem.constants()
    for job in range(200):
        point = 3 * rng.normal(size=problem.dimension)
        assert np.linalg.norm(problem.gradient(point, sampler(0).sample(0, job))) <= constants.G
    gradients = np.array([problem.gradient(point, sampler(0).sample(0, job)) for job in range(2_000)])
    assert gradients.var(axis=0).sum() <= constants.sigma**2


@pytest.mark.parametrize("name", ["absolute", "absolute, sparse, batch", "hinge, batch"])
def test_lipschitz_losses_have_gradients_within_their_constant(name, rng):
    problem = PROBLEMS[name]()
    norms = [
        np.linalg.norm(problem.gradient(rng.normal(size=problem.dimension), sampler(0).sample(0, job)))
        for job in range(300)
    ]
    assert 0 < max(norms) <= problem.constants().G * (1 + 1e-12)


def test_the_absolute_loss_finds_the_median(rng):
    values = rng.normal(size=31)
    problem = nw.problems.AbsoluteLoss(np.ones((31, 1)), values)
    assert problem.minimum()[0][0] == pytest.approx(np.median(values))
    method, speeds = nw.AsynchronousSGD(nw.Constant(0.01)), nw.speeds.Exponential(1.0, workers=4)
    run = nw.simulate(problem, method, speeds, steps=8_000, output=nw.UniformAverage())
    assert problem.loss(run.params) < problem.minimum()[1] * 1.02


def test_the_noise_of_the_quadratic_has_the_variance_it_says():
    problem = nw.problems.NoisyQuadratic(dimension=8, sigma=0.5)
    gradients = np.array([problem.gradient(np.zeros(8), sampler(0).sample(0, job)) for job in range(20_000)])
    assert gradients.var(axis=0).sum() == pytest.approx(0.25, rel=0.03)


@pytest.mark.parametrize(("dimension", "workers"), [(2, 2), (3, 3), (5, 8), (1, 4)])
def test_heterogeneity_of_the_quadratic_is_exactly_zeta(dimension, workers, rng):
    problem = nw.problems.NoisyQuadratic(dimension, mu=1.0).split(workers, by="sorted", zeta=0.7)
    point = rng.normal(size=dimension)
    distances = [
        problem.gradient(point, sampler(0).sample(m, 0)) - problem.full_gradient(point) for m in range(workers)
    ]
    np.testing.assert_allclose(np.linalg.norm(distances, axis=1), 0.7)
    np.testing.assert_allclose(np.sum(distances, axis=0), 0, atol=1e-12)
    assert problem.constants().zeta == 0.7


@pytest.mark.parametrize("dimension", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("by", [None, "label", "sorted"])
def test_a_split_has_the_zeta_that_was_asked_for_or_is_refused(dimension, workers, by):
    whole = nw.problems.NoisyQuadratic(dimension, mu=1.0)
    if workers == 1 or (dimension == 1 and workers % 2):
        with pytest.raises(ValueError, match="cannot add up to 0"):
            whole.split(workers, by=by, zeta=1.5)
        return
    problem = whole.split(workers, by=by, zeta=1.5)
    assert (problem.constants().zeta, problem.num_shards) == (1.5, workers)
    np.testing.assert_allclose(np.linalg.norm(problem.shifts, axis=1), 1.5)
    np.testing.assert_allclose(problem.shifts.sum(axis=0), 0, atol=1e-12)


def test_a_split_without_zeta_is_the_same_for_all_unless_it_is_by_label():
    whole = nw.problems.NoisyQuadratic(4)
    assert [whole.split(4, by=by).zeta for by in (None, "iid", "label", "sorted")] == [0, 0, 1, 1]
    assert whole.split(4, by="label", zeta=0.0).zeta == 0
    with pytest.raises(ValueError, match=r"by='iid' gives all workers the same F, but zeta=1 asks for different ones"):
        whole.split(4, by="iid", zeta=1.0)
    with pytest.raises(ValueError, match="zeta must be a finite number of at least 0, got -1"):
        whole.split(4, zeta=-1.0)


@pytest.mark.parametrize("kind", ["LogisticRegression", "NonconvexLogisticRegression", "SoftmaxRegression"])
def test_the_data_of_shards_are_as_far_apart_as_zeta_says_at_most(kind, rng):
    features = np.vstack([3 * np.eye(6), rng.normal(size=(6, 6))])
    problem = getattr(nw.problems, kind)(features, [0] * 6 + [1] * 6)
    assert problem.constants().zeta == 0
    apart = problem.split(2, by="label")
    zeta = apart.constants().zeta
    for _ in range(20):
        point = 5 * rng.normal(size=problem.dimension)
        both = [
            np.mean([apart.gradient(point, sampler(0).sample(m, job)) for job in range(600)], axis=0) for m in (0, 1)
        ]
        assert 0 < np.linalg.norm(both[0] - both[1]) / 2 <= zeta


def test_the_nonconvex_regulariser_is_lipschitz_with_the_constant_named():
    problem = nw.problems.NonconvexLogisticRegression(1e-9 * np.eye(3), [0, 1, 1], strength=2.0)
    steepest = problem.full_gradient(np.full(3, 1 / np.sqrt(3)))
    assert np.linalg.norm(steepest) == pytest.approx(problem.constants().G)


def test_logistic_regression_agrees_with_scikit_learn():
    problem = breast_cancer(l2=0.01)
    solution, _ = problem.minimum()
    model = SklearnLogisticRegression(C=1 / (0.01 * problem.samples), fit_intercept=False, tol=1e-10, max_iter=10_000)
    expected = model.fit(problem.features, problem.targets).coef_[0]
    np.testing.assert_allclose(solution, expected, rtol=1e-4, atol=1e-6)


def test_dense_and_sparse_data_give_the_same_gradients(rng):
    features, labels = sparse_rows()
    for kind in (nw.problems.LeastSquares, nw.problems.LogisticRegression):
        for batch_size in (1, 6):
            sparse = kind(features, labels, batch_size=batch_size)
            dense = kind(features.toarray(), labels, batch_size=batch_size)
            point, sample = rng.normal(size=8), sampler(0).sample(1, 2)
            np.testing.assert_allclose(sparse.gradient(point, sample), dense.gradient(point, sample), atol=1e-14)
            assert sparse.loss(point) == pytest.approx(dense.loss(point))
            np.testing.assert_allclose(sparse.full_gradient(point), dense.full_gradient(point), atol=1e-14)


def test_the_variance_bound_holds_for_every_shard():
    features = np.vstack([10 * np.eye(20), 1e-3 * np.eye(20)])
    problem = nw.problems.LogisticRegression(features, [1] * 20 + [0] * 20).split(2, by="label")
    point = np.full(20, -5.0)
    for worker in range(2):
        gradients = np.array([problem.gradient(point, sampler(0).sample(worker, job)) for job in range(2_000)])
        assert gradients.var(axis=0).sum() <= problem.constants().sigma ** 2


@pytest.mark.parametrize("dimension", [2, 3, 10])
def test_a_convex_quadratic_has_the_smoothness_it_says(dimension):
    problem = nw.problems.NoisyQuadratic(dimension, L=1.5, mu=0.0)
    assert (problem.eigenvalues.max(), problem.eigenvalues.min()) == (1.5, 0.0)


def test_a_point_of_the_wrong_size_or_type_is_noticed():
    problem = nw.problems.LeastSquares.random(samples=10, dimension=4)
    sample = sampler(0).sample(0, 0)
    with pytest.raises(ValueError, match="point and out must have 4 entries, got 2 and 2"):
        problem.gradient(np.zeros(2), sample)
    with pytest.raises(ValueError, match="got 4 and 3"):
        problem.gradient_into(np.zeros(4), sample, np.zeros(3))
    assert np.array_equal(problem.gradient([1, 0, 0, 1], sample), problem.gradient(np.array([1.0, 0, 0, 1]), sample))


def test_large_margins_do_not_overflow():
    problem = nw.problems.LogisticRegression([[1.0], [1.0]], [0, 1])
    for size in (-1e4, 1e4):
        point = np.array([size])
        assert np.isfinite(problem.loss(point))
        assert np.isfinite(problem.gradient(point, sampler(0).sample(0, 0))).all()


def test_float32_data_give_float32_params():
    features, targets = load_diabetes(return_X_y=True)
    problem = nw.problems.LeastSquares(features.astype(np.float32), targets.astype(np.float32), batch_size=8)
    run = nw.simulate(problem, nw.AsynchronousSGD(nw.DelayAdaptive(0.1)), nw.speeds.Fixed([1.0, 2.0]), steps=500)
    assert run.params.dtype == np.float32
    assert run.history.loss[-1] < run.history.loss[0]


# Splits


def test_a_split_gives_each_worker_its_own_rows_and_every_row_to_somebody():
    problem = nw.problems.LeastSquares(np.eye(11), np.arange(11.0)).split(3, by="sorted")
    shards = [problem.shards.rows_of(worker).tolist() for worker in range(3)]
    assert sorted(row for shard in shards for row in shard) == list(range(11))
    assert [len(shard) for shard in shards] == [3, 4, 4]
    assert shards[0] == [0, 1, 2]
    for worker in range(6):
        for job in range(20):
            assert problem.shards.draw_one(sampler(0).sample(worker, job)) in shards[worker % 3]


def test_the_loss_of_a_split_is_the_mean_of_the_workers_losses(rng):
    problem = nw.problems.LeastSquares(rng.normal(size=(11, 2)), rng.normal(size=11)).split(3)
    point = rng.normal(size=2)
    parts = [problem.shards.rows_of(worker) for worker in range(3)]
    losses = [nw.problems.LeastSquares(problem.features[rows], problem.targets[rows]).loss(point) for rows in parts]
    assert problem.loss(point) == pytest.approx(np.mean(losses))


def test_splitting_by_label_separates_the_classes_and_iid_does_not(rng):
    labels = np.arange(200) % 2
    problem = nw.problems.LogisticRegression(rng.normal(size=(200, 3)), labels)

    def share(by, worker):
        split = problem.split(2, by=by)
        return np.mean(split.targets[split.shards.rows_of(worker)] > 0)

    assert abs(share("label", 0) - share("label", 1)) > 0.9
    assert abs(share("iid", 0) - share("iid", 1)) < 0.2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nw.problems.LeastSquares([[1.0]], [1.0, 2.0]), "targets must be one number per row"),
        (lambda: nw.problems.LeastSquares([[np.nan]], [1.0]), "features contain NaN or infinity"),
        (lambda: nw.problems.LeastSquares([[1.0]], [np.inf]), "targets contain NaN or infinity, first in row 0"),
        (lambda: nw.problems.LeastSquares(np.zeros((0, 3)), []), "features must be a matrix with rows and columns"),
        (lambda: nw.problems.LeastSquares([[1.0]], [1.0], batch_size=0), "batch_size must be an integer of at least 1"),
        (lambda: nw.problems.LeastSquares([[1.0]], [1.0], l2=-1), "l2 must be a finite number of at least 0"),
        (
            lambda: nw.problems.LogisticRegression([[1.0], [2.0]], [1, 1]),
            "labels must have exactly two values, got 1: 1",
        ),
        (lambda: nw.problems.LogisticRegression(np.eye(3), [1, 2, 3]), "labels must have exactly two values, got 3"),
        (lambda: nw.problems.LeastSquares.random(10, 2).split(11), "cannot split 10 rows among 11 workers"),
        (
            lambda: nw.problems.LeastSquares.random(10, 2).split(2, by="magic"),
            "by must be one of 'iid', 'label', 'sorted', got 'magic'",
        ),
        (lambda: nw.problems.LeastSquares.random(10, 2).split(2, by="label"), "use by='sorted'"),
        (lambda: nw.problems.LeastSquares.random(10, 2, noise=-1), "noise must be a finite number of at least 0"),
        (lambda: nw.problems.NoisyQuadratic(3, L=1.0, mu=2.0), "mu must not exceed L"),
        (lambda: nw.problems.NoisyQuadratic(0), "dimension must be an integer of at least 1"),
        (lambda: nw.problems.NoisyQuadratic(3, sigma=-1), "sigma must be a finite number of at least 0"),
        (lambda: nw.problems.NoisyQuadratic(3, zeta=1.0), "cannot add up to 0"),
        (lambda: nw.problems.LeastSquares([[1.0, 2.0], [3.0]], [1.0, 2.0]), "all rows need the same number of entries"),
        (lambda: nw.problems.LogisticRegression(np.eye(2), ["cat", "dog"]), "labels must be numbers"),
        (lambda: nw.problems.LeastSquares.random(10, 2, seed=-1), "seed must be an integer of at least 0"),
        (lambda: nw.theory.Constants(L="a"), "L must be a finite number of at least 0, got 'a'"),
        (lambda: nw.theory.Constants(L=1.0, mu=2.0), "mu must not exceed L"),
        (lambda: nw.theory.Constants(sigma=-1.0), "sigma must be a finite number of at least 0"),
    ],
)
def test_bad_arguments_of_problems(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_split_problem_looks_for_its_own_minimum(rng):
    whole = nw.problems.LeastSquares(rng.normal(size=(7, 2)), rng.normal(size=7))
    whole.minimum()
    split = whole.split(2, by="sorted")
    np.testing.assert_allclose(split.full_gradient(split.minimum()[0]), 0, atol=1e-12)


# Softmax regression and the non-convex regulariser


def test_softmax_regression_finds_what_scikit_learn_finds():
    features, labels = load_iris(return_X_y=True)
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    problem = nw.problems.SoftmaxRegression(features, labels, batch_size=10, l2=0.01)
    theirs = SklearnLogisticRegression(C=1 / (0.01 * len(labels)), fit_intercept=False, tol=1e-10, max_iter=10_000)
    theirs.fit(features, labels)
    solution = problem.minimum()[0].reshape(4, 3)
    np.testing.assert_allclose(solution - solution.mean(axis=1, keepdims=True), theirs.coef_.T, atol=1e-4)
    assert problem.accuracy(problem.minimum()[0]) == theirs.score(features, labels)
    method, speeds = nw.AsynchronousSGD(nw.DelayAdaptive(0.3)), nw.speeds.Exponential(1.0, workers=4)
    run = nw.simulate(problem, method, speeds, steps=1_000)
    assert problem.accuracy(run.params) > problem.accuracy(problem.minimum()[0]) - 0.05


def test_softmax_regression_of_two_classes_is_logistic_regression(rng):
    features, labels = rng.normal(size=(30, 3)), rng.integers(0, 2, 30)
    softmax = nw.problems.SoftmaxRegression(features, labels)
    logistic = nw.problems.LogisticRegression(features, labels)
    point = rng.normal(size=3)
    assert softmax.loss(np.column_stack([-point / 2, point / 2]).ravel()) == pytest.approx(logistic.loss(point))


def test_softmax_takes_names_as_labels_and_wants_two_of_them():
    problem = nw.problems.SoftmaxRegression(np.eye(3), ["cat", "dog", "cat"])
    assert problem.classes.tolist() == ["cat", "dog"]
    with pytest.raises(ValueError, match="labels must have at least two values, got 1"):
        nw.problems.SoftmaxRegression(np.eye(3), ["cat"] * 3)
    with pytest.raises(ValueError, match="labels contain NaN or infinity"):
        nw.problems.SoftmaxRegression(np.eye(3), [0, 1, np.nan])
    with pytest.raises(TypeError, match="labels must be all numbers or all names"):
        nw.problems.SoftmaxRegression(np.eye(3), ["cat", None, "dog"])
    assert nw.problems.SoftmaxRegression(np.eye(5), list("abcab")).split(2, by="label").num_shards == 2


def test_the_nonconvex_regulariser_is_bounded_and_makes_it_nonconvex():
    problem = nw.problems.NonconvexLogisticRegression(np.eye(2), [0, 1], strength=0.5)
    assert problem.penalty(np.array([1e9, 0.0])) == pytest.approx(0.5)
    with np.errstate(over="ignore"):
        assert problem.penalty(np.array([1e200, 0.0])) == pytest.approx(0.5)
    ends = [np.array([1.0, 0.0]), np.array([5.0, 0.0])]
    middle = sum(map(problem.loss, ends)) / 2
    assert problem.loss(sum(ends) / 2) > middle + 1e-3, "above the chord: not convex"
    assert problem.constants().mu is None


def test_compiled_draws_are_those_of_the_sample():
    """Keys in both halves of 64 bits, and limits up to the largest one that is compiled."""
    for job in range(50):
        sample = sampler(1).sample(job % 5, job)
        for limit in (1, 7, 10_000, 2**32 - 1):
            drawn = kernels.draw(np.uint64(sample.key), np.uint64(limit), 9)
            assert np.array_equal(drawn, sample.indices(limit, 9))


def test_indices_of_sparse_features_are_short_if_they_fit():
    """Kernels are compiled for each type of indices that occurs."""
    features = scipy.sparse.csr_array(np.eye(3))
    features.indices, features.indptr = features.indices.astype(np.int64), features.indptr.astype(np.int64)
    problem = nw.problems.LeastSquares(features, np.ones(3))
    assert (problem.features.indices.dtype, problem.features.indptr.dtype) == (np.int32, np.int32)
    assert np.array_equal(problem.features.toarray(), np.eye(3))
    assert features.indices.dtype == np.int64, "the user's matrix is left alone"
