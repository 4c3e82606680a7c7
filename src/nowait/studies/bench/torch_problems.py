"""The PyTorch problems of the benchmark. None needs a download."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from nowait.core import Problem
from nowait.core.randomness import CounterRandom
from nowait.pytorch import TorchProblem
from nowait.studies.bench.problems import digit_arrays

LENGTH, WIDTH, LETTERS = 16, 32, 24
CHARACTERS, FOLLOWERS = 20_000, 4
EVALUATED = 256
"""The loss is that of this many training items, spread over all of them."""


@cache
def convolutional() -> Problem:
    """Return a small convolutional network on images of 8 x 8 pixels."""
    images, labels = digit_arrays()
    inputs, targets = torch.tensor(images, dtype=torch.float32), torch.tensor(labels)
    return _problem(_convolutions, nn.functional.cross_entropy, inputs, targets)


@cache
def language() -> Problem:
    """Return a small language model: a causal transformer that predicts the next letter from up to 16."""
    pieces = torch.tensor(artificial_text()).unfold(0, LENGTH + 1, 1)
    return _problem(Transformer, _cross_entropy, pieces[:, :-1], pieces[:, 1:])


def artificial_text(characters: int = CHARACTERS) -> list[int]:
    """Return letters of an artificial language: each letter has four possible successors.

    Their probabilities are 8/15, 4/15, 2/15 and 1/15: on new text no model has a loss below 1.137 nats per letter.
    """
    random = CounterRandom(0, "language")
    successors = [random.permutation(LETTERS)[:FOLLOWERS] for _ in range(LETTERS)]
    text = [0]
    while len(text) < characters:
        draw = random.integer(15)
        place = 0 if draw < 8 else 1 if draw < 12 else 2 if draw < 14 else 3
        text.append(successors[text[-1]][place])
    return text


class Transformer(nn.Module):
    """Embeddings, one layer of causal attention, and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.positions = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layer = nn.TransformerEncoderLayer(
            WIDTH, nhead=2, dim_feedforward=64, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(WIDTH, LETTERS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next letter at every position."""
        hidden = self.letters(codes) + self.positions.weight
        scores: torch.Tensor = self.head(self.layer(hidden, src_mask=self.mask, is_causal=True))
        return scores


def _convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64, 10)),
    )


def _cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def _problem(
    build_model: Callable[[], nn.Module], loss: Callable[[Any, Any], torch.Tensor], inputs: Any, targets: Any
) -> Problem:
    every = len(inputs) // EVALUATED
    return TorchProblem(
        build_model,
        loss,
        TensorDataset(inputs, targets),
        batch_size=16,
        validation=TensorDataset(inputs[::every], targets[::every]),
    )
