"""Every online output equals its offline formula."""

import json
import math
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nowait as nw
from audit import Audit
from nowait.core import Resumed
from nowait.core.server import Server
from nowait.testing import ScriptedWorkers
from nowait.testing.catalogue import CATALOGUE

PROBLEM = nw.problems.NoisyQuadratic(dimension=3, L=1.0, mu=0.2, sigma=0.5)
METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(0.3, cut=1.5))
SOME_NEVER_RETURN = nw.speeds.Adversary([0, 0, 0, 1, 0, 2, 1, 0, 0, 0], workers=5)


def audit_with(output, speeds=SOME_NEVER_RETURN, steps=37):
    return Audit(PROBLEM, METHOD, speeds, steps=steps, output=output)


def test_the_last_iterate_is_the_default():
    audit = Audit(PROBLEM, METHOD, SOME_NEVER_RETURN, steps=37)
    assert np.array_equal(audit.run.params, audit.iterates[-1])
    assert np.array_equal(audit.run.params, audit.run.last)


def test_the_uniform_average_is_the_mean_of_the_iterates_without_the_first():
    audit = audit_with(nw.UniformAverage())
    np.testing.assert_allclose(audit.run.params, np.mean(audit.iterates[1:], axis=0), rtol=1e-12)
    assert not np.array_equal(audit.run.params, audit.run.last)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.999])
def test_the_exponential_average_has_weights_that_sum_to_one_from_the_first_step_on(decay):
    for steps in (1, 37):
        audit = audit_with(nw.ExponentialAverage(decay), steps=steps)
        weights = {k: decay ** (steps - k) for k in range(1, steps + 1)}
        np.testing.assert_allclose(audit.run.params, audit.weighted_average(weights), rtol=1e-12)


def test_a_decay_is_below_one():
    with pytest.raises(ValueError, match="decay must be"):
        nw.ExponentialAverage(1.0)


def test_the_stepsize_weighted_average_uses_the_stepsize_each_iterate_gets_in_the_end():
    audit = audit_with(nw.StepsizeWeightedAverage())
    weights = {k: audit.gamma_hat(k) for k in range(1, audit.last + 1)}
    np.testing.assert_allclose(audit.run.params, audit.weighted_average(weights), rtol=1e-12)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_the_stepsize_weighted_average_for_any_order(order):
    audit = audit_with(nw.StepsizeWeightedAverage(), nw.speeds.Adversary(order, workers=5), steps=len(order))
    weights = {k: audit.gamma_hat(k) for k in range(1, audit.last + 1)}
    np.testing.assert_allclose(audit.run.params, audit.weighted_average(weights), rtol=1e-11)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.sampled_from([0.2, 5.0]))
def test_the_strongly_convex_average_for_any_order(order, mu):
    audit = audit_with(nw.StronglyConvexAverage(mu), nw.speeds.Adversary(order, workers=5), steps=len(order))
    applied = np.cumsum([0.0, *audit.stepsizes[1:]])
    weights = {k: audit.gamma_hat(k) * math.exp(mu * applied[k]) for k in range(1, audit.last + 1)}
    np.testing.assert_allclose(audit.run.params, audit.weighted_average(weights), rtol=1e-10)


def test_the_weights_of_the_strongly_convex_average_grow():
    """The sign of P̂: the paper prints a minus, with which early iterates would dominate."""
    problem = nw.problems.NoisyQuadratic(dimension=5, L=1.0, mu=0.1)
    speeds = nw.speeds.Fixed([1.0] * 8)

    def loss_of(output):
        run = nw.simulate(problem, nw.AsynchronousSGD(nw.DelayAdaptive(1 / 64)), speeds, steps=4_000, output=output)
        return problem.loss(run.params), problem.loss(run.last)

    exponential, last = loss_of(nw.StronglyConvexAverage(0.1))
    uniform, _ = loss_of(nw.UniformAverage())
    assert exponential < uniform / 20
    assert last < exponential


def test_the_weights_of_the_strongly_convex_average_do_not_overflow():
    problem = nw.problems.NoisyQuadratic(dimension=2, L=1.0, mu=1.0)
    output = nw.StronglyConvexAverage(1000.0)
    run = nw.simulate(problem, nw.AsynchronousSGD(nw.Constant(0.5)), nw.speeds.Fixed([1.0]), steps=2_000, output=output)
    np.testing.assert_allclose(run.params, run.last, atol=1e-12)


