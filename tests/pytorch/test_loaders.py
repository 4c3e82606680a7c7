"""Batches that other processes draw ahead: the same ones, and no process outlives its worker."""

import os
import random
import select
import signal

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import nowait as nw
from nowait.core import sampler
from nowait.pytorch import TorchMemory, TorchProblem
from nowait.pytorch.loaders import Drawn, Loaders

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only on Linux"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),  # a test forks a process with threads
]

INPUTS = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] > 0).long()


def build():
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 2))


class Shaky(Dataset):
    """Items with noise of three generators, that say which process drew them."""

    def __init__(self, file=None):
        self.file = file

    def __len__(self):
        return 20

    def __getitem__(self, place):
        if self.file is not None:
            os.write(self.file, f"{os.getpid()} ".encode())
        noise = torch.rand(()) + float(np.random.normal()) + random.random()  # noqa: NPY002
        return INPUTS[place] + noise, TARGETS[place]


def end(problem):
    for process in problem._gradients.loaders.processes:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("data", [Shaky(), TensorDataset(INPUTS, TARGETS)], ids=["random", "plain"])
@pytest.mark.parametrize("count", [1, 3])
def test_gradients_have_the_bits_of_batches_that_the_worker_draws(accumulate, data, count):
    plain = TorchProblem(build, cross_entropy, data, batch_size=4, accumulate=accumulate)
    ahead = TorchProblem(build, cross_entropy, data, batch_size=4, accumulate=accumulate, loader_workers=count)
    ahead.start_worker(2, 4)
    for job in (0, 1, 2, 3, 7, 8, 9, 8):  # tickets may be left out
        sample = sampler(0).sample(2, job)
        assert np.array_equal(ahead.gradient(plain.initial(), sample), plain.gradient(plain.initial(), sample)), job
    end(ahead)


def prefetching(**options):
    """Return a problem that prefetches on the processor, as on a GPU."""
    problem = TorchProblem(build, cross_entropy, Shaky(), batch_size=4, **options)
    problem._gradients.prefetches_on = lambda device: True
    return problem


@pytest.mark.parametrize("accumulate", [1, 2])
def test_batches_that_are_copied_to_a_gpu_are_the_same_too(accumulate):
    plain = prefetching(accumulate=accumulate)
    ahead = prefetching(accumulate=accumulate, loader_workers=2)
    ahead.start_worker(0, 1)
    for job in (0, 1, 2, 3, 4, 8, 9):
        sample = sampler(0).sample(0, job)
        assert np.array_equal(ahead.gradient(plain.initial(), sample), plain.gradient(plain.initial(), sample)), job
    end(ahead)


