"""Data of problems: streams divided among workers, bad items, and sizes of batches for every worker."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info

import nowait as nw
from nowait.api.batch_sizes import check_measurable, choose_batch_sizes
from nowait.api.recorded import use_recorded_batch_sizes
from nowait.core import sampler
from nowait.problems.shards import Shards
from nowait.pytorch import TorchProblem
from nowait.pytorch.auto_sizes import AutoSizes
from nowait.pytorch.batches import Batches
from nowait.pytorch.samplers import Rows
from nowait.pytorch.streams import Stream

INPUTS = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] > 0).long()
DATA = TensorDataset(INPUTS, TARGETS)


def build():
    return nn.Linear(6, 2)


def a_problem(data=DATA, **options):
    return TorchProblem(build, cross_entropy, data, **({"batch_size": 8} | options))


# Streams


class Numbers(IterableDataset):
    def __iter__(self):
        yield from range(10)


class Divided(IterableDataset):
    """Divides its items itself, in blocks."""

    def __iter__(self):
        info = get_worker_info()
        if info is None:
            yield from range(10)
        else:
            size = 10 // info.num_workers
            yield from range(info.id * size, (info.id + 1) * size)


def taken(stream, count):
    return [stream.take() for _ in range(count)]


def test_each_worker_takes_every_mth_item_of_each_pass():
    assert taken(Stream(Numbers(), 0, 3), 6) == [0, 3, 6, 9, 0, 3]
    assert taken(Stream(Numbers(), 2, 3), 4) == [2, 5, 8, 2]


def test_a_stream_that_divides_its_items_is_left_to_do_so():
    assert taken(Stream(Divided(), 1, 2), 6) == [5, 6, 7, 8, 9, 5]
    assert get_worker_info() is None


def test_one_worker_and_simulations_take_all_items():
    assert taken(Stream(Divided()), 12) == [*range(10), 0, 1]


def test_a_stream_with_too_few_items_is_an_error():
    with pytest.raises(ValueError, match="gave 10 items in a pass, and none of them to share 11 of 12"):
        Stream(Numbers(), 11, 12).take()


class InShards(IterableDataset):
    """Divides its shards among workers, as the streams of Hugging Face do."""

    num_shards = 2

    def __iter__(self):
        info = get_worker_info()
        for shard in range(info.id, self.num_shards, info.num_workers):
            yield from range(5 * shard, 5 * shard + 5)


def test_a_stream_with_fewer_shards_than_workers_names_them():
    assert taken(Stream(InShards(), 1, 2), 2) == [5, 6]
    sentence = "gave 0 items in a pass.*num_shards is 2.*Train with workers=2, or.*num_shards=3"
    with pytest.raises(ValueError, match=sentence):
        Stream(InShards(), 2, 3).take()


class InRows(IterableDataset):
    """Items that a model's gradient shows: number n has input n modulo 6 only."""

    def __iter__(self):
        for number in range(24):
            yield torch.nn.functional.one_hot(torch.tensor(number % 6), 6).float(), number % 2


class SeenInputs(nw.MinibatchSGD):
    """Notes which inputs the gradients of each worker are of."""

    def __init__(self):
        super().__init__(nw.Constant(0.1))
        self.seen = {}

    def on_arrival(self, server, arrival):
        columns = np.flatnonzero(arrival.gradient[:12].reshape(2, 6).any(axis=0))
        self.seen.setdefault(arrival.worker, set()).update(columns.tolist())
        super().on_arrival(server, arrival)


def test_the_processes_of_a_run_divide_a_stream():
    method = SeenInputs()
    nw.train(a_problem(InRows(), batch_size=4, loader_workers=1), method, workers=2, steps=6)
    assert method.seen == {0: {0, 2, 4}, 1: {1, 3, 5}}


def test_a_wrapper_that_only_starts_workers_divides_a_stream_too():
    problem = a_problem(InRows(), batch_size=4)
    problem.start_worker(1, 2)
    gradient = problem.gradient(problem.initial(), sampler(0).sample(1, 0))
    assert set(np.flatnonzero(gradient[:12].reshape(2, 6).any(axis=0))) <= {1, 3, 5}
    problem.take_share(0, 2)
    problem.start_worker(1, 2)
    gradient = problem.gradient(problem.initial(), sampler(0).sample(1, 0))
    assert set(np.flatnonzero(gradient[:12].reshape(2, 6).any(axis=0))) <= {0, 2, 4}, "it has a share already"


# Bad items


class Torn(Dataset):
    """Every fifth item cannot be read."""

    def __init__(self, bad=lambda place: place % 5 == 2):
        self.bad = bad

    def __len__(self):
        return 40

    def __getitem__(self, place):
        if self.bad(place):
            raise OSError(f"truncated file {place}")
        return INPUTS[place], TARGETS[place]