def test_a_random_iterate_is_one_of_the_iterates_and_the_same_for_the_same_seed():
    audit = audit_with(nw.RandomIterate())
    assert any(np.array_equal(audit.run.params, iterate) for iterate in audit.iterates[1:])
    assert np.array_equal(audit.run.params, audit_with(nw.RandomIterate()).run.params)


def test_a_random_iterate_is_chosen_in_proportion_to_its_stepsize():
    """Frequencies over many seeds against γ̂ (exact gradients, so that iterates do not depend on the seed)."""
    problem = nw.problems.NoisyQuadratic(dimension=2, L=1.0, mu=0.5)
    speeds = nw.speeds.Adversary([0, 0, 1, 0, 0, 0, 1], workers=3)
    audit = Audit(problem, METHOD, speeds, steps=7)
    expected = np.array([audit.gamma_hat(k) for k in range(1, 8)])
    runs = 1_000
    counts = np.zeros(7)
    for seed in range(runs):
        output = nw.RandomIterate()
        chosen = nw.simulate(problem, METHOD, speeds, steps=7, seed=seed, output=output, evaluate_every=7).params
        counts[[np.array_equal(chosen, iterate) for iterate in audit.iterates[1:]].index(True)] += 1
    deviation = np.sqrt(runs * 0.25)
    assert np.abs(counts - runs * expected / expected.sum()).max() < 4 * deviation


def test_a_uniform_iterate_is_each_iterate_equally_often_even_if_gradients_are_dropped():
    problem = nw.problems.NoisyQuadratic(dimension=2, L=1.0, mu=0.5)
    method, speeds = nw.RingmasterASGD(0.1, max_delay=1), nw.speeds.Adversary([0, 1, 0, 1, 2, 0], workers=3)
    iterates = iterates_of(problem, method, speeds, steps=4)
    runs, counts = 400, np.zeros(4)
    for seed in range(runs):
        run = nw.simulate(problem, method, speeds, steps=4, seed=seed, output=nw.UniformIterate(), evaluate_every=4)
        counts[[np.array_equal(run.params, iterate) for iterate in iterates].index(True)] += 1
    assert np.abs(counts - runs / 4).max() < 4 * np.sqrt(runs * 0.25 * 0.75)


def iterates_of(problem, method, speeds, steps):
    seen = []
    nw.simulate(problem, method, speeds, steps=steps, callbacks=[lambda control: seen.append(control.params.copy())])
    return seen


def test_a_worker_that_never_returned_weighs_nothing():
    """Its gradient is at x_0. After one step the output is x_1, whatever gradients are in flight."""
    run = nw.simulate(PROBLEM, METHOD, nw.speeds.Fixed([1.0, 50.0, 60.0]), steps=1, output=nw.StepsizeWeightedAverage())
    assert np.array_equal(run.params, run.last)


def test_lost_tickets_weigh_nothing():
    """Worker 1 computes at x_2 and leaves: if it had not left, x_2 would be part of the average."""
    speeds = nw.speeds.Adversary([0, 1, 0, 0, 0], workers=2)
    left = nw.speeds.Faults([(2.5, "leave", 1)])
    output = nw.StepsizeWeightedAverage()
    iterates = [PROBLEM.initial()]
    run = nw.simulate(
        PROBLEM,
        nw.AsynchronousSGD(nw.Constant(0.1)),
        speeds,
        steps=4,
        output=output,
        faults=left,
        callbacks=[lambda control: iterates.append(control.params.copy())],
    )
    np.testing.assert_allclose(run.params, (iterates[1] + iterates[3] + iterates[4]) / 3, rtol=1e-12)


def test_steps_along_a_sum_weigh_the_params_before_the_step(record):
    run = nw.simulate(
        PROBLEM,
        nw.MinibatchSGD(nw.Constant(0.1)),
        nw.speeds.Fixed([1.0, 2.0, 3.0]),
        steps=5,
        output=nw.StepsizeWeightedAverage(),
        callbacks=[record],
    )
    np.testing.assert_allclose(run.params, np.mean(record.iterates, axis=0), rtol=1e-12)


