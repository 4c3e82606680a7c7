"""Problems that satisfy the assumptions of each theorem, small enough for many runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nowait.core.types import Floats
from nowait.problems import AbsoluteLoss, Hinge, LogisticRegression, NoisyQuadratic, NonconvexLogisticRegression


def absolute_loss() -> AbsoluteLoss:
    """Convex, Lipschitz, not smooth."""
    features, _ = _labelled()
    targets = features @ np.linspace(-1, 1, features.shape[1]) + _noise(len(features))
    return AbsoluteLoss(features, np.round(targets, 6))


def hinge() -> Hinge:
    """The same, as a support vector machine."""
    return Hinge(*_labelled())


def logistic() -> LogisticRegression:
    """Convex, smooth, with bounded noise."""
    return LogisticRegression(*_labelled(), batch_size=4)


def regularised_logistic() -> LogisticRegression:
    """Strongly convex."""
    return LogisticRegression(*_labelled(), batch_size=4, l2=0.1)


def nonconvex_logistic() -> NonconvexLogisticRegression:
    """Smooth, Lipschitz, not convex."""
    return NonconvexLogisticRegression(*_labelled(), batch_size=4, strength=0.1)


def flat_quadratic() -> NoisyQuadratic:
    """Convex with a flat direction."""
    return NoisyQuadratic(dimension=10, L=1.0, mu=0.0, sigma=1.0, distance=3.0)


def quadratic() -> NoisyQuadratic:
    """Strongly convex."""
    return NoisyQuadratic(dimension=10, L=1.0, mu=0.1, sigma=1.0, distance=3.0)


PROBLEMS: dict[str, list[Callable[[], Any]]] = {
    "convex-lipschitz": [absolute_loss, hinge],
    "nonconvex-lipschitz": [nonconvex_logistic],
    "convex": [flat_quadratic, logistic],
    "strongly-convex": [quadratic, regularised_logistic],
    "nonconvex": [nonconvex_logistic, quadratic],
    "heterogeneous": [quadratic, nonconvex_logistic],
}
"""By the settings of ``nw.theory.prescribe``. Those of "heterogeneous" are split by label."""


def _labelled() -> tuple[Floats, Floats]:
    """200 rows of 5 numbers, and labels that no hyperplane separates."""
    rng = np.random.default_rng(0)
    features = np.round(rng.standard_normal((200, 5)), 6)  # the last digits depend on the processor
    scores = features @ np.linspace(-1, 1, 5) + rng.standard_normal(200)
    return features, np.where(scores > 0, 1.0, -1.0)


def _noise(size: int) -> Floats:
    return 0.5 * np.random.default_rng(1).standard_normal(size)