def test_the_batches_after_the_first_come_from_other_processes(tmp_path):
    file = os.open(tmp_path / "readers", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    problem = TorchProblem(build, cross_entropy, Shaky(file), batch_size=4, loader_workers=2)
    problem.start_worker(0, 1)
    os.ftruncate(file, 0)
    for job in range(5):
        problem.gradient(problem.initial(), sampler(0).sample(0, job))
    readers = [int(reader) for reader in os.pread(file, 10_000, 0).split()]
    assert readers.count(os.getpid()) == 4, "the batch of the first ticket"
    assert set(readers) == {os.getpid(), *problem._gradients.loaders.processes}
    end(problem)
    os.close(file)


class OnTensors(TorchProblem):
    """A problem whose params are tensors even on the processor, as they are on a GPU."""

    def device_memory(self):
        return TorchMemory("cpu")


def test_a_run_with_loaders_has_the_params_of_one_without():
    ahead = OnTensors(build, cross_entropy, Shaky(), batch_size=4, loader_workers=2)
    plain = TorchProblem(build, cross_entropy, Shaky(), batch_size=4)
    method = nw.AsynchronousSGD(nw.Constant(0.1))
    run = nw.train(ahead, method, workers=1, steps=12, update=nw.Sgd())
    expected = nw.simulate(plain, method, nw.speeds.Fixed([1.0]), steps=12, update=nw.Sgd())
    assert np.array_equal(run.last, expected.last)


def test_a_process_that_is_killed_is_done_without(caplog):
    plain = TorchProblem(build, cross_entropy, Shaky(), batch_size=4)
    ahead = TorchProblem(build, cross_entropy, Shaky(), batch_size=4, loader_workers=2)
    ahead.start_worker(0, 1)
    for job in range(6):
        if job == 2:
            os.kill(ahead._gradients.loaders.processes[0], signal.SIGKILL)
        sample = sampler(0).sample(0, job)
        assert np.array_equal(ahead.gradient(plain.initial(), sample), plain.gradient(plain.initial(), sample))
    assert len(ahead._gradients.loaders.processes) == 1
    assert "a process that draws batches ended (-9): the worker draws them itself" in caplog.text
    end(ahead)


def test_a_process_that_is_killed_while_it_draws_an_unwanted_batch_is_done_without():
    loaders = Loaders(lambda sample, part: signal.pause(), 1, 1)
    loaders.take(sampler(0).sample(0, 0), 0)  # requests job 1
    os.kill(loaders.processes[0], signal.SIGKILL)
    for job in (7, 8, 9):
        assert loaders.take(sampler(0).sample(0, job), 0) is None
    assert loaders.processes == []


def test_an_error_of_the_data_set_is_raised_in_the_worker():
    bad = int(sampler(0).sample(0, 5).indices(20, 4).max())

    class Torn(Shaky):
        def __getitem__(self, place):
            if place == bad:
                raise OSError("torn")
            return super().__getitem__(place)

    problem = TorchProblem(build, cross_entropy, Torn(), batch_size=4, loader_workers=1)
    problem.start_worker(0, 1)
    errors = 0
    for job in range(12):
        try:
            problem.gradient(problem.initial(), sampler(0).sample(0, job))
        except OSError as error:
            errors += str(error) == "torn"
    assert errors == sum(bad in sampler(0).sample(0, job).indices(20, 4) for job in range(12)) > 0
    end(problem)


def test_no_process_outlives_a_worker_that_is_killed():
    def hang(sample, part):
        signal.pause()

    reading, writing = os.pipe()
    worker = os.fork()
    if worker == 0:
        loaders = Loaders(hang, 1, 2)
        loaders.take(sampler(0).sample(0, 0), 0)
        os.write(writing, " ".join(map(str, loaders.processes)).encode())
        signal.pause()
    processes = [os.pidfd_open(int(process)) for process in os.read(reading, 100).split()]
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    for process in processes:
        poller = select.poll()
        poller.register(process, select.POLLIN)
        assert poller.poll(20_000), "the process did not end"
    for fd in (*processes, reading, writing):
        os.close(fd)


def test_batches_of_any_objects_come_back():
    batch = {"text": ["a", "b"], "long": torch.arange(100_000), "array": np.ones((3, 0)), "slice": INPUTS[:, ::2]}
    loaders = Loaders(lambda sample, part: Drawn(batch, None), 1, 1)
    assert loaders.take(sampler(0).sample(0, 0), 0) is None
    there = loaders.take(sampler(0).sample(0, 1), 0).batch
    assert there["text"] == batch["text"]
    assert torch.equal(there["long"], batch["long"])
    assert there["long"].data_ptr() % 64 == 0
    assert there["array"].shape == (3, 0)
    assert torch.equal(there["slice"], batch["slice"])
    [process] = loaders.processes
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def test_batches_that_cannot_be_sent_are_drawn_by_the_worker(capfd, caplog):
    loaders = Loaders(lambda sample, part: Drawn((number for number in ()), None), 1, 1)
    assert [loaders.take(sampler(0).sample(0, job), 0) for job in range(3)] == [None] * 3
    assert loaders.processes == []
    assert "cannot pickle" in capfd.readouterr().err
    assert "the worker draws them itself" in caplog.text


class Counting(IterableDataset):
    def __iter__(self):
        for number in range(40):
            yield torch.full((6,), float(number)), number % 2


def test_a_stream_is_read_in_order_by_one_process():
    plain = TorchProblem(build, cross_entropy, Counting(), batch_size=4)
    ahead = TorchProblem(build, cross_entropy, Counting(), batch_size=4, loader_workers=3)
    ahead.start_worker(0, 1)
    assert len(ahead._gradients.loaders.processes) == 1
    for job in (0, 1, 5):  # tickets may be left out, but items are not
        expected = plain._batches.draw(sampler(0).sample(0, job), 0, 1)
        drawn = ahead._gradients.loaders.take(sampler(0).sample(0, job), 0)
        assert torch.equal(drawn.batch[0], expected[0])
    end(ahead)
