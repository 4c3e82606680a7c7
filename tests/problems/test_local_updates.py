"""Local steps with an update of their own: a job is a short run of that update, and nothing is left of it."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import nowait as nw
from nowait.core import Layout, sampler
from nowait.engines.fingerprint import Fingerprint, Match
from nowait.problems import Compressed, LocalSteps, TopK

NOISY = nw.problems.NoisyQuadratic(dimension=8, L=1.0, mu=0.3, sigma=0.3)
ONE = nw.speeds.Fixed([1.0])
FULL = nw.AsynchronousSGD(nw.Constant(1.0))
UPDATES = [nw.Sgd(), nw.Momentum(0.9), nw.Nesterov(0.5), nw.Adam(), nw.Proximal(nw.updates.Box(-0.2, 0.2)), nw.Muon()]


@pytest.mark.parametrize("update", UPDATES, ids=repr)
def test_a_job_ends_where_a_run_of_that_update_ends(update):
    """With the same samples: local step k of the first job is the run's job k."""
    run = nw.simulate(NOISY, nw.AsynchronousSGD(nw.Constant(0.1)), ONE, steps=5, update=update)
    local = LocalSteps(NOISY, 5, 0.1, update=update)
    way = local.gradient(NOISY.initial(), sampler(0).sample(0, 0))
    np.testing.assert_allclose(NOISY.initial() - way, run.params, rtol=1e-12, atol=1e-15)


def test_the_samples_of_the_jobs_of_a_worker_are_numbered_in_order():
    update = nw.Sgd()
    local = nw.simulate(LocalSteps(NOISY, 4, 0.1, update=update), FULL, ONE, steps=6)
    plain = nw.simulate(NOISY, nw.AsynchronousSGD(nw.Constant(0.1)), ONE, steps=24, update=update)
    np.testing.assert_allclose(local.params, plain.params, rtol=1e-12)


def test_the_sample_of_a_local_step_is_that_of_a_later_job():
    for job in (5, np.int64(5)):
        step = sampler(0).sample(3, job).of_local_step(2, steps=4)
        assert (step.worker, step.job, step.key) == (3, 22, sampler(0).key(3, 22))


def test_jobs_leave_nothing_behind_that_another_one_depends_on():
    local = LocalSteps(NOISY, 3, 0.1, update=nw.Adam())
    samples = [sampler(0).sample(worker, job) for worker, job in ((0, 0), (1, 7), (0, 1))]
    ways = [local.gradient(NOISY.initial(), sample) for sample in samples]
    for sample, way in zip(reversed(samples), reversed(ways), strict=True):
        assert np.array_equal(local.gradient(NOISY.initial(), sample), way)


def test_the_update_may_be_the_object_that_the_server_uses():
    def problem(update):
        return LocalSteps(NOISY, 3, 0.01, update=update)

    method, speeds = nw.MinibatchSGD(nw.Constant(0.1)), nw.speeds.Fixed([1.0, 2.0])
    shared = nw.Adam()
    same = nw.simulate(problem(shared), method, speeds, steps=20, update=shared)
    apart = nw.simulate(problem(nw.Adam()), method, speeds, steps=20, update=nw.Adam())
    assert np.array_equal(same.params, apart.params)


class InBlocks(nw.Update):
    """Divides the gradient of each block by its size; its state would show a job that was not started anew."""

    def start(self, params):
        raise AssertionError("start_with_layout is called")

    def start_with_layout(self, params, layout):
        self.blocks, self.jobs_begun = layout.blocks, getattr(self, "jobs_begun", 0) + 1
        self.steps = 0

    def apply(self, params, direction, stepsize, out):
        self.steps += 1
        for block in self.blocks:
            block.of(out)[...] = block.of(params) - stepsize * block.of(direction) / (self.steps * len(block.of(out)))


class WithLayout(nw.problems.NoisyQuadratic):
    layout = Layout.of({"first": (2,), "second": (6,)})


def test_an_update_of_ones_own_gets_the_layout_and_starts_anew():
    problem = WithLayout(dimension=8, L=1.0, mu=1.0)
    local = LocalSteps(problem, 1, 1.0, update=InBlocks())
    sizes = np.array([2.0] * 2 + [6.0] * 6)
    for job in range(2):
        sample = sampler(0).sample(0, job)
        way, gradient = local.gradient(np.ones(8), sample), problem.gradient(np.ones(8), sample)
        np.testing.assert_allclose(way, gradient / sizes, rtol=1e-12)
    assert not hasattr(local.update, "jobs_begun"), "a copy makes the steps"


class Fragile(nw.problems.NoisyQuadratic):
    """Its gradient is not finite in every third job, and raises where params are not finite."""

    def gradient(self, point, sample):
        if not np.isfinite(point).all():
            raise ArithmeticError("imagine a distribution that refuses NaN")
        return np.full(self.dimension, np.inf) if sample.job % 9 == 4 else super().gradient(point, sample)


