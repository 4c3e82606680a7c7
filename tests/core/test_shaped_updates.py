"""Updates that look at shapes: what their steps are, on arrays and on tensors."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.core import Layout
from nowait.core.shaped_updates import orthogonalised
from nowait.core.state import copies
from nowait.pytorch import TorchMemory, TorchProblem

LAYOUT = Layout.of({"tall": (6, 4), "bias": (4,), "wide": (3, 5), "filters": (4, 2, 3), "scale": (2,)})
GENERATOR = np.random.default_rng(5)
PARAMS, GRADIENTS = GENERATOR.standard_normal(LAYOUT.length), GENERATOR.standard_normal((4, LAYOUT.length))
MATRICES = ("tall", "wide", "filters")


def steps(update, params=PARAMS, gradients=GRADIENTS, stepsize=0.1):
    """Return the params after each step."""
    update.start_with_layout(params, LAYOUT)
    found = [params]
    for gradient in gradients:
        out = gradient * np.nan
        update.apply(found[-1], gradient, stepsize, out)
        found.append(out)
    return found


def singular_values(tensor):
    return np.linalg.svd(np.asarray(tensor).reshape(tensor.shape[0], -1), compute_uv=False)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (1, 7), (4, 2, 3)])
def test_newton_schulz_brings_all_singular_values_near_one_and_keeps_the_singular_vectors(shape):
    matrix = np.random.default_rng(1).standard_normal(shape) * 100
    found = orthogonalised(matrix, 5)
    assert found.shape == shape
    assert (np.abs(singular_values(found) - 0.95) < 0.3).all()
    u, _, v = np.linalg.svd(matrix.reshape(shape[0], -1), full_matrices=False)
    inner = u.T @ found.reshape(shape[0], -1) @ v.T
    assert np.abs(inner - np.diag(np.diag(inner))).max() < 1e-9
    assert np.isfinite(orthogonalised(matrix * 0, 5)).all()


def test_a_spectral_step_has_length_one_in_the_spectral_norm_of_every_matrix():
    before, after = steps(nw.LMO("spectral", beta=0.0), gradients=GRADIENTS[:1])
    moved = (before - after) / 0.1
    for name in MATRICES:
        assert (np.abs(singular_values(LAYOUT[name].of(moved)) - 0.95) < 0.3).all()
        inner = np.sum(LAYOUT[name].of(moved) * LAYOUT[name].of(GRADIENTS[0]))
        assert inner > 0.8 * singular_values(LAYOUT[name].of(GRADIENTS[0])).sum(), "it minimises the inner product"
    for name in ("bias", "scale"):
        np.testing.assert_allclose(LAYOUT[name].of(moved), np.sign(LAYOUT[name].of(GRADIENTS[0])), atol=1e-12)


def test_euclidean_and_sign_steps_are_along_the_mean_of_gradients():
    mean = 0.5 * (0.5 * GRADIENTS[0]) + 0.5 * GRADIENTS[1]
    *_, before, after = steps(nw.LMO("euclidean", beta=0.5), gradients=GRADIENTS[:2])
    np.testing.assert_allclose(before - after, 0.1 * mean / np.linalg.norm(mean), atol=1e-14)
    *_, before, after = steps(nw.LMO("sign", beta=0.5), gradients=GRADIENTS[:2])
    np.testing.assert_allclose(before - after, 0.1 * np.sign(mean), atol=1e-14)


def test_the_schedule_without_parameters_weighs_the_kth_gradient_with_one_over_the_root_of_k():
    weights = [1.0, 1 / np.sqrt(2), 1 / np.sqrt(3)]
    mean = np.zeros(LAYOUT.length)
    for weight, gradient in zip(weights, GRADIENTS, strict=False):
        mean = (1 - weight) * mean + weight * gradient
    update = nw.LMO("euclidean", beta=None)
    steps(update, gradients=GRADIENTS[:3])
    np.testing.assert_allclose(update.momentum, mean, atol=1e-14)


def test_a_direction_of_zeros_makes_no_step():
    for ball in ("euclidean", "sign", "spectral"):
        before, after = steps(nw.LMO(ball), gradients=[np.zeros(LAYOUT.length)])
        assert np.array_equal(before, after)


@pytest.mark.parametrize("options", [{}, {"nesterov": False, "weight_decay": 0.1}, {"adjust": "match_rms_adamw"}])
def test_muon_makes_the_steps_of_pytorch_on_matrices(options):
    """PyTorch multiplies in bfloat16, so its steps are coarse."""
    update = nw.Muon(rest=nw.Sgd(), **options)
    ours = steps(update, PARAMS.astype(np.float32), GRADIENTS.astype(np.float32))
    names = {"adjust": "adjust_lr_fn"}
    theirs = {"weight_decay": 0.0} | {names.get(name, name): value for name, value in options.items()}
    for name in ("tall", "wide"):
        tensor = nn.Parameter(torch.from_numpy(LAYOUT[name].of(PARAMS).astype(np.float32).copy()))
        optimizer = torch.optim.Muon([tensor], lr=0.1, momentum=0.95, **theirs)
        for gradient in GRADIENTS:
            tensor.grad = torch.from_numpy(LAYOUT[name].of(gradient).astype(np.float32).copy())
            optimizer.step()
        np.testing.assert_allclose(LAYOUT[name].of(ours[-1]), tensor.detach(), atol=0.03)


def test_other_tensors_take_the_steps_of_the_other_update():
    update = nw.Muon(rest=nw.Momentum(0.5), rest_stepsize=0.5, exclude=("wide",))
    rest = [block.entries for name, block in LAYOUT.items() if name not in ("tall", "filters")]
    gathered = [np.concatenate([vector[part] for part in rest]) for vector in (PARAMS, *GRADIENTS)]
    alone = nw.Momentum(0.5)
    alone.start(gathered[0])
    params = gathered[0]
    for gradient in gathered[1:]:
        out = np.empty_like(params)
        alone.apply(params, gradient, 0.05, out)
        params = out
    found = steps(update)[-1]
    assert np.array_equal(np.concatenate([found[part] for part in rest]), params)


@pytest.mark.parametrize("update", [nw.LMO("spectral"), nw.Muon()], ids=lambda update: type(update).__name__)
def test_tensors_and_arrays_take_the_same_steps_and_state_goes_from_one_to_the_other(update):
    memory, expected = TorchMemory("cpu"), steps(update)[-1]
    middle = steps(update, gradients=GRADIENTS[:2])[-1]
    state = copies(update.state())
    params = memory.from_host(middle)
    update.start_with_layout(params, LAYOUT)
    update.restore(state)
    for gradient in GRADIENTS[2:]:
        out = torch.empty_like(params)
        update.apply(params, memory.from_host(gradient), 0.1, out)
        params = out
    np.testing.assert_allclose(params, expected, atol=1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nw.LMO("round"), "ball must be one of 'euclidean', 'sign', 'spectral', got 'round'"),
        (lambda: nw.LMO(beta=1.0), "beta must be"),
        (lambda: nw.LMO(newton_schulz_steps=0), "newton_schulz_steps must be"),
        (lambda: nw.Muon(adjust="rms"), "adjust must be one of 'original', 'match_rms_adamw'"),
        (lambda: nw.Muon(rest=0.1), "rest must be"),
        (lambda: nw.Muon(exclude="head"), "exclude must be names of tensors"),
        (lambda: nw.Muon(exclude=3), "exclude must be names of tensors"),
        (lambda: nw.Muon(weight_decay=-1.0), "weight_decay must be"),
        (lambda: nw.Muon(exclude=["head"]).check(LAYOUT), "exclude names 'head', but the tensors are tall, bias"),
    ],
)
def test_wrong_options_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_a_model_with_batch_normalisation_trains_resumes_and_replays(tmp_path):
    def build():
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    inputs = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(inputs, inputs[:, :3].argmax(1))
    problem, method = TorchProblem(build, cross_entropy, data, batch_size=16), nw.AsynchronousSGD(0.02)
    options = {"workers": 2, "update": nw.Muon(exclude=("3.weight",)), "folder": tmp_path / "run"}
    first = nw.train(problem, method, steps=15, **options)
    run = nw.resume(tmp_path / "run", problem, steps=30, update=nw.Muon(exclude=("3.weight",)))
    assert run.history.loss[-1] < first.history.loss[0]
    again = nw.replay(run.trace, problem, method, update=nw.Muon(exclude=("3.weight",)))
    assert np.array_equal(again.last, run.last)
