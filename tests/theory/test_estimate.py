"""Estimated constants, compared with known ones."""

import numpy as np
import pytest

import nowait as nw
from nowait.theory import estimate, prescribe

RNG = np.random.default_rng(0)


class Plain:
    """A user's problem without full_gradient and minimum, in float64 or float32."""

    dimension = 3
    curvature = np.array([1.0, 2.0, 5.0])

    def __init__(self, dtype=np.float64, noise=1.0):
        self.dtype, self.noise = dtype, noise

    def initial(self):
        return np.zeros(3, self.dtype)

    def gradient(self, point, sample):
        return (self.curvature * (point - 1) + self.noise * sample.normals(3)).astype(self.dtype)

    def loss(self, point):
        return float(0.5 * self.curvature @ (point - 1.0) ** 2)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_problem_of_ones_own(dtype):
    found = estimate(Plain(dtype))
    assert pytest.approx(5.0, rel=1e-2) == found.L
    assert found.sigma == pytest.approx(np.sqrt(3), abs=4 * found.sigma.error)
    assert 0 < found.sigma.error < 0.2
    assert found.Delta == pytest.approx(4.0, rel=0.05)
    assert pytest.approx(np.sqrt(3), rel=0.1) == found.B
    assert found.zeta is None


def test_the_constants_of_built_in_problems_are_found():
    features = RNG.normal(size=(300, 6))
    problem = nw.problems.LeastSquares(features, features @ np.ones(6), batch_size=4)
    exact, found = problem.constants(), estimate(problem, iterations=100)
    assert pytest.approx(exact.L, rel=1e-3) == found.L
    assert (found.B, found.Delta) == pytest.approx((exact.B, exact.Delta))
    assert found.sigma > 0, "which has no bound over all x"


def test_an_estimate_is_as_good_as_constants_for_prescribe():
    found = estimate(nw.problems.NoisyQuadratic(dimension=4, sigma=0.3))
    by_estimate = prescribe("nonconvex", found, workers=4, steps=100)
    by_constants = prescribe("nonconvex", found.constants, workers=4, steps=100)
    assert by_estimate == by_constants


def test_the_error_says_how_uncertain_sigma_is():
    """More samples give a smaller error, and the reported errors match the spread of many estimates."""
    few, many = (estimate(Plain(), samples=samples, descent=0).sigma.error for samples in (32, 2_048))
    assert many < few / 4
    found = [estimate(Plain(), samples=64, descent=0, iterations=1, seed=seed).sigma for seed in range(30)]
    spread = np.std([float(value) for value in found])
    assert spread == pytest.approx(np.mean([value.error for value in found]), rel=0.4)


def test_the_error_of_a_sampled_smoothness_says_how_much_it_differs_from_sample_to_sample():
    class RandomCurvature(Plain):
        def gradient(self, point, sample):
            return point * (1 + sample.normals(1))

        def loss(self, point):
            return float(0.5 * point @ point)

        def initial(self):
            return np.ones(3)

    found = estimate(RandomCurvature(), descent=0)
    assert found.L.error > 0.05
    assert abs(found.L - 1.0) < 4 * found.L.error


def test_a_known_lowest_loss_makes_delta_a_bound():
    found = estimate(Plain(), lowest=-1.0)
    assert found.Delta == pytest.approx(5.0)
    with pytest.raises(ValueError, match="lowest=3 is not a lower bound of the loss"):
        estimate(Plain(), lowest=3.0)


def test_different_data_are_seen():
    problem = nw.problems.NoisyQuadratic(dimension=4, sigma=0.1).split(4, by="sorted", zeta=0.7)
    found = estimate(problem, workers=4)
    assert found.zeta == pytest.approx(0.7, abs=5 * found.zeta.error)


def test_the_same_seed_gives_the_same_estimate():
    assert [str(estimate(Plain(), seed=seed)) for seed in (3, 3)] == [str(estimate(Plain(), seed=3))] * 2
    assert estimate(Plain(), seed=3).sigma != estimate(Plain(), seed=4).sigma


def test_gradients_that_are_not_finite_are_told():
    class Broken(Plain):
        def gradient(self, point, sample):
            return np.full(3, np.nan)

    with pytest.raises(ValueError, match="Broken has gradients that are not finite"):
        estimate(Broken())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 1}, "samples must be an integer of at least 8"),
        ({"iterations": 0}, "iterations must be an integer of at least 1"),
        ({"descent": -1}, "descent must be an integer of at least 0"),
        ({"seed": -1}, "seed must be an integer of at least 0"),
        ({"initial": np.zeros(5)}, "initial has 5 entries"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        estimate(Plain(), **options)


class Absolute:
    """A user's piecewise linear loss, without curvature."""

    dimension = 2

    def initial(self):
        return np.zeros(2)

    def gradient(self, point, sample):
        return np.sign(point - 3.0 + 0.1 * (sample.index(2) - 0.5))

    def loss(self, point):
        return float(np.abs(point - 3.0).sum())


def test_a_loss_without_curvature_is_descended_by_distance():
    found = estimate(Absolute())
    assert found.L == 0
    assert pytest.approx(3 * np.sqrt(2), rel=0.05) == found.B
    assert found.Delta == pytest.approx(6.0, rel=0.05)
    assert pytest.approx(np.sqrt(2)) == found.G


def test_data_that_differ_by_chance_only_have_no_zeta():
    found = estimate(nw.problems.NoisyQuadratic(dimension=10, sigma=1.0), workers=4)
    assert found.constants.zeta == 0
    assert prescribe("convex", found, workers=4, steps=1_000).setting == "convex"


def test_a_loss_that_is_no_number_is_told():
    class NoLoss(Plain):
        def loss(self, point):
            return float("nan")

    with pytest.raises(ValueError, match="NoLoss has a loss of nan near x_0"):
        estimate(NoLoss())


def test_g_is_the_root_of_the_second_moment():
    problem = nw.problems.NoisyQuadratic(dimension=10, L=1.0, mu=1.0, sigma=0.5, distance=2.0)
    found = estimate(problem, descent=0)
    exact = float(np.sqrt(np.sum(problem.full_gradient(problem.initial()) ** 2) + 0.25))
    assert pytest.approx(exact, abs=4 * found.G.error) == found.G
    assert 0 < found.G.error < 0.05


def test_zeta_is_exact_where_the_gradients_of_workers_are():
    problem = nw.problems.NoisyQuadratic(dimension=4, sigma=3.0).split(4, by="sorted", zeta=0.7)
    found = estimate(problem, workers=4)
    assert float(found.zeta) == pytest.approx(0.7)
    assert found.zeta.error == 0
