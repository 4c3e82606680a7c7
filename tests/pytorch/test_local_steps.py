"""Local steps of PyTorch models: optimisers inside, statistics, epochs, batches drawn ahead, params as tensors."""

import os
import signal

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import nowait as nw
from nowait.core import sampler
from nowait.core.capabilities import Capabilities
from nowait.problems import LocalSteps
from nowait.pytorch import TorchMemory, TorchOptimizer, TorchProblem

INPUTS = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] > 0).long() + (INPUTS[:, 1] > 0).long()
ONE, UNEVEN = nw.speeds.Fixed([1.0]), nw.speeds.Fixed([1.0, 1.3, 4.0])
FULL = nw.AsynchronousSGD(nw.Constant(1.0))
GPU_MARKS = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")]
DEVICES = ["cpu", pytest.param("cuda", marks=GPU_MARKS)]


def with_batch_norm():
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def without_buffers():
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 3))


def a_problem(build=with_batch_norm, kind=TorchProblem, **options):
    return kind(build, cross_entropy, TensorDataset(INPUTS, TARGETS), **({"batch_size": 8} | options))


def adamw(**options):
    return TorchOptimizer(torch.optim.AdamW, **options)


class OnTensors(TorchProblem):
    """A problem whose params are tensors even on the processor, as they are on a GPU."""

    def device_memory(self):
        return TorchMemory("cpu") if self._devices[0].type == "cpu" else super().device_memory()


# Optimisers


@pytest.mark.parametrize(
    "update",
    [adamw(weight_decay=0.1), adamw(groups={"0.weight": {"weight_decay": 0.0}}), TorchOptimizer(torch.optim.Muon)],
    ids=["AdamW", "groups", "Muon"],
)
def test_a_job_is_a_plain_loop_of_that_optimiser(update):
    build = without_buffers if update._kind.name != "Muon" else lambda: nn.Linear(6, 3, bias=False)
    problem = a_problem(build)
    run = nw.simulate(problem, nw.AsynchronousSGD(nw.Constant(0.01)), ONE, steps=6, update=update)
    way = LocalSteps(problem, 6, 0.01, update=update).gradient(problem.initial(), sampler(0).sample(0, 0))
    np.testing.assert_allclose(problem.initial() - way, run.params, rtol=1e-6, atol=1e-7)


def test_the_update_is_one_of_the_parts_that_are_sent():
    problem = LocalSteps(a_problem(), 2, 0.1, update=adamw(groups=lambda name, parameter: {}))
    assert list(Capabilities.of(problem).parts_to_send())[-1] == "update"
    assert "update" not in Capabilities.of(LocalSteps(a_problem(), 2, 0.1)).parts_to_send()


def test_the_server_uses_plain_sgd_whatever_the_problem_would_use():
    problem = LocalSteps(a_problem(), 2, 0.1, update=adamw())
    assert nw.simulate(problem, FULL, ONE, steps=1).config["update"] == {"type": "Sgd"}


def test_diloco_learns_with_a_slow_worker():
    problem = LocalSteps(a_problem(), 5, 0.01, update=adamw(weight_decay=0.1))
    run = nw.simulate(problem, nw.DelayedNesterov(nw.Constant(0.7), every=3, beta=0.5), UNEVEN, steps=40)
    assert run.history.loss[-1] < 0.6 < run.history.loss[0]
    again = nw.replay(run.trace, problem, nw.DelayedNesterov(nw.Constant(0.7), every=3, beta=0.5))
    assert np.array_equal(again.params, run.params)


# Statistics


def test_one_local_step_is_plain_sgd_params_and_statistics():
    problem, update = a_problem(), nw.Sgd()
    plain = nw.simulate(problem, nw.AsynchronousSGD(nw.Constant(0.25)), UNEVEN, steps=30, update=update)
    local = nw.simulate(LocalSteps(problem, 1, 0.25), FULL, UNEVEN, steps=30, update=update)
    assert np.array_equal(local.params, plain.params)


@pytest.mark.parametrize("update", [nw.Sgd(), nw.Momentum(0.5)], ids=repr)
def test_statistics_follow_local_steps_as_in_a_plain_loop(update):
    problem = a_problem()
    plain = nw.simulate(problem, nw.AsynchronousSGD(nw.Constant(0.1)), ONE, steps=4, update=update)
    local = nw.simulate(LocalSteps(problem, 4, 0.1, update=update), FULL, ONE, steps=1)
    np.testing.assert_allclose(local.params, plain.params, rtol=1e-5, atol=1e-7)
    statistics = problem.num_statistics
    assert np.array_equal(local.params[-statistics:], plain.params[-statistics:])
    assert (local.params[-statistics:-1] != problem.initial()[-statistics:-1]).all()


