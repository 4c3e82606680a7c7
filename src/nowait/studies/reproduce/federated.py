"""Made-up data for clients with classes of their own: what stands in for image data sets, which are not downloaded."""

from __future__ import annotations

import numpy as np

from nowait.core.randomness import Stream, many_normals
from nowait.problems import SoftmaxRegression
from nowait.problems.shards import Shards

CLASSES, FEATURES = 10, 30


def federated_softmax(
    clients: int, rows: int, *, concentration: float, batch_size: int, l2: float = 1e-3
) -> SoftmaxRegression:
    """Return softmax regression with ten classes, whose shares differ by client: Dirichlet(``concentration``).

    A row is the mean of its class plus standard normal noise. F is the mean over the clients.
    """
    stream, rng = Stream(0, "federated"), np.random.default_rng(0)
    means = 0.6 * many_normals(stream.key(0, 0), CLASSES * FEATURES).reshape(CLASSES, FEATURES)
    shares = rng.dirichlet(np.full(CLASSES, concentration), size=clients)
    labels = np.concatenate([rng.choice(CLASSES, size=rows, p=share) for share in shares])
    noise = many_normals(stream.key(0, 1), len(labels) * FEATURES).reshape(len(labels), FEATURES)
    problem = SoftmaxRegression((means[labels] + noise) / np.sqrt(FEATURES), labels, batch_size=batch_size, l2=l2)
    problem.shards = Shards.split(np.arange(len(labels)), clients)
    return problem