def test_a_bad_item_is_replaced_by_one_that_follows_from_the_ticket(caplog):
    problem, again = (a_problem(Torn(), skip_bad_items=True) for _ in range(2))
    gradients = [problem.gradient(problem.initial(), sampler(0).sample(1, job)) for job in range(20)]
    assert [len(batch[0]) for batch in [problem._batches.draw(sampler(0).sample(1, 3), 0, 1)]] == [8]
    for job in (7, 3):  # in any order
        assert np.array_equal(again.gradient(problem.initial(), sampler(0).sample(1, job)), gradients[job])
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert sum("item 7 of train_set is skipped, it raised OSError: truncated file 7" in line for line in warnings) == 2
    assert problem._batches.bad_items.skipped["train_set", 7] >= 2


def test_replacements_are_from_the_data_of_the_worker():
    problem = a_problem(Torn(), skip_bad_items=True).split(2)
    mine = set(problem._batches.choice.shards.rows_of(1).tolist())
    for job in range(10):
        inputs, _ = problem._batches.draw(sampler(0).sample(1, job), 0, 1)
        places = {int((row == INPUTS).all(dim=1).nonzero()[0]) for row in inputs}
        assert places <= mine


def test_evaluations_leave_bad_items_out():
    problem = a_problem(Torn(), skip_bad_items=True, evaluation_batch_size=7)
    good = [place for place in range(40) if place % 5 != 2]
    expected = a_problem(TensorDataset(INPUTS[good], TARGETS[good])).loss(problem.initial())
    assert problem.loss(problem.initial()) == pytest.approx(expected, rel=1e-6)
    validated = a_problem(validation=Torn(), skip_bad_items=True)
    assert validated.loss(problem.initial()) == pytest.approx(expected, rel=1e-6)


def test_too_many_bad_items_are_an_error():
    with pytest.raises(ValueError, match="none of the items 0 to 7 of train_set can be read"):
        a_problem(Torn(lambda place: True), skip_bad_items=True)
    problem = a_problem(Torn(lambda place: place > 7), skip_bad_items=True).split(2)
    problem._batches.choice = Rows(Shards.split(np.arange(40), 2), "replacement")
    with pytest.raises(ValueError, match="101 items in a row of train_set cannot be read"):
        problem.gradient(problem.initial(), sampler(0).sample(1, 0))


def test_without_the_option_a_bad_item_is_an_error():
    with pytest.raises(OSError, match="truncated file 2"):
        a_problem(Torn())


# Sizes


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        (8, [8, 8, 8]),
        ({1: 32, "default": 4}, [4, 32, 4]),
        ({"worker 1": 32, 2: 5, "default": 4}, [4, 32, 5]),
        ([3, 5], [3, 5, 3]),
        (lambda worker: 1 + worker, [1, 2, 3]),
        ("auto:7", [7, 7, 7]),
    ],
    ids=["number", "dictionary", "names", "list", "function", "auto"],
)
def test_every_worker_has_its_own_batch_size(given, sizes):
    problem = a_problem(batch_size=given, sampling="epochs")
    drawn = [problem._batches.draw(sampler(0).sample(worker, 0), 0, 1) for worker in range(3)]
    assert [len(inputs) for inputs, _ in drawn] == sizes


def test_a_gradient_is_the_mean_over_its_items_however_many_they_are():
    problem = a_problem(accumulate={1: 3, "default": 1}, batch_size={1: 4, "default": 12})
    sample = sampler(0).sample(1, 0)
    model = problem.model(problem.initial())
    places = np.concatenate([sample.part(part).indices(len(DATA), 4) for part in range(3)])
    cross_entropy(model(INPUTS[places]), TARGETS[places]).backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
    np.testing.assert_allclose(problem.gradient(problem.initial(), sample), expected, rtol=1e-4, atol=1e-7)


def test_automatic_sizes_are_in_proportion_to_speed_and_keep_their_mean():
    problem = a_problem(batch_size="auto:30")
    sizes = problem.auto_batch_sizes.choose({0: 0.1, 1: 0.2, 4: 0.2})
    assert sizes == {"worker 0": 45, "worker 1": 22, "worker 4": 22, "default": 30}
    assert [problem.items_of(worker) for worker in (0, 1, 2, 4)] == [45, 22, 30, 22]
    assert problem.auto_batch_sizes.choose({0: 1e-6, 1: 1e6})["worker 1"] == 1, "a gradient needs an item"
    assert a_problem(batch_size=sizes).items_of(4) == 22
    assert a_problem().auto_batch_sizes is None


