"""ScaleGradient: a delay rule before momentum and moments. HeLoCo: corrected directions. CosineGate."""

import math

import numpy as np
import pytest

import nowait as nw
from nowait.core.layout import Layout
from nowait.testing import a_server, gradient_from

# ScaleGradient


def a_run_with_one_stale_gradient(update, rule):
    """Worker 1 is given params at version 0; worker 0 makes five steps of zero; then worker 1's gradient arrives."""
    server = a_server(nw.AsynchronousSGD(rule), num_workers=2, update=update)
    for _ in range(5):
        server.handle(gradient_from(server, 0, 0.0))
    server.handle(gradient_from(server, 1, 1.0))
    for _ in range(200):
        server.handle(gradient_from(server, 0, 0.0))
    return server.params[0]


def test_without_it_the_momentum_gives_a_stale_gradient_most_of_its_weight_back():
    """The step is scaled by s = 2/6, but the momentum makes the later ones: γ·(s + β/(1 − β))."""
    moved = a_run_with_one_stale_gradient(nw.Momentum(0.9), nw.DelayAdaptive(0.1))
    assert moved == pytest.approx(-0.1 * (2 / 6 + 9), rel=1e-6)


def test_with_it_a_stale_gradient_moves_params_by_its_scaled_share_in_total():
    moved = a_run_with_one_stale_gradient(nw.ScaleGradient(nw.Momentum(0.9)), nw.DelayAdaptive(0.1))
    assert moved == pytest.approx(-0.1 * 2 / 6 * 10, rel=1e-6)


@pytest.mark.parametrize("inner", [nw.Momentum(0.9), nw.Adam(), nw.Muon(), nw.LMO("euclidean")], ids=repr)
def test_a_gradient_with_the_stepsize_zero_changes_neither_params_nor_state(inner):
    server = a_server(
        nw.AsynchronousSGD(nw.Threshold(0.1, concurrency=2)), num_workers=2, update=nw.ScaleGradient(inner)
    )
    for _ in range(5):
        server.handle(gradient_from(server, 0, 1.0))
    params, state = server.params.copy(), {name: np.copy(value) for name, value in inner.state().items()}
    server.handle(gradient_from(server, 1, 7.0))
    assert server.steps == 6
    assert np.array_equal(server.params, params)
    assert all(np.array_equal(value, state[name]) for name, value in inner.state().items())


def test_a_gradient_that_is_not_finite_is_rejected_even_with_the_stepsize_zero():
    update = nw.ScaleGradient(nw.Adam())
    server = a_server(nw.AsynchronousSGD(nw.Threshold(0.1, concurrency=1)), num_workers=2, update=update)
    for _ in range(5):
        server.handle(gradient_from(server, 0, 1.0))
    server.handle(gradient_from(server, 1, math.inf))
    assert (server.steps, server.counts.rejected) == (5, 1)


def test_a_factor_whose_square_is_zero_is_no_error():
    rule = nw.ExponentialDelayAdaptive(0.1, 4.0, 1.0)  # e^-400 at delay 400
    server = a_server(nw.AsynchronousSGD(rule), num_workers=2, update=nw.ScaleGradient(nw.Momentum(0.9)))
    for _ in range(400):
        server.handle(gradient_from(server, 0, 0.0))
    server.handle(gradient_from(server, 1, 3.0))
    assert (server.steps, server.diverged) == (401, None)


def test_with_fresh_gradients_it_changes_nothing():
    problem = nw.problems.NoisyQuadratic(dimension=4, sigma=0.1)
    runs = [
        nw.simulate(
            problem, nw.AsynchronousSGD(nw.DelayAdaptive(0.05)), nw.speeds.Fixed([1.0]), steps=50, update=update
        )
        for update in (nw.Adam(), nw.ScaleGradient(nw.Adam()))
    ]
    assert np.array_equal(runs[0].params, runs[1].params)


def test_a_run_that_scales_gradients_replays():
    problem = nw.problems.NoisyQuadratic(dimension=4, sigma=0.1)
    method, speeds = nw.AsynchronousSGD(nw.DelayAdaptive(0.05)), nw.speeds.Fixed([1.0, 1.5, 9.0])
    run = nw.simulate(problem, method, speeds, steps=50, update=nw.ScaleGradient(nw.Adam()))
    again = nw.replay(run.trace, problem, method, update=nw.ScaleGradient(nw.Adam()))
    assert np.array_equal(run.params, again.params)


def test_the_state_of_another_update_is_refused():
    heloco, adam = nw.HeLoCo(), nw.Adam()
    for update in (heloco, adam):
        update.start(np.zeros(3))
    with pytest.raises(ValueError, match="the checkpoint was not made with Adam: it has momentum"):
        adam.restore(heloco.state())


def test_it_wraps_updates_only():
    with pytest.raises(TypeError, match="update must be"):
        nw.ScaleGradient(0.9)


# HeLoCo


