"""How long gradients wait for their data, by a clock that only the data set moves."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.core import sampler
from nowait.core.capabilities import Capabilities
from nowait.pytorch import TorchProblem, gradients
from nowait.testing import train_scripted

INPUTS = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] > 0).long()
SECONDS_PER_ITEM = 0.25


class SlowData(TensorDataset):
    now = 0.0

    def __getitem__(self, place):
        SlowData.now += SECONDS_PER_ITEM
        return super().__getitem__(place)


@pytest.fixture
def make_problem(monkeypatch):
    monkeypatch.setattr(gradients.time, "perf_counter", lambda: SlowData.now)

    def make(**options):
        return TorchProblem(lambda: nn.Linear(6, 2), cross_entropy, SlowData(INPUTS, TARGETS), batch_size=4, **options)

    return make


def loading(problem, jobs, between=lambda: None):
    point, found = problem.initial(), []
    for job in range(jobs):
        problem.gradient(point, sampler(0).sample(0, job))
        found.append(problem.loading_seconds())
        between()
    return found


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_gradient_waits_for_the_items_of_its_batches(make_problem, accumulate):
    problem = make_problem(accumulate=accumulate)
    assert problem.loading_seconds() == (0.0, 0.0)
    assert loading(problem, 2) == [(4 * SECONDS_PER_ITEM * accumulate, 0.0)] * 2


def test_a_device_that_has_nothing_to_do_waits_for_the_next_batch(make_problem):
    """From the third ticket on, the next batch is drawn at the end of each gradient."""
    problem = make_problem()
    problem._gradients.prefetches_on = lambda device: True
    batch = 4 * SECONDS_PER_ITEM
    assert loading(problem, 4) == [(batch, 0.0), (2 * batch, 0.0), (batch, 0.0), (batch, 0.0)]


def test_a_batch_that_is_drawn_between_gradients_counts_before_the_next_one(make_problem, monkeypatch):
    problem = make_problem()
    problem._gradients.prefetches_on = lambda device: True
    monkeypatch.setattr(problem._gradients, "_is_first_batch_ready", lambda sample: False)
    batch = 4 * SECONDS_PER_ITEM
    found = loading(problem, 4, Capabilities.of(problem).between_gradients)
    assert found == [(batch, 0.0), (batch, 0.0), (0.0, batch), (0.0, batch)]


def test_workers_report_it(make_problem):
    run = train_scripted(make_problem(), nw.AsynchronousSGD(nw.Constant(0.1)), workers=2, gradients=6)
    assert sum(inside for inside, _ in run.trace.loading.values()) == 6 * 4 * SECONDS_PER_ITEM


def test_devices_have_names():
    problem = TorchProblem(lambda: nn.Linear(6, 2), cross_entropy, TensorDataset(INPUTS, TARGETS), device="cpu")
    assert Capabilities.of(problem).device_of(1) == "cpu"