def test_a_job_moves_statistics_by_the_momentum_of_all_its_steps():
    problem = a_problem()
    assert problem.statistics_momentum == pytest.approx(0.1)
    of_one, of_some = (Capabilities.of(LocalSteps(problem, steps, 0.1)) for steps in (1, [2, 3]))
    assert of_one.statistics_momentum == problem.statistics_momentum
    assert of_some.statistics_momentum == pytest.approx(1 - 0.9**3)
    assert of_some.num_statistics == problem.num_statistics


@pytest.mark.parametrize("update", [None, adamw()], ids=["SGD", "AdamW"])
def test_a_model_with_batch_norm_is_evaluated_well_after_local_steps(update):
    problem = LocalSteps(a_problem(), [8, 8, 2], 0.2 if update is None else 0.01, update=update)
    run = nw.simulate(problem, nw.FedBuff(nw.Constant(1.0), buffer=2), UNEVEN, steps=25)
    assert run.history.loss[-1] < 0.35 < run.history.loss[0]
    model = problem.problem.model(run.params)
    with torch.no_grad():
        hidden = model[0](INPUTS)
    np.testing.assert_allclose(model[1].running_mean, hidden.mean(0), atol=0.25)
    np.testing.assert_allclose(model[1].running_var, hidden.var(0), rtol=0.5)


# Data


class Recorded(Dataset):
    """Remembers which items were read."""

    def __init__(self):
        self.read = []

    def __len__(self):
        return 24

    def __getitem__(self, place):
        self.read.append(place)
        return INPUTS[place], TARGETS[place]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("update", [None, adamw()], ids=["SGD", "AdamW"])
