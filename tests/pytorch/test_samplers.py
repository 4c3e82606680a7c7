"""Samplers of PyTorch: batches are still a function of seed, worker and job."""

import copy
import itertools
import logging
import pickle
import random
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import nowait as nw
from nowait.core import sampler as samples_of
from nowait.core.pickling import dumps
from nowait.pytorch import TorchProblem
from nowait.pytorch.samplers import Listed, Passes, checked_choice

ITEMS = 20
DATA = TensorDataset(torch.arange(ITEMS).float()[:, None], torch.zeros(ITEMS, 1))
LENGTHS = [1 + 7 * item % 5 for item in range(ITEMS)]
METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(0.001))


def sample(worker, job, seed=0):
    return samples_of(seed).sample(worker, job)


def chosen(choice, jobs, worker=0, seed=0, size=4):
    return np.concatenate([choice.places(sample(worker, job, seed), 0, 1, size) for job in jobs]).tolist()


def a_choice(sampler=None, batch_sampler=None, sampling="replacement", items=ITEMS):
    return checked_choice(sampler, batch_sampler, items, sampling)


def a_problem(data=DATA, **options):
    return TorchProblem(lambda: nn.Linear(1, 1), mse_loss, data, **options)


class ByLength(Sampler):
    """Batches of items of equal length, in random order: as for texts."""

    def __init__(self, draw=lambda: float(torch.rand(()))):
        self.draw = draw

    def __len__(self):
        return sum(1 for _ in self._batches())

    def _batches(self):
        for length in sorted(set(LENGTHS)):
            items = [item for item in range(ITEMS) if LENGTHS[item] == length]
            yield from (items[start : start + 3] for start in range(0, len(items), 3))

    def __iter__(self):
        return iter(sorted(self._batches(), key=lambda _: self.draw()))


def a_numpy_number():
    return np.random.random()  # noqa: NPY002


def a_python_number():
    return random.random()


# Weights


def test_items_are_drawn_in_proportion_to_their_weights():
    weights = np.array([1.0, 0.0, 3.0, 4.0, 0.0])
    choice = a_choice(WeightedRandomSampler(weights, 10), items=7)
    counts = Counter(chosen(choice, range(1_000), size=8))
    assert set(counts) == {0, 2, 3}
    for item in counts:
        assert counts[item] == pytest.approx(1_000 * weights[item], rel=0.1)
    assert not choice.uses_job_numbers


def test_a_weighted_draw_depends_on_seed_worker_and_job_alone():
    choice = a_choice(WeightedRandomSampler(np.arange(1.0, 21.0), 10))
    drawn = chosen(choice, [3])
    torch.manual_seed(5)
    assert chosen(pickle.loads(pickle.dumps(choice)), [3]) == drawn
    others = [chosen(choice, [4]), chosen(choice, [3], worker=1), chosen(choice, [3], seed=1)]
    assert drawn not in others
    assert choice.places(sample(0, 3), 1, 2, 4).tolist() != choice.places(sample(0, 3), 0, 2, 4).tolist()


def test_the_last_item_with_a_weight_is_the_last_one_that_is_drawn():
    class Highest:
        def uniforms(self, size):
            return np.full(size, np.nextafter(1.0, 0.0))

    choice = a_choice(WeightedRandomSampler([0.1, 0.2, 0.7, 0.0], 4))
    assert choice.places(Highest(), 0, 1, 2).tolist() == [2, 2]


# Passes


RANDOM = {
    "random": lambda: RandomSampler(range(ITEMS)),
    "random, with a generator": lambda: RandomSampler(range(ITEMS), generator=torch.Generator().manual_seed(9)),
    "subset": lambda: SubsetRandomSampler([2, 3, 5, 7, 11]),
    "weighted, without replacement": lambda: WeightedRandomSampler(np.arange(1.0, 21.0), 10, replacement=False),
}
RANDOM_BATCHES = {
    "batches": lambda: BatchSampler(RandomSampler(range(ITEMS)), 3, drop_last=False),
    "batches, with a generator": lambda: BatchSampler(
        RandomSampler(range(ITEMS), generator=torch.Generator().manual_seed(9)), 3, drop_last=True
    ),
    "by length, torch": ByLength,
    "by length, numpy": lambda: ByLength(a_numpy_number),
    "by length, random": lambda: ByLength(a_python_number),
}


def random_choice(name):
    return a_choice(RANDOM[name]()) if name in RANDOM else a_choice(batch_sampler=RANDOM_BATCHES[name]())


