"""Cases in which parts of a PyTorch problem meet: statistics, checkpoints of others, streams, optimisers."""

import copy
import os
import signal

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from torch.utils.data import IterableDataset, TensorDataset

import nowait as nw
from nowait.core import sampler
from nowait.pytorch import TorchOptimizer, TorchProblem
from nowait.pytorch.loaders import Loaders
from nowait.pytorch.prefetch import Prefetch

INPUTS = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
TARGETS = torch.arange(200) % 3
DATA = TensorDataset(INPUTS, TARGETS)
METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(0.02))


class Twice(nn.Module):
    """Runs its normalisation layer twice for each batch."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.out = nn.Linear(8, 3)

    def forward(self, inputs):
        return self.out(self.net(inputs) + self.net(inputs + 1))


class Checkpointed(Twice):
    """Runs it again in the backward pass."""

    def forward(self, inputs):
        return self.out(checkpoint(self.net, inputs, use_reentrant=False))


@pytest.mark.parametrize("model", [Twice, Checkpointed])
@pytest.mark.parametrize(("accumulate", "passes"), [(1, 2), ({"default": 1, 0: 3}, 6)])
def test_statistics_of_layers_that_run_several_times_do_not_overshoot(model, accumulate, passes):
    problem = TorchProblem(model, cross_entropy, DATA, batch_size=16, accumulate=accumulate)
    assert problem.statistics_momentum == pytest.approx(1 - 0.9**passes)
    run = nw.simulate(problem, METHOD, nw.speeds.Fixed([1.0] * 12), steps=30)
    assert not run.stats.diverged
    assert (problem.model(run.params).net[1].running_var > 0).all()


def test_frozen_statistics_and_numbers_of_batches_that_are_not_known():
    def build():
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=0.0), nn.Linear(8, 3))

    assert TorchProblem(build, cross_entropy, DATA, batch_size=16).statistics_momentum == 1.0
    problem = TorchProblem(Twice, cross_entropy, DATA, batch_size=16, accumulate=lambda worker: 1 + worker)
    assert problem.statistics_momentum == 1.0


def test_the_state_dict_of_a_model_that_was_trained_elsewhere_is_taken():
    model = Twice()
    model(INPUTS)
    problem = TorchProblem(Twice, cross_entropy, DATA, batch_size=16)
    found = problem.model(problem.params_of(model.state_dict()))
    assert torch.equal(found.net[1].running_mean, model.net[1].running_mean)


def test_initial_params_that_are_built_again_must_be_the_same():
    model = nn.Linear(6, 3)
    problem = TorchProblem(lambda: copy.deepcopy(model), cross_entropy, DATA, batch_size=16)
    before = problem.initial()
    assert np.array_equal(problem.initial(), before)
    with torch.no_grad():
        model.bias += 1
    with pytest.raises(ValueError, match="build_model returns other params than when the problem was made"):
        problem.initial()


def test_options_for_gpus_are_left_out_on_the_processor():
    update = TorchOptimizer(torch.optim.AdamW, capturable=True)
    problem = TorchProblem(lambda: nn.Linear(6, 3), cross_entropy, DATA, batch_size=16)
    run = nw.simulate(problem, METHOD, nw.speeds.Fixed([1.0]), steps=3, update=update)
    assert run.stats.steps == 3


def test_tensors_that_require_gradients_are_data_too():
    data = TensorDataset(INPUTS.clone().requires_grad_(), TARGETS)
    problem = TorchProblem(lambda: nn.Linear(6, 3), cross_entropy, data, batch_size=16)
    assert np.isfinite(problem.gradient(problem.initial(), sampler(0).sample(0, 0))).all()


class Broken(IterableDataset):
    """A stream with an item that cannot be read."""

    def __iter__(self):
        for place in range(100):
            if place == 20:
                raise OSError("this item cannot be read")
            yield INPUTS[place], TARGETS[place]


def test_errors_of_a_stream_come_from_the_process_that_reads_it():
    problem = TorchProblem(lambda: nn.Linear(6, 3), cross_entropy, Broken(), batch_size=8)
    loaders = Loaders(problem._gradients.draw_ahead, 1, 1, in_order=True)
    samples = sampler(0)
    try:
        assert [len(loaders.take(samples.sample(0, job), 0).batch[1]) for job in range(2)] == [8, 8]
        with pytest.raises(RuntimeError, match="this item cannot be read"):
            loaders.take(samples.sample(0, 2), 0)
    finally:
        for process in loaders.processes:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def test_a_batch_that_was_prepared_is_kept_while_others_are_drawn():
    drawn = []

    def draw(sample):
        drawn.append(sample.job)
        return [torch.zeros(1)]

    samples, prefetch = sampler(0), Prefetch(torch.device("cpu"))
    for job in range(3):
        prefetch.take(samples.sample(0, job), draw)
        prefetch.prepare_after(samples.sample(0, job), draw, lambda _: True)
    prefetch.take(samples.sample(7, 50), draw)
    prefetch.take(samples.sample(0, 3), draw)
    assert drawn == [0, 1, 2, 3, 50]
