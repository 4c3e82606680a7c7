"""A CNN trained to an accuracy: metrics, a target, early stopping, and the best params in a file."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.pytorch import TorchOptimizer, TorchProblem


def build_model():
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean()


images, digits = load_digits(return_X_y=True)
inputs, targets = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(digits)
train_set, validation = TensorDataset(inputs[:1400], targets[:1400]), TensorDataset(inputs[1400:], targets[1400:])
data = {"batch_size": 32, "validation": validation, "metrics": {"accuracy": accuracy}}
problem = TorchProblem(build_model, nn.functional.cross_entropy, train_set, **data)
run = nw.train(
    problem,
    nw.AsynchronousSGD(nw.DelayAdaptive(0.05)),
    workers=2,
    steps=10_000,
    evaluate_every=20,
    target={"accuracy": 0.9},
    callbacks=[nw.EarlyStopping("accuracy", patience=20)],
    update=TorchOptimizer(torch.optim.SGD, momentum=0.8),
    folder="runs/cnn",
    keep_best="accuracy",
)
best = problem.model(problem.params_of("runs/cnn/best.safetensors"))
with torch.no_grad():
    score = accuracy(best(validation.tensors[0]), validation.tensors[1])
print("ended early, at the target:", run.stats.steps < 10_000)
print("accuracy of the best params at least 0.9:", bool(score >= 0.9))