@pytest.mark.parametrize("name", [*RANDOM, *RANDOM_BATCHES])
def test_a_batch_of_a_random_sampler_depends_on_seed_worker_and_job_alone(name):
    choice, fresh = random_choice(name), random_choice(name)
    batches = [chosen(choice, [job]) for job in range(12)]
    torch.manual_seed(1), np.random.seed(1), random.seed(1)  # noqa: NPY002
    there = pickle.loads(dumps(choice, None))
    for job in (11, 0, 5, 4):
        assert chosen(fresh, [job]) == chosen(there, [job]) == batches[job]
    assert chosen(choice, range(12), worker=1) != list(itertools.chain(*batches))
    assert chosen(choice, range(12), seed=1) != list(itertools.chain(*batches))
    assert choice.uses_job_numbers


@pytest.mark.parametrize("name", [*RANDOM, *RANDOM_BATCHES])
def test_making_a_pass_leaves_all_generators_as_they_were(name):
    choice = random_choice(name)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    chosen(choice, range(30), worker=3)
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_the_generator_of_the_users_sampler_is_not_used():
    generator = torch.Generator().manual_seed(9)
    given = BatchSampler(RandomSampler(range(ITEMS), generator=generator), 3, drop_last=False)
    chosen(a_choice(batch_sampler=given), range(10))
    assert torch.equal(generator.get_state(), torch.Generator().manual_seed(9).get_state())
    assert given.sampler.generator is generator


def test_a_worker_takes_every_item_once_per_pass_and_batches_may_lie_in_two_passes():
    choice = a_choice(RandomSampler(range(ITEMS)))
    items = chosen(choice, range(10), size=6)
    passes = [items[start : start + ITEMS] for start in (0, ITEMS, 2 * ITEMS)]
    assert [sorted(items) for items in passes] == [list(range(ITEMS))] * 3
    assert passes[0] != passes[1] != passes[2]


def test_every_batch_is_one_of_the_batch_sampler_and_each_comes_once_per_pass():
    choice, all_batches = a_choice(batch_sampler=ByLength()), list(ByLength())
    count = len(all_batches)
    for first in (0, count):
        batches = [chosen(choice, [job]) for job in range(first, first + count)]
        assert sorted(batches) == sorted(all_batches)
    parts = [choice.places(sample(0, 1), part, 2, 1).tolist() for part in range(2)]
    assert parts == [chosen(choice, [2]), chosen(choice, [3])]


class Unequal(Sampler):
    """The number of batches differs from pass to pass, as with batches of a number of tokens."""

    def __len__(self):
        return ITEMS

    def __iter__(self):
        for _ in range(2 + int(torch.randint(5, ()))):
            yield torch.randint(ITEMS, (2,)).tolist()


def test_passes_with_different_numbers_of_batches_repeat():
    choice = a_choice(batch_sampler=Unequal())
    assert isinstance(choice, Passes)
    batches = [chosen(choice, [job]) for job in range(40)]
    assert [chosen(copy.deepcopy(choice), [job]) for job in reversed(range(40))] == batches[::-1]


# The same on every pass


@pytest.mark.parametrize("sampling", ["replacement", "epochs"])
def test_workers_draw_at_random_from_a_list_of_batches(sampling, caplog):
    batches = [[0, 1], [2, 3, 4], [5], [19, 18]]
    with caplog.at_level(logging.WARNING, "nowait"):
        choice = a_choice(batch_sampler=batches, sampling=sampling)
    assert "batch_sampler gives the same batches on every pass: workers draw from them at random" in caplog.text
    assert isinstance(choice, Listed)
    drawn = [chosen(choice, [job], worker=2) for job in range(8)]
    assert all(batch in batches for batch in drawn)
    assert choice.uses_job_numbers == (sampling == "epochs")
    if sampling == "epochs":
        assert sorted(drawn[:4]) == sorted(drawn[4:]) == sorted(batches)


def test_workers_draw_at_random_from_the_items_of_a_fixed_sampler(caplog):
    choice = a_choice([4, 4, 4, 9], sampling="epochs")
    assert sorted(chosen(choice, range(2))) == [4, 4, 4, 4, 4, 4, 9, 9]
    assert "sampler gives the same items on every pass" in caplog.text
    assert isinstance(a_choice(SequentialSampler(range(ITEMS))), Listed)


# What is refused


class Stateful(Sampler):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return ITEMS

    def __iter__(self):
        return iter(self.rng.permutation(ITEMS).tolist())


