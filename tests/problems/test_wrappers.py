"""Wrappers of problems: local steps, compression, error feedback, message sizes."""

import pickle

import numpy as np
import pytest

import nowait as nw
from nowait.core import sampler
from nowait.problems import QSGD, Compressed, LocalSteps, RandomK, Sign, TopK
from nowait.testing import CATALOGUE

QUADRATIC = nw.problems.NoisyQuadratic(dimension=8, L=1.0, mu=0.3, sigma=0.3)
UNEVEN = nw.speeds.Exponential([0.1, 0.5, 1.0, 2.0, 12.0])
COMPRESSORS = [TopK(2), RandomK(2), RandomK(3, unbiased=True), QSGD(4), Sign()]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def compressed(compressor, vector, sample=None):
    out = vector.copy()
    compressor.compress(out, sample or sampler(0).sample(0, 0))
    return out


# Local steps


def test_one_local_step_is_the_gradient_times_its_stepsize(rng):
    sample, point = sampler(0).sample(1, 5), rng.normal(size=8)
    local = LocalSteps(QUADRATIC, steps=1, stepsize=0.2)
    np.testing.assert_allclose(local.gradient(point, sample), 0.2 * QUADRATIC.gradient(point, sample), rtol=1e-12)


def test_local_steps_go_where_sgd_goes():
    """Exact gradients: four local steps and a server step of 1 are four steps of gradient descent."""
    exact = nw.problems.NoisyQuadratic(dimension=8, L=1.0, mu=0.3)
    one = nw.speeds.Fixed([1.0])
    local = nw.simulate(LocalSteps(exact, 4, 0.1), nw.AsynchronousSGD(nw.Constant(1.0)), one, steps=5)
    plain = nw.simulate(exact, nw.AsynchronousSGD(nw.Constant(0.1)), one, steps=20)
    np.testing.assert_allclose(local.params, plain.params, rtol=1e-12)


def test_every_local_step_has_a_sample_of_its_own():
    """The noise of four steps from one point is twice, not four times, that of one."""
    noise = nw.problems.NoisyQuadratic(dimension=8, L=1e-9, mu=1e-9, sigma=1.0, distance=0.0)
    local = LocalSteps(noise, steps=4, stepsize=1.0)
    ways = [local.gradient(np.zeros(8), sampler(0).sample(0, job)) for job in range(2_000)]
    assert np.sqrt(np.mean(np.sum(np.square(ways), axis=1))) == pytest.approx(2.0, rel=0.03)


def test_a_proximal_term_keeps_local_steps_near():
    far = LocalSteps(QUADRATIC, 50, 0.1).gradient(np.zeros(8), sampler(0).sample(0, 0))
    near = LocalSteps(QUADRATIC, 50, 0.1, proximal=5.0).gradient(np.zeros(8), sampler(0).sample(0, 0))
    assert np.linalg.norm(near) < np.linalg.norm(far) / 3


def test_workers_may_make_different_numbers_of_local_steps():
    exact = nw.problems.NoisyQuadratic(dimension=2)
    local = LocalSteps(exact, [1, 3], 0.1)
    for worker, steps in [(0, 1), (1, 3), (2, 1)]:
        same = LocalSteps(exact, steps, 0.1)
        sample = sampler(0).sample(worker, 0)
        assert np.array_equal(local.gradient(np.ones(2), sample), same.gradient(np.ones(2), sample))


def test_fedbuff_with_local_steps_trains_on_heterogeneous_rows():
    problem = nw.problems.LeastSquares.random(samples=200, dimension=5, noise=0.01, batch_size=4).split(4, by="iid")
    job = LocalSteps(problem, steps=5, stepsize=0.3)
    assert job.num_shards == 4
    run = nw.simulate(job, nw.FedBuff(nw.Constant(1.0), buffer=2), nw.speeds.Fixed([1, 1, 2, 8]), steps=300)
    assert run.history.loss[-1] < run.history.loss[0] / 1_000
    again = nw.replay(run.trace, job, nw.FedBuff(nw.Constant(1.0), buffer=2))
    assert np.array_equal(again.params, run.params)