@pytest.mark.parametrize("update", [None, nw.Sgd(), nw.Adam(), nw.LMO("sign")], ids=repr)
def test_a_local_step_that_is_not_finite_rejects_the_job_and_the_run_goes_on(update):
    problem = LocalSteps(Fragile(dimension=4), 3, 0.05, update=update)
    problem._numbers_steps = True
    run = nw.simulate(problem, FULL, nw.speeds.Fixed([1.0]), steps=20)
    assert run.stats.rejected >= 6
    assert run.history.loss[-1] < run.history.loss[0]


def test_local_steps_that_overflow_reject_the_job_without_a_warning():
    problem = LocalSteps(nw.problems.NoisyQuadratic(dimension=2), 100, 1e6, update=nw.Momentum())
    assert not np.isfinite(problem.gradient(np.ones(2), sampler(0).sample(0, 0))).any()


def test_the_proximal_term_is_part_of_the_gradient_that_the_update_gets():
    far, near = (LocalSteps(NOISY, 50, 0.05, proximal, nw.Momentum()) for proximal in (0.0, 5.0))
    sample = sampler(0).sample(0, 0)
    assert np.linalg.norm(near.gradient(np.zeros(8), sample)) < np.linalg.norm(far.gradient(np.zeros(8), sample)) / 3


@pytest.mark.parametrize("update", [nw.Adam(), nw.Muon(rest=nw.Adam()), nw.ScaleGradient(nw.Adam())], ids=repr)
def test_an_update_that_a_run_has_used_is_copied_without_its_state(update):
    quadratic = nw.problems.NoisyQuadratic(dimension=6)
    fresh = len(pickle.dumps(LocalSteps(quadratic, 2, 0.1, update=update)))
    nw.simulate(quadratic, nw.AsynchronousSGD(0.1), nw.speeds.Fixed([1.0]), steps=3, update=update)
    assert len(pickle.dumps(LocalSteps(quadratic, 2, 0.1, update=update))) == fresh


def test_a_problem_is_sent_without_the_state_of_its_update():
    problem = LocalSteps(nw.problems.NoisyQuadratic(dimension=1000), 2, 0.1, update=nw.Adam())
    before = len(pickle.dumps(problem))
    way = problem.gradient(problem.initial(), sampler(0).sample(0, 0))
    assert len(pickle.dumps(problem)) == before
    sent = pickle.loads(pickle.dumps(problem))
    assert np.array_equal(sent.gradient(sent.initial(), sampler(0).sample(0, 0)), way)


def test_compiled_code_is_loaded_before_workers_are_forked():
    code = """
import sys
import nowait as nw
from nowait.core.capabilities import Capabilities
problem = nw.problems.LocalSteps(nw.problems.NoisyQuadratic(dimension=2), 2, 0.1, update=nw.Adam())
before = "nowait.numerics.vectors" in sys.modules
Capabilities.of(problem).prepare()
print(before, "nowait.numerics.vectors" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert result.stdout.split() == ["False", "True"]


def test_splits_and_descriptions_have_the_update():
    problem = LocalSteps(nw.problems.LeastSquares.random(samples=20, dimension=3), 2, 0.1, update=nw.Adam())
    assert problem.split(2).update == nw.Adam()
    assert repr(problem).endswith(
        "steps=2, stepsize=0.1, proximal=0.0, update=Adam(beta1=0.9, beta2=0.999, epsilon=1e-08))"
    )


def test_another_update_is_another_problem():
    prints = [Fingerprint.of(LocalSteps(NOISY, 4, 0.1, update=update)) for update in (None, nw.Momentum(), nw.Adam())]
    matches = [first.compare(second, deterministic=True) for first in prints for second in prints if first != second]
    assert set(matches) == {Match.OTHER}
    assert len(matches) == 6


def test_a_run_is_resumed_with_the_steps_of_its_update(tmp_path):
    def cut(control):
        if control.steps == 12:
            raise RuntimeError("imagine a power cut")

    problem, method = LocalSteps(NOISY, 3, 0.05, update=nw.Adam()), nw.DelayedNesterov(nw.Constant(0.7), every=2)
    options = {"folder": tmp_path / "run", "checkpoint_every": 5, "callbacks": [cut]}
    with pytest.raises(RuntimeError, match="power cut"):
        nw.train(problem, method, workers=2, steps=20, **options)
    run = nw.resume(tmp_path / "run", problem)
    assert run.stats.steps == 20
    assert np.array_equal(nw.replay(run.trace, problem, method).params, run.params)


def test_local_steps_of_adam_go_inside_compression():
    problem = Compressed(LocalSteps(NOISY, 4, 0.01, update=nw.Adam()), TopK(4))
    run = nw.simulate(problem, nw.FedBuff(nw.Constant(1.0), buffer=2), nw.speeds.Fixed([1, 2, 5]), steps=200)
    assert run.history.loss[-1] < run.history.loss[0] / 5


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ("adam", "update must be a nowait Update"),
        (nw.Adam, "update must be an object, got the class Adam"),
        (nw.Muon(exclude=("head",)), "exclude names 'head'"),
    ],
    ids=str,
)
def test_an_update_that_cannot_be_used_is_refused(update, message):
    with pytest.raises((TypeError, ValueError), match=message):
        LocalSteps(NOISY, 2, 0.1, update=update)
