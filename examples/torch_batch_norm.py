"""A small CNN with batch normalisation: workers send running statistics with gradients, and the server merges them.

The curve is written to torch_batch_norm.png.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.pytorch import TorchProblem


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean()


images, digits = load_digits(return_X_y=True)
inputs = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
targets = torch.tensor(digits)
train_set, validation = TensorDataset(inputs[:1400], targets[:1400]), TensorDataset(inputs[1400:], targets[1400:])

problem = TorchProblem(
    build_model,
    nn.functional.cross_entropy,
    train_set,
    batch_size=32,
    validation=validation,
    metrics={"accuracy": accuracy},
    sampling="epochs",
)
run = nw.train(
    problem,
    nw.AsynchronousSGD(nw.DelayAdaptive(0.1)),
    workers=2,
    steps=200,
    evaluate_every=100,
    folder="runs/torch-cnn",
)
nw.plots.errors({"delay-adaptive": run}, axis="step").savefig("torch_batch_norm.png")

merged = problem.model(run.params)[1].running_mean
print(problem)
print("accuracy above 0.8:", problem.evaluate(run.params)["accuracy"] > 0.8)
print("running means moved away from zero:", bool(merged.abs().mean() > 0.01))
print("written: runs/torch-cnn/model.safetensors")
