"""DiLoCo, synchronous and asynchronous, with one slow worker: python examples/torch_diloco.py [SECONDS or full].

A small GPT learns the characters of this repository's documentation. Workers make local steps of AdamW; the server
uses Nesterov's momentum. A fast job takes one second of simulated time. With "full" there are worker processes, and
all takes about two and a half minutes on two cores. The curves are written to torch_diloco.png.
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.pytorch import TorchOptimizer, TorchProblem

FULL = sys.argv[1:] == ["full"]
SECONDS = 40 if FULL else float(sys.argv[1]) if len(sys.argv) > 1 else 10
LENGTH, WIDTH = 32, 64 if FULL else 32
SLOW = 5.0  # how many times as long the last worker takes


class GPT(nn.Module):
    def __init__(self, letters):
        super().__init__()
        self.letters, self.positions = nn.Embedding(letters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters)

    def forward(self, codes):
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        hidden = self.layers(self.letters(codes) + self.positions.weight, mask=mask, is_causal=True)
        return self.head(self.norm(hidden))


def loss(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def pieces(codes, stride):
    """Inputs, and targets shifted by one character."""
    rows = codes.unfold(0, LENGTH + 1, stride)
    return TensorDataset(rows[:, :-1], rows[:, 1:])


text = "".join(path.read_text("utf-8") for path in sorted((Path(__file__).parent.parent / "docs").glob("*.md")))
alphabet = sorted(set(text[:200_000]))
codes = torch.tensor([alphabet.index(letter) for letter in text[:200_000]])
train_set, validation = pieces(codes[:190_000], stride=8), pieces(codes[190_000:], stride=2 * LENGTH)

gpt = TorchProblem(lambda: GPT(len(alphabet)), loss, train_set, batch_size=16, validation=validation)
adamw = TorchOptimizer(torch.optim.AdamW, betas=(0.9, 0.99), weight_decay=0.1)
problem = nw.problems.LocalSteps(gpt, steps=10 if FULL else 5, stepsize=0.003, update=adamw)

waiting = nw.MinibatchSGD(nw.Constant(0.7)), nw.Nesterov(0.9)
variants = {
    "asynchronous": (3, nw.DelayedNesterov(nw.Constant(0.7), every=3, beta=0.9), None),
    "synchronous": (3, *waiting),
    "synchronous, without the slow worker": (2, *waiting),
}
runs = {}
for name, (workers, method, update) in variants.items():
    if FULL:
        slowdown = {2: SLOW} if workers == 3 else None
        options = {"workers": workers, "seconds": SECONDS, "slowdown": slowdown, "evaluate_every": workers}
        run = nw.train(problem, method, update=update, **options)
    else:
        speeds = nw.speeds.Fixed([1.0, 1.0, SLOW][:workers])
        run = nw.simulate(problem, method, speeds, seconds=SECONDS, update=update, evaluate_every=10)
    runs[name] = run
    after = f", validation loss {run.history.loss[-1]:.2f}" if len(sys.argv) > 1 else ""
    print(f"{name}: {run.stats.steps} steps, {run.stats.gradients} jobs{after}", flush=True)
nw.plots.errors(runs).savefig("torch_diloco.png")
last = {name: run.history.loss[-1] for name, run in runs.items()}
print("not waiting for the slow worker is better:", bool(last["asynchronous"] < last["synchronous"]))