def corrected(update, momentum, direction, layout=None):
    """Return the corrected direction of one step."""
    momentum, direction = np.array(momentum, float), np.array(direction, float)
    update.start_with_layout(np.zeros_like(momentum), layout or Layout.flat(len(momentum)))
    update.momentum[:] = momentum
    out = np.empty_like(momentum)
    update.apply(np.zeros_like(momentum), direction, 1.0, out)
    return (update.momentum - update.beta * momentum) / (1 - update.beta)


def test_a_direction_along_the_momentum_is_kept():
    np.testing.assert_allclose(corrected(nw.HeLoCo(), [2.0, 0.0], [3.0, 1.0]), [3.0, 1.0])


def test_the_component_against_the_momentum_is_removed_in_part():
    """cos = −0.6 and confidence = 5/(5 + 5): the share 0.6·0.5 of the component −3 goes."""
    found = corrected(nw.HeLoCo(), [5.0, 0.0], [-3.0, 4.0])
    np.testing.assert_allclose(found, [-3.0 + 0.3 * 3.0, 4.0], rtol=1e-12)


def test_a_direction_across_the_momentum_is_rotated_towards_it_and_keeps_its_length():
    """cos = 0 and confidence = 1/2, so λ = 0.5·1·0.5."""
    found = corrected(nw.HeLoCo(), [2.0, 0.0], [0.0, 2.0])
    expected = np.array([0.25, 0.75]) / np.hypot(0.25, 0.75) * 2.0
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_every_tensor_is_corrected_by_itself():
    layout = Layout.of({"along": (2,), "against": (2,)})
    found = corrected(nw.HeLoCo(), [5.0, 0.0, 5.0, 0.0], [3.0, 4.0, -3.0, 4.0], layout)
    np.testing.assert_allclose(found, [3.0, 4.0, -2.1, 4.0], rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_momentum_that_has_faded_away_has_no_direction(dtype):
    """In float32 it stays at the smallest numbers: to divide by its length would overflow."""
    update, params, out = nw.HeLoCo(), np.zeros(4, dtype), np.zeros(4, dtype)
    update.start(params)
    for place, times in ((0, 1), (None, 1_200), (1, 1)):
        for _ in range(times):
            direction = np.zeros(4, dtype)
            direction[place] = 0.0 if place is None else 1.0
            update.apply(params, direction, 0.1, out)
    assert out.tolist() == pytest.approx([0.0, -0.1 * (1 + 0.9 * 0.1), 0.0, 0.0], rel=1e-6)


def test_a_tensor_without_entries_is_left_out():
    layout = Layout.of({"empty": (0, 3), "full": (2,)})
    np.testing.assert_allclose(corrected(nw.HeLoCo(), [5.0, 0.0], [-3.0, 4.0], layout), [-2.1, 4.0], rtol=1e-12)


def test_without_corrections_heloco_is_nesterovs_momentum_of_a_mean():
    """m' = (1 − β)·m, so the step is along g + β·(1 − β)·m."""
    update = nw.HeLoCo(0.5, shrink=0.0, rotate=0.0)
    update.start(np.zeros(1))
    params, momentum = np.zeros(1), 0.0
    for gradient in (1.0, -2.0, 0.5, -1.0):
        out = np.empty(1)
        update.apply(params, np.array([gradient]), 0.1, out)
        momentum = 0.5 * momentum + 0.5 * gradient
        assert out[0] == pytest.approx(params[0] - 0.1 * (gradient + 0.5 * momentum))
        params = out


def test_heloco_trains_local_steps_with_delays():
    local = nw.problems.LocalSteps(nw.problems.NoisyQuadratic(dimension=6, sigma=0.1), steps=4, stepsize=0.1)
    speeds = nw.speeds.Fixed([1.0, 1.2, 1.4, 10.0])
    run = nw.simulate(local, nw.AsynchronousSGD(nw.Constant(0.3)), speeds, steps=200, update=nw.HeLoCo())
    assert run.history.loss[-1] < 0.01 * run.history.loss[0]


# CosineGate


def test_the_gate_is_open_for_fresh_gradients_and_closed_from_the_cutoff_on():
    gate = nw.CosineGate(0.5, rate=0.0, cutoff=4.0)
    delays = np.array([1, 2, 3, 4, 5, 6, 50])
    expected = 0.5 * np.array([1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(gate(delays, 4, 1), expected, atol=1e-15)


def test_the_gate_decays_exponentially():
    gate, flat = nw.CosineGate(1.0, rate=0.2, cutoff=8.0), nw.CosineGate(1.0, rate=0.0, cutoff=8.0)
    assert gate(4, 1, 1) / flat(4, 1, 1) == pytest.approx(math.exp(-0.6))


def test_gradients_past_the_gate_leave_adams_moments_alone():
    """It is the rule of Cosine-Gated Adam-Decay: scale before the moments, and nothing past the cutoff."""
    update = nw.ScaleGradient(nw.Adam())
    server = a_server(nw.AsynchronousSGD(nw.CosineGate(0.1, cutoff=3.0)), num_workers=2, update=update)
    for _ in range(5):
        server.handle(gradient_from(server, 0, 1.0))
    before = update.update.mean.copy()
    server.handle(gradient_from(server, 1, 9.0))
    assert np.array_equal(update.update.mean, before)
