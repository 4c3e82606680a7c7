"""The losses of many points over all rows, computed with PyTorch in float64."""

from __future__ import annotations

from typing import Any

from nowait.engines.results import HOPELESS
from nowait.problems.kernels import ABSOLUTE, HINGE, LEAST_SQUARES

MOST_NUMBERS = 1 << 25
"""The most entries of a matrix of margins, or of rows in float64: 256 MiB."""


def losses_of(model: int, features: Any, targets: Any, weights: Any, points: Any) -> Any:
    """Return Σ weights·φ(features·point, targets) of every point, as a float64 tensor."""
    import torch

    points = points.to(torch.float64)
    total = torch.zeros(len(points), dtype=torch.float64, device=points.device)
    rows = max(1, MOST_NUMBERS // max(points.shape))
    for start in range(0, len(features), rows):
        part = slice(start, start + rows)
        margins = points @ features[part].to(torch.float64).T
        total += _row_losses(model, margins, targets[part].to(torch.float64)) @ weights[part]
    return total


def _row_losses(model: int, margins: Any, targets: Any) -> Any:
    """Return φ, elementwise. The margins are overwritten: each pass over them takes as long as many rows of them."""
    from torch.nn.functional import softplus

    if model == LEAST_SQUARES:
        return margins.sub_(targets).square_().mul_(0.5)
    if model == ABSOLUTE:
        return margins.sub_(targets).abs_()
    if model == HINGE:
        return margins.mul_(-targets).add_(1.0).clamp_(min=0.0)
    return softplus(margins.mul_(-targets), threshold=40.0)


def mark_diverged(losses: Any, points: Any, first_loss: float, alive: Any) -> None:
    """Set the losses of runs that have diverged to infinity, and ``alive`` to False, by the rules of the host."""
    losses_are_reasonable = losses.isfinite() & (losses <= HOPELESS * max(1.0, abs(first_loss)))
    alive &= losses_are_reasonable & points.isfinite().all(dim=1)
    losses.masked_fill_(~alive, float("inf"))
