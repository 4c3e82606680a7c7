"""A small character-level transformer on a text file: python examples/torch_text.py [FILE] [STEPS].

By default it reads the documentation of this repository. The curve is written to torch_text.png.
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

import nowait as nw
from nowait.pytorch import TorchOptimizer, TorchProblem

LENGTH, WIDTH = 32, 48


class Characters(Dataset):
    """Pieces of text: the input, and the target shifted by one character."""

    def __init__(self, codes):
        self.codes = codes

    def __len__(self):
        return len(self.codes) - LENGTH - 1

    def __getitem__(self, start):
        return self.codes[start : start + LENGTH], self.codes[start + 1 : start + LENGTH + 1]


class Transformer(nn.Module):
    def __init__(self, letters):
        super().__init__()
        self.letters, self.positions = nn.Embedding(letters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, nhead=4, dim_feedforward=96, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, letters)

    def forward(self, codes):
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        return self.head(self.layers(self.letters(codes) + self.positions.weight, mask=mask, is_causal=True))


def loss(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


paths = [Path(sys.argv[1])] if len(sys.argv) > 1 else sorted((Path(__file__).parent.parent / "docs").glob("*.md"))
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 120
text = "".join(path.read_text(encoding="utf-8") for path in paths)[:200_000]
alphabet = sorted(set(text))
codes = torch.tensor([alphabet.index(letter) for letter in text])
cut = int(0.95 * len(codes))
validation = Characters(codes[cut : cut + 2_000])

problem = TorchProblem(
    lambda: Transformer(len(alphabet)), loss, Characters(codes[:cut]), batch_size=16, validation=validation
)
run = nw.train(
    problem,
    nw.AsynchronousSGD(nw.DelayAdaptive(0.003)),
    workers=2,
    steps=steps,
    evaluate_every=max(1, steps // 2),
    update=TorchOptimizer(torch.optim.AdamW, betas=(0.5, 0.99)),
)
nw.plots.errors({"AdamW, delay-adaptive": run}, axis="step").savefig("torch_text.png")
print("steps:", run.stats.steps)
print("the loss fell by more than a nat:", bool(run.history.loss[-1] < run.history.loss[0] - 1))
