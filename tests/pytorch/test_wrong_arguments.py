"""Mistakes in the arguments of problems, optimisers and schedules: the error says what is wrong and what to do."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import nowait as nw
from nowait.pytorch import TorchOptimizer, TorchProblem, lr_schedule

INPUTS = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] > 0).long()
DATA = TensorDataset(INPUTS, TARGETS)


def build():
    return nn.Linear(5, 2)


def a_problem(build=build, loss=cross_entropy, data=DATA, **options):
    return TorchProblem(build, loss, data, batch_size=8, **options)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"loss": nn.CrossEntropyLoss}, TypeError, r"loss is the class CrossEntropyLoss: .* CrossEntropyLoss\(\)"),
        ({"loss": None}, TypeError, r"loss must be a function of \(output, target\), got None"),
        ({"forward": 7}, TypeError, r"forward must be a function of \(model, batch\), got 7"),
        ({"collate_fn": 7}, TypeError, "collate_fn must be a function of a list of items, got 7"),
        ({"forward": lambda model, batch: model(batch[0])}, TypeError, "forward must return a pair .* got a Tensor"),
        ({"data": (INPUTS, TARGETS)}, TypeError, r"a tuple of arrays, not of items: pass .*TensorDataset\(\*tensors\)"),
        (
            {"data": TensorDataset(INPUTS, INPUTS, TARGETS)},
            TypeError,
            "items must be pairs .* a list of 3: pass forward=",
        ),
        ({"data": [{"x": x, "y": 0} for x in INPUTS]}, TypeError, "items must be pairs .* a dict of 2: pass forward="),
        ({"data": INPUTS}, TypeError, "items must be pairs .* a Tensor of 8: pass forward="),
        ({"validation": DataLoader(DATA)}, TypeError, "validation must be a data set, got a DataLoader"),
        ({"metrics": [len]}, ValueError, "metrics must map names to functions"),
        ({"metrics": {"top": lambda output, _: output}, "validation": DATA}, TypeError, r"top of a batch .* \(32, 2\)"),
        ({"seed": 2**64}, ValueError, r"seed must be below 2\*\*63"),
        ({"build": lambda: nn.Linear(5, 2, device="meta")}, ValueError, "weight of the model is on the device 'meta'"),
    ],
)
def test_mistakes_in_the_arguments_of_a_problem(arguments, error, message):
    with pytest.raises(error, match=message):
        a_problem(**arguments)


class AddsLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 2)

    def forward(self, inputs):
        if not hasattr(self, "head"):
            self.head = nn.Linear(2, 2)
        return self.head(self.body(inputs))


class AddsBuffer(AddsLayer):
    def forward(self, inputs):
        self.register_buffer("seen", inputs.mean(0))
        return self.body(inputs)


class GrowingBuffer(AddsLayer):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, inputs):
        if self.training:
            self.seen = torch.cat([self.seen, torch.zeros(1)])
        return self.body(inputs)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (AddsLayer, "the model adds head.weight when it is called, so it would not be trained: add it in __init__"),
        (AddsBuffer, "the model adds seen when it is called"),
        (GrowingBuffer, "the buffer seen changes its shape in training"),
    ],
)
def test_models_that_change_what_they_consist_of(build, message):
    with pytest.raises(ValueError, match=message):
        a_problem(build)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_problem_that_is_made_where_gradients_are_switched_off(context):
    with context(), pytest.raises(ValueError, match="gradients are switched off here"):
        a_problem()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: TorchOptimizer(object.__new__(torch.optim.SGD)), TypeError, "got an object of .*SGD"),
        (lambda: lr_schedule(3), TypeError, r"as in lr_schedule\(lambda optimizer: .*, got 3"),
        (lambda: nw.Scheduled(0.1, lambda step: "x")(1, 1, 5), ValueError, "factor of at least 0, got 'x' for step 5"),
    ],
)
def test_mistakes_in_optimisers_and_schedules(make, error, message):
    with pytest.raises(error, match=message):
        make()


def simulated(update):
    method, speeds = nw.AsynchronousSGD(nw.Constant(0.1)), nw.speeds.Fixed([1.0, 2.0])
    return nw.simulate(a_problem(), method, speeds, steps=4, update=update)


def test_an_optimiser_of_pytorch_is_no_update():
    with pytest.raises(TypeError, match=r"such as .* nowait.pytorch.TorchOptimizer\(torch.optim.AdamW\)"):
        simulated(torch.optim.AdamW)


def test_groups_that_look_at_values():
    update = TorchOptimizer(torch.optim.AdamW, groups=lambda name, parameter: {"weight_decay": float(parameter.sum())})
    with pytest.raises(ValueError, match="parameter has a shape, but no values"):
        simulated(update)


class Replacing(torch.optim.Optimizer):
    """SGD that puts a new tensor into ``parameter.data``."""

    def __init__(self, parameters, lr=0.1):
        super().__init__(parameters, {"lr": lr})

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data = parameter.data - group["lr"] * parameter.grad


def test_an_optimiser_may_replace_the_tensors_of_parameters():
    params, out = np.arange(3, dtype=np.float32), np.empty(3, np.float32)
    update = TorchOptimizer(Replacing)
    update.start(params)
    update.apply(params, np.ones(3, np.float32), 0.5, out)
    assert out.tolist() == [-0.5, 0.5, 1.5]
