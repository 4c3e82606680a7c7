"""A delay rule that acts on the gradient, before the moments of an optimiser."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.core import GradientArrived, Server
from nowait.pytorch import TorchMemory, TorchOptimizer, TorchProblem

GRADIENTS = np.random.default_rng(0).standard_normal((6, 5))
WORKERS = [0, 0, 1, 0, 0, 1]
"""Worker 1 is late, so its gradients have the delays 3 and 3."""


def arrivals(update, method, memory=None):
    """Return the params after gradients of two workers, and the delays and squared norms in the log."""
    server = Server(method, np.ones(5), 2, update=update, **({} if memory is None else {"memory": memory}))
    delays = []
    server.start()
    for time, (worker, gradient) in enumerate(zip(WORKERS, GRADIENTS, strict=True)):
        ticket = server.in_flight.first_of(worker)
        delays.append(server.steps + 1 - ticket.version)
        server.handle(GradientArrived(ticket, gradient if memory is None else memory.from_host(gradient), float(time)))
    return server, delays


@pytest.mark.parametrize("on", ["arrays", "tensors"])
def test_late_gradients_enter_the_moments_scaled_and_the_learning_rate_stays(on):
    memory = None if on == "arrays" else TorchMemory("cpu")
    update = TorchOptimizer(torch.optim.Adam, scale="gradient", fused=False)
    rule = nw.Scheduled(nw.DelayAdaptive(0.1, cut=1), nw.schedules.linear(12))
    server, delays = arrivals(update, nw.AsynchronousSGD(rule), memory)
    assert delays == [1, 1, 3, 2, 1, 3]
    parameter = nn.Parameter(torch.ones(5, dtype=torch.float64))
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    for step, (gradient, delay) in enumerate(zip(GRADIENTS, delays, strict=True)):
        optimizer.param_groups[0]["lr"] = rule(1, 2, step + 1)
        parameter.grad = torch.from_numpy(gradient) / delay
        optimizer.step()
    np.testing.assert_allclose(np.asarray(server.params), parameter.detach().numpy(), rtol=1e-12)


def test_without_a_delay_rule_nothing_changes():
    servers = [
        arrivals(TorchOptimizer(torch.optim.Adam, scale=scale), nw.AsynchronousSGD(0.1))[0]
        for scale in ("step", "gradient")
    ]
    assert np.array_equal(servers[0].params, servers[1].params)


def test_a_gradient_of_weight_zero_makes_a_step_of_the_optimiser_without_it():
    rule = nw.Threshold(0.1, concurrency=1.0)
    server, delays = arrivals(TorchOptimizer(torch.optim.SGD, scale="gradient"), nw.AsynchronousSGD(rule))
    used = [gradient for gradient, delay in zip(GRADIENTS, delays, strict=True) if delay <= 2]
    np.testing.assert_allclose(server.params, 1 - 0.1 * np.sum(used, axis=0), rtol=1e-12)


def test_the_trace_has_the_norms_of_gradients_as_they_came_and_replays(tmp_path):
    def build():
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))

    inputs = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
    problem = TorchProblem(build, cross_entropy, TensorDataset(inputs, (inputs[:, 0] > 0).long()), batch_size=16)
    method, speeds = nw.AsynchronousSGD(nw.DelayAdaptive(0.02)), nw.speeds.Fixed([1.0, 1.1, 7.0])
    options = {"update": TorchOptimizer(torch.optim.AdamW, scale="gradient")}
    run = nw.simulate(problem, method, speeds, steps=30, **options)
    plain = nw.simulate(problem, method, speeds, steps=30, update=TorchOptimizer(torch.optim.AdamW))
    late = run.trace.delay > 3
    assert late.any()
    first = np.flatnonzero(late)[0]
    np.testing.assert_allclose(run.trace.gradient_norm[: first + 1], plain.trace.gradient_norm[: first + 1], rtol=1e-5)
    assert not np.array_equal(run.last, plain.last)
    again = nw.replay(run.trace, problem, method, **options)
    assert np.array_equal(again.last, run.last)


def test_an_unknown_scale_is_refused():
    with pytest.raises(ValueError, match="scale must be one of 'step', 'gradient', got 'lr'"):
        TorchOptimizer(torch.optim.Adam, scale="lr")