def test_a_wrapped_problem_splits_and_knows_its_minimum():
    problem = LocalSteps(nw.problems.LeastSquares.random(samples=20, dimension=3), steps=2, stepsize=0.1)
    assert problem.split(2, by="sorted").problem.num_shards == 2
    assert problem.split(2).steps == (2,)
    assert np.array_equal(problem.minimum()[0], problem.problem.minimum()[0])


# Compressors


@pytest.mark.parametrize("compressor", [RandomK(3, unbiased=True), QSGD(1), QSGD(4)], ids=repr)
def test_unbiased_compressors_have_the_vector_as_their_mean(compressor, rng):
    vector = rng.normal(size=12)
    draws = np.array([compressed(compressor, vector, sampler(0).sample(0, job)) for job in range(8_000)])
    deviation = draws.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0) - vector) < 5 * deviation + 1e-12).all()
    assert draws.std() > 0


@pytest.mark.parametrize("levels", [1, 3, 16])
def test_the_variance_of_qsgd_is_within_its_bound(levels, rng):
    vector = rng.normal(size=50)
    draws = np.array([compressed(QSGD(levels), vector, sampler(0).sample(0, job)) for job in range(500)])
    variance = np.mean(np.sum((draws - vector) ** 2, axis=1))
    assert 0 < variance <= min(50 / levels**2, np.sqrt(50) / levels) * (vector @ vector)
    multiples = draws / (np.linalg.norm(vector) / levels)
    np.testing.assert_allclose(multiples, np.round(multiples), atol=1e-9)


@pytest.mark.parametrize("compressor", [TopK(3), RandomK(3), Sign()], ids=repr)
def test_compressors_for_error_feedback_come_closer_than_nothing_sent(compressor, rng):
    for job in range(50):
        vector = rng.normal(size=12)
        rest = vector - compressed(compressor, vector, sampler(0).sample(0, job))
        assert np.linalg.norm(rest) < np.linalg.norm(vector)