class TooLong(Sampler):
    def __len__(self):
        return 3

    def __iter__(self):
        return itertools.count()


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"sampler": Stateful()}, ValueError, r"sampler \(Stateful\) gives other items on a second pass with the same"),
        ({"sampler": TooLong()}, ValueError, "sampler gives more than its length of 3 entries"),
        ({"sampler": iter([1])}, TypeError, "sampler must be a sampler with a length"),
        ({"sampler": 3}, TypeError, "sampler must be a sampler with a length"),
        ({"sampler": RandomSampler}, TypeError, "sampler must be a sampler with a length"),
        ({"sampler": DataLoader(DATA)}, TypeError, "sampler must be a sampler with a length"),
        ({"sampler": [[1, 2], [3]]}, TypeError, r"sampler must give numbers of items, got \[1, 2\] first"),
        ({"batch_sampler": RandomSampler(DATA)}, TypeError, "batch_sampler must give lists of numbers of items"),
        ({"sampler": []}, ValueError, "sampler gives nothing: a gradient needs items"),
        ({"sampler": [0.5]}, TypeError, "sampler must give numbers of items, got 0.5 first"),
        ({"sampler": [[1, 2], [3, 4]]}, TypeError, "sampler must give numbers of items"),
        ({"sampler": [20]}, ValueError, "sampler gives the item 20, but train_set has the items 0 to 19"),
        ({"sampler": [-1]}, ValueError, "sampler gives the item -1"),
        ({"batch_sampler": [[1], []]}, ValueError, "batch_sampler gives an empty batch"),
        ({"batch_sampler": [["a"]]}, TypeError, "batch_sampler must give lists of numbers of items"),
        ({"sampler": [1], "batch_sampler": [[1]]}, ValueError, "give sampler or batch_sampler, not both"),
        ({"batch_sampler": [[1]], "batch_size": 8}, ValueError, "leave out batch_size, got 8"),
        (
            {"sampler": DistributedSampler(DATA, num_replicas=2, rank=0)},
            ValueError,
            "a DistributedSampler, which divides items among the ranks",
        ),
        ({"sampler": WeightedRandomSampler([-1.0, 2.0], 3)}, ValueError, "the weights of the sampler must be finite"),
        ({"sampler": WeightedRandomSampler([1.0] * 21, 3)}, ValueError, "one for each of the 20 items"),
        ({"sampler": WeightedRandomSampler([0.0], 3)}, ValueError, "the weights of the sampler are all 0"),
        (
            {"sampler": WeightedRandomSampler([1.0], 3), "sampling": "epochs"},
            ValueError,
            'sampler says itself in which order items come: sampling="epochs" cannot be given',
        ),
        ({"sampler": RandomSampler(DATA), "sampling": "epochs"}, ValueError, "says itself in which order"),
    ],
)
def test_samplers_that_cannot_be_repeated_are_refused(options, kind, message):
    with pytest.raises(kind, match=message):
        a_problem(**options)


def test_a_sampler_that_is_sent_with_a_copy_of_a_generator_is_refused_there():
    choice = a_choice(batch_sampler=ByLength(np.random.random))
    assert chosen(choice, [3])
    there = pickle.loads(pickle.dumps(choice))
    with pytest.raises(ValueError, match="ByLength gives other items in this process than where the problem was made"):
        chosen(there, [3])


def test_samplers_and_data_that_do_not_fit_are_refused():
    class Numbers(IterableDataset):
        def __iter__(self):
            yield from range(10)

    with pytest.raises(ValueError, match="a sampler needs items with an index"):
        a_problem(Numbers(), sampler=[1])
    with pytest.raises(ValueError, match="the items of a sampler cannot be split"):
        a_problem(sampler=[1, 2, 3]).split(2)


# Runs


class Noisy(Dataset):
    """Items whose reading draws a random number, and of which some cannot be read."""

    def __len__(self):
        return ITEMS

    def __getitem__(self, item):
        if item == 13:
            raise OSError("truncated")
        return torch.tensor([item + float(torch.rand(()))]), torch.zeros(1)


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": WeightedRandomSampler(np.arange(1.0, 21.0), 10), "batch_size": 4},
        {"sampler": RandomSampler(DATA), "batch_size": 3, "loader_workers": 1},
        {"batch_sampler": ByLength(), "accumulate": 2},
    ],
)
def test_a_run_of_real_workers_with_a_sampler_replays(options):
    problem = a_problem(Noisy(), skip_bad_items=True, **options)
    run = nw.train(problem, METHOD, workers=2, steps=40)
    assert np.array_equal(nw.replay(run.trace, problem, METHOD).params, run.params)


def test_items_in_place_of_bad_ones_come_from_the_sampler():
    problem = a_problem(Noisy(), sampler=[13, 13, 13, 7], batch_size=8, skip_bad_items=True)
    inputs, _ = problem._batches.draw(sample(0, 0), 0, 1)
    assert set(inputs.floor().ravel().tolist()) == {7.0}


def test_the_model_is_checked_with_a_batch_of_the_batch_sampler():
    sizes = []

    def forward(model, batch):
        sizes.append(len(batch[0]))
        return model(batch[0]), batch[1]

    a_problem(batch_sampler=[[1, 2, 3], [4, 5, 6]], forward=forward)
    assert set(sizes) == {3}
