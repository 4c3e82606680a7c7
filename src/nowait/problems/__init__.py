"""Built-in problems, with their minima and constants, and wrappers that change what workers send."""

from nowait.problems.compressed import Compressed
from nowait.problems.compressors import QSGD, Compressor, RandomK, Sign, TopK
from nowait.problems.encoded import Encoded
from nowait.problems.least_squares import LeastSquares
from nowait.problems.libsvm import read_libsvm
from nowait.problems.linear_model import LinearModel
from nowait.problems.lipschitz_losses import AbsoluteLoss, Hinge
from nowait.problems.local_steps import LocalSteps
from nowait.problems.logistic_regression import LogisticRegression, NonconvexLogisticRegression
from nowait.problems.noisy_quadratic import NoisyQuadratic
from nowait.problems.rows import RowModel
from nowait.problems.softmax_regression import SoftmaxRegression

__all__ = [
    "QSGD",
    "AbsoluteLoss",
    "Compressed",
    "Compressor",
    "Encoded",
    "Hinge",
    "LeastSquares",
    "LinearModel",
    "LocalSteps",
    "LogisticRegression",
    "NoisyQuadratic",
    "NonconvexLogisticRegression",
    "RandomK",
    "RowModel",
    "Sign",
    "SoftmaxRegression",
    "TopK",
    "read_libsvm",
]