def test_what_is_sent():
    vector = np.array([3.0, -1.0, 0.5, -4.0])
    assert compressed(TopK(2), vector).tolist() == [3.0, 0.0, 0.0, -4.0]
    assert compressed(TopK(9), vector).tolist() == vector.tolist()
    assert compressed(Sign(), vector).tolist() == [2.125, -2.125, 2.125, -2.125]
    random = compressed(RandomK(2), vector)
    assert np.count_nonzero(random) == 2
    assert set(random) - {0.0} <= set(vector)
    assert compressed(QSGD(4), np.zeros(3)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("compressor", "size"),
    [(TopK(5), 5 * 12), (RandomK(5), 5 * 8), (QSGD(15), 8 + 500 // 8 + 1), (Sign(), 8 + 13), (TopK(500), 100 * 8)],
    ids=repr,
)
def test_bytes_are_counted_as_compressed(compressor, size):
    problem = Compressed(nw.problems.NoisyQuadratic(dimension=100), compressor)
    run = nw.simulate(problem, nw.AsynchronousSGD(nw.Constant(0.01)), UNEVEN, steps=50)
    assert run.stats.bytes_up == 50 * size
    assert run.stats.bytes_down == (50 + 5) * 800, "every ticket brings params"


def test_bytes_are_those_of_the_dtype_of_the_run():
    problem = Compressed(nw.problems.NoisyQuadratic(dimension=100), TopK(5))
    method, single = nw.AsynchronousSGD(nw.Constant(0.01)), np.zeros(100, np.float32)
    run = nw.simulate(problem, method, UNEVEN, steps=10, initial=single)
    assert run.stats.bytes_up == 10 * 5 * 8


def test_params_are_not_sent_again_to_a_worker_that_has_them():
    """Malenia's fast worker computes at one point until the slow one has sent a gradient."""
    run = nw.simulate(QUADRATIC, nw.MaleniaSGD(nw.Constant(0.1), batch=2), nw.speeds.Fixed([1.0, 8.5]), steps=3)
    assert len(run.trace) == 3 * 9
    cancelled_at_each_step, at_the_end = 3, 2
    assert run.stats.bytes_down == (3 * 2 + cancelled_at_each_step + at_the_end) * 64


def test_uncompressed_gradients_are_counted_too_and_saved(tmp_path):
    run = nw.simulate(QUADRATIC, nw.RennalaSGD(nw.Constant(0.1), batch=2, cancel=False), UNEVEN, steps=20)
    assert run.stats.bytes_up == len(run.trace) * 64
    assert nw.load(run.save(tmp_path / "run")).stats.bytes_up == run.stats.bytes_up


# Error feedback


@pytest.mark.parametrize("compressor", [TopK(1), RandomK(1), Sign()], ids=repr)
def test_error_feedback_loses_nothing(compressor):
    """The sum of all messages and the current residual is the sum of all gradients."""
    problem = Compressed(QUADRATIC, compressor)
    memory, out = np.zeros(8), np.empty(8)
    sent, computed = np.zeros(8), np.zeros(8)
    for job in range(500):
        sample = sampler(0).sample(0, job)
        problem.gradient_with_memory(np.ones(8), sample, memory, out)
        sent += out
        computed += QUADRATIC.gradient(np.ones(8), sample)
    np.testing.assert_allclose(sent + memory, computed, rtol=1e-10)
    assert np.linalg.norm(memory) < np.linalg.norm(computed) / 5, "and little is held back"


def test_error_feedback_goes_where_bare_compression_does_not():
    exact = nw.problems.NoisyQuadratic(dimension=8, L=1.0, mu=0.3).split(5, by="sorted", zeta=1.0)
    method = nw.AsynchronousSGD(nw.Constant(0.006))
    even = nw.speeds.Fixed([1.0] * 5)
    fed_back = nw.simulate(Compressed(exact, TopK(1)), method, even, steps=6_000)
    bare = nw.simulate(Compressed(exact, TopK(1), error_feedback=False), method, even, steps=6_000)
    assert fed_back.history.loss[-1] < 1e-3
    assert bare.history.loss[-1] > 10 * fed_back.history.loss[-1]


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
@pytest.mark.parametrize("name", ["AsynchronousSGD", "RennalaSGD", "RingmasterASGD, cancel_stale=True", "FedAT"])
def test_compression_goes_with_methods_and_replays(compressor, name):
    problem = Compressed(QUADRATIC, compressor)
    faults = nw.speeds.Faults([(2.0, "leave", 0), (4.0, "join", 5), (6.5, "join", 0), (8.0, "leave", 3)])
    run = nw.simulate(problem, CATALOGUE[name], UNEVEN, steps=120, faults=faults)
    again = nw.replay(run.trace, problem, CATALOGUE[name])
    assert np.array_equal(again.last, run.last)
    assert again.stats.bytes_up == run.stats.bytes_up


def test_the_memory_of_a_worker_leaves_with_it():
    problem = Compressed(nw.problems.NoisyQuadratic(dimension=2, L=1.0, mu=1.0), TopK(1))
    faults = nw.speeds.Faults([(1.5, "leave", 0), (1.5, "join", 0)])
    run = nw.simulate(problem, nw.AsynchronousSGD(nw.Constant(1e-9)), nw.speeds.Fixed([1.0]), steps=2, faults=faults)
    np.testing.assert_allclose(run.trace.gradient_norm, [np.sqrt(0.5)] * 2, rtol=1e-6)
    kept = nw.simulate(problem, nw.AsynchronousSGD(nw.Constant(1e-9)), nw.speeds.Fixed([1.0]), steps=2)
    np.testing.assert_allclose(kept.trace.gradient_norm, [np.sqrt(0.5), 2 * np.sqrt(0.5)], rtol=1e-6)


class Hiccup:
    """A gradient of NaN at one job, of (2, 1.5) at the others."""

    dimension = 2

    def initial(self):
        return np.zeros(2)

    def gradient(self, point, sample):
        return np.full(2, np.nan) if sample.job == 1 else np.array([2.0, 1.5])

    def loss(self, point):
        return 1.0


def test_a_bad_gradient_leaves_the_memory_alone():
    run = nw.simulate(
        Compressed(Hiccup(), TopK(1)), nw.AsynchronousSGD(nw.Constant(0.1)), nw.speeds.Fixed([1.0]), steps=3
    )
    assert run.stats.rejected == 1
    np.testing.assert_allclose(run.last, [-0.1 * (2.0 + 4.0), -0.1 * 3.0])


def test_an_overflow_does_not_spoil_the_memory():
    class Huge(Hiccup):
        def gradient(self, point, sample):
            return np.full(2, 3e38 if sample.job < 3 else 1.0, dtype=np.float32)

        def initial(self):
            return np.zeros(2, np.float32)

    problem = Compressed(Huge(), TopK(1))
    memory, out = np.zeros(2, np.float32), np.zeros(2, np.float32)
    with np.errstate(over="ignore"):
        for job in range(5):
            problem.gradient_with_memory(problem.initial(), sampler(0).sample(0, job), memory, out)
    assert np.isfinite(memory).all()
    assert np.isfinite(out).all()


@pytest.mark.parametrize("scale", [1e-30, 1e20])
def test_qsgd_of_very_long_and_very_short_vectors(scale):
    vector = np.array([1.0, -2.0, 3.0], dtype=np.float32) * np.float32(scale)
    sent = compressed(QSGD(4), vector)
    assert np.isfinite(sent).all()
    assert len(set(np.abs(sent))) > 1


def test_local_steps_lose_no_small_steps_in_single_precision():
    class Slope(Hiccup):
        def gradient(self, point, sample):
            return np.ones(2, dtype=np.float32)

    way = LocalSteps(Slope(), steps=1000, stepsize=2e-5).gradient(np.full(2, 1000, np.float32), sampler(0).sample(0, 0))
    np.testing.assert_allclose(way, 0.02, rtol=1e-3)


def test_wrappers_can_be_pickled():
    problem = Compressed(LocalSteps(Hiccup(), 2, 0.1), TopK(1))
    assert pickle.loads(pickle.dumps(problem)).dimension == 2


def test_local_steps_go_inside_compression():
    problem = Compressed(LocalSteps(QUADRATIC, steps=3, stepsize=0.1), TopK(2))
    run = nw.simulate(problem, nw.FedBuff(nw.Constant(1.0), buffer=2), UNEVEN, steps=300)
    assert run.history.loss[-1] < run.history.loss[0] / 5
    assert problem.constants().sigma is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LocalSteps(QUADRATIC, 0, 0.1), "steps must be an integer of at least 1"),
        (lambda: LocalSteps(QUADRATIC, [], 0.1), "steps is empty: give at least one"),
        (lambda: LocalSteps(QUADRATIC, 8.0, 0.1), "steps must be an integer of at least 1, got 8.0"),
        (lambda: LocalSteps(LocalSteps(QUADRATIC, 2, 0.1), 2, 0.1), "LocalSteps cannot wrap LocalSteps: multiply"),
        (lambda: Compressed(QUADRATIC, TopK(1), error_feedback="no"), "error_feedback must be"),
        (lambda: RandomK(2, unbiased="no"), "unbiased must be"),
        (lambda: LocalSteps(QUADRATIC, 2, 0.0), "stepsize must be a finite number above 0"),
        (lambda: LocalSteps(QUADRATIC, 2, 0.1, proximal=-1), "proximal must be a finite number of at least 0"),
        (
            lambda: LocalSteps(Compressed(QUADRATIC, TopK(1)), 2, 0.1),
            "LocalSteps cannot wrap Compressed: put LocalSteps inside it",
        ),
        (lambda: LocalSteps("problem", 2, 0.1), "problem must have dimension"),
        (lambda: Compressed(QUADRATIC, 5), "compressor must be a nowait Compressor"),
        (
            lambda: Compressed(Compressed(QUADRATIC, TopK(1)), TopK(1)),
            "Compressed cannot wrap a problem whose workers have a memory already",
        ),
        (lambda: Compressed(QUADRATIC, QSGD(), error_feedback=True), "error feedback would grow without bound"),
        (lambda: TopK(0), "count must be an integer of at least 1"),
        (lambda: QSGD(0), "levels must be an integer of at least 1"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize("unbiased", [False, True])
def test_random_entries_of_all_entries_are_the_vector_itself(unbiased):
    vector = np.arange(1.0, 6.0)
    for count in (5, 9):
        compressed = vector.copy()
        RandomK(count, unbiased=unbiased).compress(compressed, sampler(0).sample(0, 0))
        assert compressed.tolist() == vector.tolist()
