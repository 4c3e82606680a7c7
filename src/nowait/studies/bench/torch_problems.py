"""The PyTorch problems of the benchmark. None needs a download."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from nowait.core import Problem
from nowait.pytorch import TorchProblem
from nowait.studies.bench.problems import SIZES, artificial_text, digit_arrays


@cache
def convolutional() -> Problem:
    """Return a small convolutional network on images of 8 x 8 pixels."""
    images, labels = digit_arrays()
    inputs, targets = torch.tensor(images, dtype=torch.float32), torch.tensor(labels)
    return _problem(_convolutions, nn.functional.cross_entropy, inputs, targets)


@cache
def language() -> Problem:
    """Return a small language model: a causal transformer that predicts the next letter from up to 16."""
    pieces = torch.tensor(artificial_text()).unfold(0, SIZES.length + 1, 1)
    return _problem(Transformer, _cross_entropy, pieces[:, :-1], pieces[:, 1:])


class Transformer(nn.Module):
    """Embeddings, one layer of causal attention, and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        letters, length, width = SIZES.letters, SIZES.length, SIZES.width
        self.letters, self.positions = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.layer = nn.TransformerEncoderLayer(
            width, nhead=SIZES.heads, dim_feedforward=SIZES.hidden, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(width, letters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next letter at every position."""
        hidden = self.letters(codes) + self.positions.weight
        scores: torch.Tensor = self.head(self.layer(hidden, src_mask=self.mask, is_causal=True))
        return scores


def _convolutions() -> nn.Module:
    first, second = SIZES.channels
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, first, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(4 * second, 10)),
    )


def _cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def _problem(
    build_model: Callable[[], nn.Module], loss: Callable[[Any, Any], torch.Tensor], inputs: Any, targets: Any
) -> Problem:
    every = len(inputs) // SIZES.evaluated
    return TorchProblem(
        build_model,
        loss,
        TensorDataset(inputs, targets),
        batch_size=SIZES.batch,
        validation=TensorDataset(inputs[::every], targets[::every]),
    )
