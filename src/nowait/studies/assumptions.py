"""Small problems that satisfy the assumptions of each theorem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nowait.core.types import Floats
from nowait.problems import AbsoluteLoss, Hinge, LogisticRegression, NoisyQuadratic, NonconvexLogisticRegression


def absolute_loss() -> AbsoluteLoss:
    """Return a problem that is convex and Lipschitz, but not smooth."""
    features, _ = _labelled()
    targets = features @ np.linspace(-1, 1, features.shape[1]) + _noise(len(features))
    return AbsoluteLoss(features, np.round(targets, 6))


def hinge() -> Hinge:
    """Return a support vector machine: convex and Lipschitz, but not smooth."""
    return Hinge(*_labelled())


def logistic() -> LogisticRegression:
    """Return a convex, smooth problem with bounded noise."""
    return LogisticRegression(*_labelled(), batch_size=4)


def regularised_logistic() -> LogisticRegression:
    """Return a strongly convex problem."""
    return LogisticRegression(*_labelled(), batch_size=4, l2=0.1)


def nonconvex_logistic() -> NonconvexLogisticRegression:
    """Return a problem that is smooth and Lipschitz, but not convex."""
    return NonconvexLogisticRegression(*_labelled(), batch_size=4, strength=0.1)


def flat_quadratic() -> NoisyQuadratic:
    """Return a convex problem with a flat direction."""
    return NoisyQuadratic(dimension=10, L=1.0, mu=0.0, sigma=1.0, distance=3.0)


def quadratic() -> NoisyQuadratic:
    """Return a strongly convex problem."""
    return NoisyQuadratic(dimension=10, L=1.0, mu=0.1, sigma=1.0, distance=3.0)


def steep_quadratic() -> NoisyQuadratic:
    """Return a strongly convex problem with long gradients at the start and little noise."""
    return NoisyQuadratic(dimension=10, L=4.0, mu=1.0, sigma=0.5, distance=3.0)


PROBLEMS: dict[str, list[Callable[[], Any]]] = {
    "convex-lipschitz": [absolute_loss, hinge],
    "nonconvex-lipschitz": [nonconvex_logistic],
    "convex": [flat_quadratic, logistic],
    "strongly-convex": [quadratic, regularised_logistic],
    "nonconvex": [nonconvex_logistic, quadratic],
    "heterogeneous": [quadratic, steep_quadratic],
}
"""By the settings of ``nw.theory.prescribe``. For "heterogeneous" they are split by label."""


def _labelled() -> tuple[Floats, Floats]:
    """Return 200 rows of 5 features, and labels that are not linearly separable."""
    rng = np.random.default_rng(0)
    features = np.round(rng.standard_normal((200, 5)), 6)  # the last digits depend on the processor
    scores = features @ np.linspace(-1, 1, 5) + rng.standard_normal(200)
    return features, np.where(scores > 0, 1.0, -1.0)


def _noise(size: int) -> Floats:
    return 0.5 * np.random.default_rng(1).standard_normal(size)
