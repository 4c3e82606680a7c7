"""Problems to train on, with everything known about them."""

from nowait.problems.least_squares import LeastSquares
from nowait.problems.libsvm import read_libsvm
from nowait.problems.linear_model import LinearModel
from nowait.problems.lipschitz_losses import AbsoluteLoss, Hinge
from nowait.problems.logistic_regression import LogisticRegression
from nowait.problems.noisy_quadratic import NoisyQuadratic

__all__ = [
    "AbsoluteLoss",
    "Hinge",
    "LeastSquares",
    "LinearModel",
    "LogisticRegression",
    "NoisyQuadratic",
    "read_libsvm",
]
