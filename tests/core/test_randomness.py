"""Samples and speeds are pure functions of what they are for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nowait as nw
from nowait.core import sampler
from nowait.core.randomness import CounterRandom, Stream, below, child, children, mix
from nowait.testing import train_scripted

KEYS = st.integers(0, 2**64 - 1)


@given(KEYS, st.integers(1, 50))
def test_a_block_is_hashed_to_the_same_bits_as_single_draws(key, count):
    assert children(key, count).tolist() == [child(key, draw) for draw in range(count)]
    assert child(key, 3) == mix((key + 4 * 0x9E3779B97F4A7C15) % 2**64)


@given(KEYS, st.integers(1, 2**40))
def test_indices_are_the_upper_half_of_the_product(key, limit):
    bits = children(key, 5)
    assert below(bits, limit).tolist() == [(draw * limit) >> 64 for draw in bits.tolist()]


def test_the_hash_is_splitmix64():
    """The first outputs of the published generator from state 0."""
    assert [child(0, draw) for draw in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_the_scalar_path_is_the_first_draw_of_the_block():
    sample = sampler(7).sample(worker=3, job=11)
    assert sample.index(1_000) == sample.indices(1_000, size=1)[0] == sample.indices(1_000, size=64)[0]


def test_samples_never_change():
    """Golden values: a change here makes every saved trace impossible to replay."""
    assert sampler(0).sample(worker=2, job=5).indices(1_000, size=3).tolist() == [400, 558, 235]
    assert Stream(1, "speed").uniform(worker=4, job=9) == 0.5665803143252933


def test_numbers_of_a_trace_name_a_sample_too():
    plain, numpys = sampler(7).sample(3, 11), sampler(np.int64(7)).sample(np.int64(3), np.int64(11))
    assert plain.index(1_000) == numpys.index(np.int64(1_000))


def test_a_sample_knows_its_ticket_and_draws_nothing_from_it():
    sample, other = sampler(0).sample(2, 5, ticket=40), sampler(0).sample(2, 5)
    assert (sample.ticket, sample.part(1).ticket, other.ticket, other.part(1).ticket) == (40, 40, None, None)
    assert (sample.key, sample.part(1).key) == (other.key, other.part(1).key)
    assert [sample.of_local_step(number, steps=3).ticket for number in range(3)] == [120, 121, 122]
    assert other.of_local_step(1, steps=3).ticket is None


class TicketNumbers:
    """Its gradients are the numbers of their tickets: how many the server had issued before, to all workers."""

    dimension = 1

    def initial(self):
        return np.zeros(1)

    def gradient(self, point, sample):
        return np.full(1, float(sample.ticket))

    def loss(self, point):
        return 0.0


def test_every_engine_says_which_ticket_a_gradient_is_for():
    method = nw.AsynchronousSGD(nw.Constant(1.0))
    for run in (
        nw.simulate(TicketNumbers(), method, nw.speeds.Fixed([1.0, 3.0]), steps=9),
        train_scripted(TicketNumbers(), method, workers=2, steps=9),
    ):
        assert run.params.tolist() == [-sum(run.trace.ticket.tolist())]
        assert (nw.replay(run.trace, TicketNumbers(), method).params == run.params).all()


def test_samples_differ_by_seed_worker_and_job():
    draws = {
        (seed, worker, job): tuple(sampler(seed).sample(worker, job).indices(2**32 - 1, size=4))
        for seed in range(4)
        for worker in range(4)
        for job in range(4)
    }
    assert len(set(draws.values())) == 64


def test_streams_of_different_names_are_independent():
    assert Stream(0, "sample").key(0, 0) != Stream(0, "speed").key(0, 0)


def test_draws_are_uniform_and_normal():
    samples = sampler(0)
    indices = np.concatenate([samples.sample(worker, job).indices(10, 50) for worker in range(20) for job in range(20)])
    counts = np.bincount(indices, minlength=10)
    assert np.abs(counts - 2_000).max() < 200
    normals = np.concatenate([samples.sample(0, job).normals(50) for job in range(400)])
    assert abs(normals.mean()) < 0.03
    assert abs(normals.std() - 1) < 0.02
    assert abs((normals**4).mean() - 3) < 0.2
    uniforms = samples.sample(1, 1).uniforms(10_000)
    assert 0 < uniforms.min() < uniforms.max() < 1


def test_consecutive_jobs_are_not_correlated():
    first = np.array([sampler(0).sample(0, job).uniforms(1)[0] for job in range(4_000)])
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.05


def test_indices_uniforms_normals_and_parts_are_independent():
    samples = [sampler(0).sample(0, job) for job in range(3_000)]
    columns = [
        [sample.index(10**9) for sample in samples],
        [sample.uniforms(1)[0] for sample in samples],
        [abs(sample.normals(1)[0]) for sample in samples],
        [sample.part(0).uniforms(1)[0] for sample in samples],
        [sample.part(1).uniforms(1)[0] for sample in samples],
        [sample.part(0).index(10**9) for sample in samples],
    ]
    correlations = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(correlations).max() < 0.07
    assert samples[0].part(3).index(100) == sampler(0).sample(0, 0).part(3).index(100)


def test_a_generator_belongs_to_its_sample():
    sample = sampler(0).sample(0, 0)
    assert sample.rng().standard_normal() == sample.rng().standard_normal()
    assert sample.rng().standard_normal() != sampler(0).sample(0, 1).rng().standard_normal()


def test_server_randomness_counts_its_draws():
    first, second = CounterRandom(3, "server"), CounterRandom(3, "server")
    assert [first.integer(100) for _ in range(20)] == [second.integer(100) for _ in range(20)]
    assert sorted(first.permutation(30)) == list(range(30))
    assert first.permutation(30) != list(range(30))
    assert first.choice("abc") in "abc"


@pytest.mark.parametrize("seed", [-1, 1.5, "0", None, True])
def test_a_seed_is_a_natural_number(seed):
    with pytest.raises(ValueError, match="seed must be an integer of at least 0"):
        sampler(seed)