def test_local_steps_take_every_item_once_per_epoch(update, accumulate):
    data = Recorded()
    inner = TorchProblem(without_buffers, cross_entropy, data, batch_size=2, sampling="epochs", accumulate=accumulate)
    problem = LocalSteps(inner, 3, 0.01, update=update)
    data.read.clear()
    for job in range(8 // accumulate):
        problem.gradient(problem.initial(), sampler(0).sample(1, job))
    first, second = data.read[:24], data.read[24:]
    assert sorted(first) == sorted(second) == list(range(24))
    assert first != second


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_batches_of_local_steps_are_drawn_with_replacement_from_all_items(accumulate):
    data = Recorded()
    inner = TorchProblem(without_buffers, cross_entropy, data, batch_size=4, accumulate=accumulate)
    problem = LocalSteps(inner, 5, 0.01, update=adamw())
    data.read.clear()
    for job in range(4):
        problem.gradient(problem.initial(), sampler(0).sample(0, job))
    batches = [tuple(data.read[start : start + 4]) for start in range(0, len(data.read), 4)]
    assert len(batches) == 20 * accumulate
    assert len(set(batches)) == len(batches), "no batch is used twice"


class Counted(IterableDataset):
    """Counts the items that were taken."""

    def __init__(self):
        self.taken = 0

    def __iter__(self):
        while True:
            self.taken += 1
            place = self.taken % 120
            yield INPUTS[place], TARGETS[place]


def test_every_local_step_takes_the_next_items_of_a_stream():
    data = Counted()
    validation = TensorDataset(INPUTS, TARGETS)
    inner = TorchProblem(without_buffers, cross_entropy, data, batch_size=4, validation=validation)
    problem = LocalSteps(inner, 3, 0.01, update=adamw())
    data.taken = 0
    nw.simulate(problem, FULL, ONE, steps=5)
    assert data.taken == 4 * 3 * 5


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only on Linux")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # the test forks a process with threads
@pytest.mark.parametrize("prefetches", [False, True])
def test_the_batches_of_local_steps_are_drawn_ahead_and_are_the_same(prefetches):
    plain, ahead = (a_problem(without_buffers, loader_workers=count, accumulate=2) for count in (0, 2))
    for problem in (plain, ahead):
        problem._gradients.prefetches_on = lambda device: prefetches
    ahead.start_worker(0, 1)
    taken = []
    take = ahead._gradients.loaders.take
    ahead._gradients.loaders.take = lambda *unit: taken.append(take(*unit)) or taken[-1]
    problems = [LocalSteps(problem, 3, 0.01, update=adamw()) for problem in (plain, ahead)]
    for job in (0, 1, 2, 5, 6):
        first, second = (problem.gradient(plain.initial(), sampler(0).sample(0, job)) for problem in problems)
        assert np.array_equal(first, second), job
    assert sum(drawn is None for drawn in taken) <= 6, "after the first one of jobs in a row, all are drawn ahead"
    for process in ahead._gradients.loaders.processes:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def test_a_job_reports_the_loading_time_of_all_its_steps_and_the_loss_of_its_last_one(monkeypatch):
    inner = a_problem(without_buffers)
    monkeypatch.setattr(inner, "loading_seconds", lambda: (0.5, 0.25))
    problem = LocalSteps(inner, 4, 0.01, update=adamw())
    can = Capabilities.of(problem)
    problem.gradient(problem.initial(), sampler(0).sample(0, 0))
    assert can.loading_seconds() == (2.0, 1.0)
    assert can.training_loss() == inner.training_loss() is not None


def test_batch_sizes_per_worker_are_the_weights_of_its_jobs():
    problem = LocalSteps(a_problem(batch_size=[4, 8]), [6, 3], 0.01, update=adamw())
    assert [Capabilities.of(problem).items_of(worker) for worker in (0, 1)] == [4, 8]


# Params as tensors


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("update", [None, adamw(fused=False), nw.Momentum()], ids=["SGD", "AdamW", "momentum"])
def test_the_differences_of_tensors_are_those_of_arrays(update, device):
    inner = a_problem(kind=OnTensors, device=device, deterministic=device == "cuda")
    problem, sample = LocalSteps(inner, 4, 0.02, proximal=0.1, update=update), sampler(0).sample(1, 3)
    memory = Capabilities.of(problem).device_memory()
    assert repr(memory) == repr(inner.device_memory())
    point, out = (memory.from_host(problem.initial()) for _ in range(2))
    problem.gradient_into(point, sample, out)
    expected = problem.gradient(problem.initial(), sample)
    np.testing.assert_allclose(memory.to_host(out), expected, rtol=1e-3, atol=1e-6)
    assert np.array_equal(memory.to_host(point), problem.initial()), "the point is not written to"


@pytest.mark.parametrize("device", DEVICES)
def test_workers_make_local_steps_where_params_are_and_the_run_replays(device):
    inner = a_problem(kind=OnTensors, device=device, deterministic=device == "cuda")
    problem, method = LocalSteps(inner, 4, 0.01, update=adamw()), nw.DelayedNesterov(nw.Constant(0.7), every=2)
    run = nw.train(problem, method, workers=2, steps=20)
    assert np.array_equal(nw.replay(run.trace, problem, method).last, run.last)
    assert run.history.loss[-1] < run.history.loss[0]


def test_a_replay_computes_where_the_workers_did(monkeypatch):
    """On a GPU local steps are rounded differently than on the processor."""
    problem = LocalSteps(a_problem(kind=OnTensors), 3, 0.01, update=nw.Adam())
    run = nw.train(problem, FULL, workers=1, steps=3)
    kinds, plain = set(), LocalSteps.gradient_into
    monkeypatch.setattr(
        LocalSteps, "gradient_into", lambda self, point, *rest: (kinds.add(type(point)), plain(self, point, *rest))[1]
    )
    nw.replay(run.trace, problem, FULL)
    assert kinds == {torch.Tensor}


def test_a_job_ends_when_the_device_has_computed_it(monkeypatch):
    """The server reads the difference in another process: what is queued for a GPU has to be done before."""
    waited = []
    monkeypatch.setattr(TorchMemory, "wait", lambda memory: waited.append(memory.device))
    problem = LocalSteps(a_problem(kind=OnTensors), 3, 0.01, update=nw.Adam())
    point = torch.from_numpy(problem.initial())
    problem.gradient_into(point, sampler(0).sample(0, 0), torch.empty_like(point))
    assert waited == [torch.device("cpu")]


@pytest.mark.parametrize("update", [None, adamw()], ids=["SGD", "AdamW"])
def test_the_jobs_of_a_process_use_the_same_memory(update):
    problem = LocalSteps(a_problem(kind=OnTensors), 3, 0.01, update=update)
    point = torch.from_numpy(problem.initial())
    addresses = set()
    for job in range(5):
        problem.gradient_into(point, sampler(0).sample(0, job), torch.empty_like(point))
        addresses.add(problem._here.data_ptr())
    assert len(addresses) == 1, "models keep views of every vector they have seen"
