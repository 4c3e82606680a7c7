"""A small ResNet with augmentation, no weight decay of biases and norms, warm-up and a cosine schedule."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import nowait as nw
from nowait.pytorch import TorchOptimizer, TorchProblem

STEPS = 100


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])

    def forward(self, x):
        inside = self.norms[0](self.first(x)).relu()
        return (x + self.norms[1](self.second(inside))).relu()


class Shifted(Dataset):
    """Pictures moved by up to one pixel. Random numbers are seeded by the ticket, so a replay has the same pictures."""

    def __len__(self):
        return 1_400

    def __getitem__(self, place):
        up, left = torch.randint(-1, 2, (2,)).tolist()
        return inputs[place].roll((up, left), dims=(1, 2)), targets[place]


def build_model():
    head = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), Block(16), Block(16), *head)


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean()


def groups(_name, parameter):
    return {"weight_decay": 0.0} if parameter.ndim < 2 else {}


images, digits = load_digits(return_X_y=True)
inputs, targets = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(digits)
validation = TensorDataset(inputs[1400:], targets[1400:])
data = {"batch_size": 32, "validation": validation, "metrics": {"accuracy": accuracy}}
problem = TorchProblem(build_model, nn.functional.cross_entropy, Shifted(), **data)
schedule = nw.schedules.warmup(10) * nw.schedules.cosine(STEPS, final=0.05)
method = nw.AsynchronousSGD(nw.Scheduled(nw.DelayAdaptive(0.01), schedule))
update = TorchOptimizer(torch.optim.AdamW, groups=groups, betas=(0.8, 0.99), weight_decay=0.05)
run = nw.train(problem, method, workers=2, steps=STEPS, evaluate_every=STEPS, update=update)
print("accuracy above 0.8:", bool(run.history.metrics["accuracy"][-1] > 0.8))
again = nw.replay(run.trace, problem, method, update=update)
print("the replay, with augmentation, is bit-identical:", bool((again.params == run.params).all()))
