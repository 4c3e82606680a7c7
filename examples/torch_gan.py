"""A generative adversarial network: two models with a loss each, trained by workers that do not wait for each other.

The data are points on a circle. The generator learns to draw points there.
"""

import torch
from torch import nn
from torch.nn.functional import softplus
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.pytorch import TorchOptimizer, TorchProblem

angles = 6.2832 * torch.rand(2_000, generator=torch.Generator().manual_seed(0))
circle = TensorDataset(torch.stack([angles.cos(), angles.sin()], 1))


def layers(inputs, outputs):
    relu = nn.LeakyReLU(0.2)
    return nn.Sequential(nn.Linear(inputs, 64), relu, nn.Linear(64, 64), relu, nn.Linear(64, outputs))


def step(model, batch, _sample):
    real, generator, critic = batch[0], model["generator"], model["critic"]
    fake = generator(torch.randn(len(real), 2, device=real.device))
    generator_loss = softplus(-critic(fake)).mean()
    generator_loss.backward(inputs=list(generator.parameters()))
    critic_loss = softplus(critic(fake.detach())).mean() + softplus(-critic(real)).mean()
    critic_loss.backward(inputs=list(critic.parameters()))
    distance = (fake.norm(dim=1) - 1).abs().mean()
    return {"loss": distance, "generator_loss": generator_loss, "critic_loss": critic_loss}


def groups(name, _parameter):
    return {"stepsize_factor": 0.5} if name.startswith("generator") else {}


problem = TorchProblem(
    lambda: nn.ModuleDict({"generator": layers(2, 2), "critic": layers(2, 1)}),
    None,
    circle,
    batch_size=128,
    manual=step,
)
run = nw.train(
    problem,
    nw.AsynchronousSGD(nw.DelayAdaptive(0.002)),
    workers=2,
    steps=400,
    evaluate_every=100,
    update=TorchOptimizer(torch.optim.Adam, groups=groups, betas=(0.0, 0.99)),
)
print("steps:", run.stats.steps)
print("numbers:", ", ".join(run.history.metrics))
print("the points are nearer to the circle:", bool(run.history.loss[-1] < 0.5 * run.history.loss[0]))