@pytest.mark.parametrize("output", [nw.UniformAverage(), nw.StepsizeWeightedAverage(), nw.StronglyConvexAverage(1e-9)])
def test_long_averages_of_float32_params_keep_their_digits(output):
    """100 for half the run, 101 for the other half: in float32 the late terms would vanish."""

    class Jump:
        dimension = 1

        def initial(self):
            return np.zeros(1, dtype=np.float32)

        def gradient(self, point, sample):
            return point - np.float32(100 if sample.job < 20_000 else 101)

        def loss(self, point):
            return 0.0

    method, speeds = nw.AsynchronousSGD(nw.Constant(1.0)), nw.speeds.Fixed([1.0])
    params = nw.simulate(Jump(), method, speeds, steps=40_000, evaluate_every=40_000, output=output).params
    assert params.dtype == np.float32
    assert params[0] == pytest.approx(100.5, abs=1e-4)


def test_what_ringmaster_would_drop_weighs_nothing(record):
    """At the end worker 1 has a ticket at x_2 with a delay of 4."""
    run = nw.simulate(
        nw.problems.NoisyQuadratic(3),
        nw.RingmasterASGD(nw.Constant(0.1), max_delay=2),
        nw.speeds.Adversary([0, 1] + [0] * 1_000),
        steps=6,
        output=nw.StepsizeWeightedAverage(),
        callbacks=[record],
    )
    kept = [iterate for number, iterate in enumerate(record.iterates, start=1) if number != 2]
    np.testing.assert_allclose(run.params, np.mean(kept, axis=0), rtol=1e-12)


@pytest.mark.parametrize("mu", [0, -1.0, math.nan])
def test_strong_convexity_must_be_positive(mu):
    with pytest.raises(ValueError, match="mu must be a finite number above 0"):
        nw.StronglyConvexAverage(mu)


def test_which_iterate_params_last_and_losses_are():
    """With an averaging rule ``run.params`` is the average; callbacks, losses and ``run.last`` are about iterates."""
    problem = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1)
    iterates = {0: problem.initial()}
    losses = {}

    class Watching(nw.Callback):
        def on_step(self, control):
            iterates[control.steps] = control.params.copy()

        def on_evaluate(self, control):
            losses[control.loss_step] = control.loss

    run = nw.simulate(
        problem,
        nw.AsynchronousSGD(0.1),
        nw.speeds.Fixed([1.0, 2.0]),
        steps=30,
        evaluate_every=10,
        output=nw.UniformAverage(),
        callbacks=[Watching()],
    )

    assert np.array_equal(run.last, iterates[30])
    np.testing.assert_allclose(run.params, np.mean([iterates[step] for step in range(1, 31)], axis=0), rtol=1e-12)
    assert not np.allclose(run.params, run.last)
    assert run.history.step.tolist() == list(losses) == [0, 10, 20, 30]
    assert run.history.loss.tolist() == list(losses.values())
    assert run.history.loss.tolist() == [problem.loss(iterates[step]) for step in losses]


def until_a_step_along_a_sum(method, output):
    """Workers after 40 events and up to the next step, if the method makes its steps along sums; else None."""
    workers = ScriptedWorkers(deepcopy(method), num_workers=5, output=output).after(40)
    steps = workers.server.steps
    while workers.server.steps == steps:
        workers.next_event()
    return workers if workers.server._weighs_last else None


@pytest.mark.parametrize("output", [nw.StepsizeWeightedAverage(), nw.StronglyConvexAverage(0.1)], ids=repr)
@pytest.mark.parametrize("name", CATALOGUE)
def test_a_run_resumed_at_its_last_step_has_the_same_answer(name, output):
    """What decides how tickets in flight are weighed is in the checkpoint, if the method steps along sums.

    (For the others the tickets themselves decide, and they are lost with a checkpoint.) A replay, which handles a
    "resumed" event without a checkpoint, has the answer too.
    """
    workers = until_a_step_along_a_sum(CATALOGUE[name], deepcopy(output))
    if workers is None:
        pytest.skip("it steps along single gradients")
    server = workers.server
    state = server.state()
    stored = json.loads(json.dumps(state.weight_of_last))
    resumed = Server(deepcopy(CATALOGUE[name]), state.params, state.workers, output=deepcopy(output))
    resumed.resume(replace(state, weight_of_last=stored))
    again = Server(deepcopy(CATALOGUE[name]), state.params, state.workers, output=deepcopy(output))
    again.resume(resumed.state())
    replayed = until_a_step_along_a_sum(CATALOGUE[name], deepcopy(output)).server
    replayed.handle(Resumed(replayed.now))
    answer = server.finish()
    for other in (resumed, again, replayed):
        assert np.array_equal(other.finish(), answer)
