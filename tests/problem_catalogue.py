"""Every kind of built-in problem, made anew for each test, with data that depend on nothing but its own seed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

from nowait.core import Adam
from nowait.problems import (
    QSGD,
    AbsoluteLoss,
    Compressed,
    Encoded,
    Hinge,
    LeastSquares,
    LocalSteps,
    LogisticRegression,
    NoisyQuadratic,
    NonconvexLogisticRegression,
    RandomK,
    Sign,
    SoftmaxRegression,
    TopK,
)


def numbers(rows, columns, seed=0, dtype=np.float64):
    """Random features and real targets."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, columns)).astype(dtype), rng.normal(size=rows).astype(dtype)


def labelled(rows, columns, classes=2, seed=0):
    """Random features and random labels."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, columns)), rng.integers(0, classes, rows)


def sparse_rows(rows=40, columns=8, classes=2, seed=1):
    """Sparse random features and labels −1, 1, 3, …"""
    rng = np.random.default_rng(seed)
    features = scipy.sparse.random_array((rows, columns), density=0.4, rng=rng, format="csr")
    return features, 2.0 * rng.integers(0, classes, rows) - 1.0


def quadratic(**options):
    """A noisy quadratic in six dimensions."""
    return NoisyQuadratic(**({"dimension": 6, "L": 2.0, "mu": 0.1, "sigma": 0.7} | options))


PROBLEMS: dict[str, Callable[[], Any]] = {
    "absolute": lambda: AbsoluteLoss(*numbers(41, 4)),
    "absolute, sparse, batch": lambda: AbsoluteLoss(*sparse_rows(), batch_size=3),
    "hinge, batch": lambda: Hinge(*labelled(60, 4), batch_size=5),
    "hinge, split": lambda: Hinge(*labelled(61, 4)).split(3, by="label"),
    "least squares": lambda: LeastSquares.random(samples=50, dimension=6, noise=0.1, seed=3),
    "least squares, batch, l2": lambda: LeastSquares(*numbers(30, 5), 7, l2=0.3),
    "least squares, float32": lambda: LeastSquares(*numbers(30, 5, dtype=np.float32), 7),
    "least squares, sparse": lambda: LeastSquares(*sparse_rows(), batch_size=3),
    "least squares, split": lambda: LeastSquares.random(samples=53, dimension=6, noise=0.1).split(4, by="sorted"),
    "logistic": lambda: LogisticRegression(*labelled(40, 6), l2=0.01),
    "logistic, batch": lambda: LogisticRegression(*labelled(40, 6), 9),
    "logistic, sparse": lambda: LogisticRegression(*sparse_rows(), batch_size=4, l2=0.1),
    "logistic, sparse, batch 1": lambda: LogisticRegression(*sparse_rows(), l2=0.1),
    "logistic, split": lambda: LogisticRegression(*labelled(41, 6), 3).split(3, by="label"),
    "non-convex": lambda: NonconvexLogisticRegression(*labelled(40, 6), 3, strength=0.02),
    "quadratic": quadratic,
    "quadratic, split": lambda: quadratic(L=1.0, sigma=0.2).split(5, by="label", zeta=2.0),
    "softmax": lambda: SoftmaxRegression(*labelled(50, 3, classes=4), l2=0.05),
    "softmax, sparse, batch": lambda: SoftmaxRegression(*sparse_rows(classes=3), batch_size=4, l2=0.1),
    "softmax, split": lambda: SoftmaxRegression(*labelled(51, 3, classes=3), 2, l2=0.02).split(3, by="label"),
}
"""Problems whose workers send unbiased gradients of the loss."""

WRAPPED: dict[str, Callable[[], Any]] = {
    "local steps": lambda: LocalSteps(quadratic(), steps=3, stepsize=0.1),
    "local steps, Adam": lambda: LocalSteps(quadratic(), steps=[3, 1], stepsize=0.1, update=Adam()),
    "local steps, split, proximal": lambda: LocalSteps(PROBLEMS["logistic, split"](), [1, 4], 0.1, proximal=0.5),
    "compressed, top": lambda: Compressed(quadratic(), TopK(2)),
    "compressed, random": lambda: Compressed(PROBLEMS["least squares, float32"](), RandomK(2)),
    "compressed, unbiased": lambda: Compressed(quadratic(), RandomK(2, unbiased=True)),
    "compressed, QSGD": lambda: Compressed(PROBLEMS["logistic, split"](), QSGD(4)),
    "encoded, float16": lambda: Encoded(quadratic(), "float16", "bfloat16"),
    "encoded, int8": lambda: Encoded(PROBLEMS["least squares, float32"](), "int8"),
    "encoded, points": lambda: Encoded(quadratic(), points="float32"),
    "compressed, sign, local steps": lambda: Compressed(LocalSteps(quadratic(), steps=2, stepsize=0.1), Sign()),
}
"""Problems whose workers send something else than gradients of the loss."""
