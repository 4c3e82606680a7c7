"""A PyTorch MLP on scikit-learn's digits, trained by worker processes that do not wait for each other.

One of the three workers is slowed down tenfold. The curve is written to torch_digits.png.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.pytorch import TorchOptimizer, TorchProblem


def build_model():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean()


images, digits = load_digits(return_X_y=True)
inputs, targets = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits)
train_set, validation = TensorDataset(inputs[:1400], targets[:1400]), TensorDataset(inputs[1400:], targets[1400:])

problem = TorchProblem(
    build_model,
    nn.functional.cross_entropy,
    train_set,
    batch_size=64,
    validation=validation,
    metrics={"accuracy": accuracy},
)
run = nw.train(
    problem,
    nw.AsynchronousSGD(nw.DelayAdaptive(0.004)),
    workers=3,
    steps=400,
    evaluate_every=100,
    slowdown={2: 10.0},
    update=TorchOptimizer(torch.optim.AdamW, betas=(0.5, 0.99), weight_decay=0.01),
)
nw.plots.errors({"AdamW, delay-adaptive": run}, axis="step").savefig("torch_digits.png")
model = problem.model(run.params)  # an nn.Module

print(problem)
print("steps:", run.stats.steps)
print("accuracy above 0.8:", problem.evaluate(run.params)["accuracy"] > 0.8)

again = nw.replay(
    run.trace,
    problem,
    nw.AsynchronousSGD(nw.DelayAdaptive(0.004)),
    update=TorchOptimizer(torch.optim.AdamW, betas=(0.5, 0.99), weight_decay=0.01),
)
print("the replay, with dropout, is bit-identical:", bool((again.params == run.params).all()))