def test_a_run_chooses_automatic_sizes_and_its_replay_has_the_same():
    """Worker 1 imitates one that takes a tenth of a second."""
    method, problem = nw.MinibatchSGD(nw.Constant(0.05)), a_problem(batch_size="auto:16")
    run = nw.train(problem, method, workers=2, steps=3, speeds=nw.speeds.Fixed([1e-6, 0.1]))
    sizes = run.config["batch_sizes"]
    assert sizes == problem.auto_batch_sizes.chosen
    assert sizes["worker 0"] > 16 > sizes["worker 1"]
    shares = [sizes[f"worker {worker}"] / (sizes["worker 0"] + sizes["worker 1"]) for worker in range(2)]
    np.testing.assert_allclose(run.trace.weight, np.array(shares)[run.trace.worker])
    assert np.array_equal(nw.replay(run.trace, problem, method).last, run.last)
    again = a_problem(batch_size="auto:16")
    with pytest.raises(ValueError, match="has not chosen sizes yet"):
        nw.replay(run.trace, again, method)
    use_recorded_batch_sizes(run.config, again)
    assert again.auto_batch_sizes.chosen == sizes
    use_recorded_batch_sizes({}, again)


@pytest.mark.parametrize("config", [{}, {"batch_sizes": None}, {"batch_sizes": {"worker 0": 0, "default": 1}}], ids=str)
def test_recorded_sizes_are_checked(config):
    with pytest.raises(ValueError, match=r"config\.json.*batch_size"):
        use_recorded_batch_sizes(config, a_problem(batch_size="auto"))


def test_engines_whose_workers_come_by_themselves_do_not_measure_them():
    for engine in (None, nw.RayCluster()):
        check_measurable(engine)
    with pytest.raises(ValueError, match="which SimpleNamespace cannot make"):
        check_measurable(SimpleNamespace())


@pytest.mark.parametrize("interrupted", [False, True])
def test_workers_are_measured_without_their_first_gradient(interrupted):
    def measure(measurement):
        measurement.seconds = {0: [9.0, 0.2, 0.1, 0.4], 1: [0.6], 2: []}
        return SimpleNamespace(stats=SimpleNamespace(interrupted=interrupted, advice="SIGINT ended the run"))

    sizes = AutoSizes(16)
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            choose_batch_sizes(sizes, measure)
        assert sizes.chosen is None
    else:
        choose_batch_sizes(sizes, measure)
        assert sizes.chosen == {"worker 0": 24, "worker 1": 8, "default": 16}


def test_the_batches_of_evaluations_have_a_size_of_their_own():
    def sizes_with(**options):
        problem = a_problem(**options)
        return [batch.items for batch in problem._validation_batches()]

    assert sizes_with() == [32, 32, 32, 24]
    assert sizes_with(evaluation_batch_size=50) == [50, 50, 20]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": {0: 8}}, 'batch_size as a dictionary needs an entry "default"'),
        ({"batch_size": {0: 0, "default": 8}}, "batch_size must be an integer of at least 1, got 0"),
        ({"batch_size": {"one": 8, "default": 8}}, "a worker in batch_size must be an integer of at least 0"),
        ({"batch_size": {"worker 1": 4, 1: 8, "default": 8}}, "batch_size has two entries for worker 1"),
        ({"batch_size": "large"}, '"auto" or "auto:64", got .large.'),
        ({"batch_size": "auto:0"}, "batch_size must be an integer of at least 1"),
        ({"batch_size": []}, "batch_size must be a number, or a list of numbers"),
        ({"batch_size": lambda worker: "8"}, "batch_size must be an integer of at least 1"),
        ({"accumulate": [1, 0]}, "accumulate must be an integer of at least 1, got 0"),
        ({"evaluation_batch_size": 0}, "evaluation_batch_size must be an integer of at least 1"),
        ({"loader_workers": -1}, "loader_workers must be an integer of at least 0"),
        ({"data": InRows(), "skip_bad_items": True}, "let an IterableDataset skip its bad items"),
        ({"data": (torch.ones(9, 6), torch.zeros(9))}, "train_set is a tuple of arrays, not of items"),
        ({"data": ()}, "train_set is empty"),
    ],
)
def test_wrong_settings_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        a_problem(**options)


@pytest.mark.parametrize(
    "data",
    [
        tuple(torch.ones(6) for _ in range(9)),
        (torch.ones(9, 6), torch.zeros(8)),
        ((torch.ones(6), 0), (torch.ones(6), 1)),
        (torch.tensor(1.0), torch.tensor(2.0)),
    ],
)
def test_a_tuple_of_items_is_a_data_set(data):
    assert len(Batches.of(data, 2, "replacement", None, skip_bad_items=False).data) == len(data)
