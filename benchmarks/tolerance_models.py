"""The three small models of docs/tolerance.md, for the command ``nowait tolerance``. None needs a download.

Two train on the digits of scikit-learn, one on the characters of this repository's docs. The loss is that of training
items, because the study is about optimisation: nowait tolerance benchmarks/tolerance_models.py:mlp --update sgd,adamw
"""

from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from nowait.pytorch import TorchProblem

LENGTH, WIDTH = 16, 32
CHARACTERS = 100_000


def mlp() -> TorchProblem:
    """64-64-64-10 units with ReLU, on 8x8 images of digits."""
    return _on_digits(
        lambda: nn.Sequential(*(nn.Linear(64, 64), nn.ReLU()), *(nn.Linear(64, 64), nn.ReLU()), nn.Linear(64, 10))
    )


def cnn() -> TorchProblem:
    """Two convolutions with pooling, and a linear layer, on the same images."""
    return _on_digits(
        lambda: nn.Sequential(
            *(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64, 10)),
        )
    )


def transformer() -> TorchProblem:
    """A causal transformer with one layer of width 32, which predicts the next character from up to 16."""
    paths = sorted((Path(__file__).parent.parent / "docs").glob("*.md"))
    text = "".join(path.read_text(encoding="utf-8") for path in paths if path.name != "tolerance.md")[:CHARACTERS]
    places = {letter: place for place, letter in enumerate(sorted(set(text)))}
    pieces = torch.tensor([places[letter] for letter in text]).unfold(0, LENGTH + 1, 1)
    evaluated = pieces[:: len(pieces) // 500]
    return TorchProblem(
        lambda: Transformer(len(places)),
        _cross_entropy,
        TensorDataset(pieces[:, :-1], pieces[:, 1:]),
        batch_size=16,
        validation=TensorDataset(evaluated[:, :-1], evaluated[:, 1:]),
    )


class Transformer(nn.Module):
    """Embeddings, causal attention, and a linear head."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letters, self.positions = nn.Embedding(letters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layer = nn.TransformerEncoderLayer(
            WIDTH, nhead=2, dim_feedforward=64, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(WIDTH, letters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next character at every position."""
        return self.head(self.layer(self.letters(codes) + self.positions.weight, src_mask=self.mask, is_causal=True))


def _on_digits(build_model: Callable[[], nn.Module]) -> TorchProblem:
    images, digits = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits))
    return TorchProblem(build_model, nn.functional.cross_entropy, data, batch_size=32)


def _cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())
