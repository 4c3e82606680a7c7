"""Evaluations of PyTorch models: seeds, metrics, the loss of validation, the best model, and params from elsewhere."""

import random

import numpy as np
import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, TensorDataset

import nowait as nw
from nowait.core import sampler
from nowait.pytorch import TorchProblem
from nowait.pytorch.evaluation import WeightedMeans
from nowait.recording.best import BestFile, checked_keep_best
from nowait.testing import train_scripted

INPUTS = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] > 0).long()
DATA = TensorDataset(INPUTS, TARGETS)
METHOD = nw.AsynchronousSGD(nw.Constant(0.2))


class Noisy(nn.Module):
    """Adds noise in evaluation mode too, as a variational autoencoder does."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 2)

    def forward(self, inputs):
        hidden = self.first(inputs)
        return self.last(hidden + torch.randn_like(hidden))


class NoisyData(Dataset):
    """Items that draw from the generators of NumPy and ``random``."""

    def __len__(self):
        return len(DATA)

    def __getitem__(self, place):
        inputs, target = DATA[place]
        return inputs + np.random.normal() + random.random(), target  # noqa: NPY002 (as data sets of users do)


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean()


def smooth(output, target):
    return cross_entropy(output, target, label_smoothing=0.2)


def a_problem(build=Noisy, loss=cross_entropy, **options):
    return TorchProblem(build, loss, DATA, **({"batch_size": 8, "metrics": {"accuracy": accuracy}} | options))


def plain():
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def states():
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002


def test_evaluations_are_seeded_and_leave_the_users_generators_alone():
    problem = a_problem(validation=NoisyData())
    point, before = problem.initial(), states()
    evaluations = [problem.evaluate(point) for _ in range(2)]
    assert evaluations[0] == evaluations[1]
    assert problem.loss(point) == evaluations[0]["loss"]
    assert states() == before
    torch.manual_seed(5)
    assert problem.evaluate(point) == evaluations[0]
    torch.set_rng_state(torch.tensor(before[0], dtype=torch.uint8))


def test_two_simulations_of_one_seed_have_one_history():
    first, second = (nw.simulate(a_problem(), METHOD, nw.speeds.Fixed([1, 2]), steps=20) for _ in range(2))
    assert np.array_equal(first.history.loss, second.history.loss)
    for name in ("accuracy", "training_loss"):
        assert np.array_equal(first.history.metrics[name], second.history.metrics[name], equal_nan=True)


def test_the_loss_of_validation_may_be_another_one():
    problem, plain_problem = a_problem(plain, smooth, validation_loss=cross_entropy), a_problem(plain)
    point = problem.initial()
    assert problem.loss(point) == plain_problem.loss(point) != a_problem(plain, smooth).loss(point)
    sample = sampler(0).sample(0, 3)
    assert np.array_equal(problem.gradient(point, sample), a_problem(plain, smooth).gradient(point, sample))
    with pytest.raises(TypeError, match="validation_loss must be a function"):
        a_problem(validation_loss=0.5)
    with pytest.raises(ValueError, match="no metric may be called 'step'"):
        a_problem(metrics={"step": accuracy})


def test_the_training_loss_is_that_of_the_batches_of_the_gradient():
    losses = []

    def remembered(output, target):
        loss = cross_entropy(output, target)
        losses.append(loss.item())
        return loss

    problem = a_problem(plain, remembered, accumulate=3)
    assert problem.training_loss() is None
    for job in range(2):
        losses.clear()
        problem.gradient(problem.initial(), sampler(0).sample(0, job))
        assert problem.training_loss() == sum(losses) / 3


@pytest.mark.parametrize("monitor", ["accuracy", "loss"])
def test_the_best_model_is_the_one_that_was_evaluated(tmp_path, monitor):
    problem = a_problem(plain)
    best = BestFile(tmp_path / "best.safetensors", checked_keep_best(monitor))
    run = train_scripted(problem, METHOD, workers=3, steps=40, evaluate_every=7, best=best)
    model = plain()
    load_model(model, best.path)
    found = problem.evaluate(problem.params_of(model))
    values = run.history.loss if monitor == "loss" else run.history.metrics["accuracy"]
    assert found[monitor] == (values.min() if monitor == "loss" else values.max())


# Params from elsewhere


def sources(problem, params, folder):
    """Every form in which params can be given."""
    model = problem.model(params)
    save_model(model, str(folder / "model.safetensors"))
    return [model, model.state_dict(), folder / "model.safetensors", str(folder / "model.safetensors"), params]


def test_a_run_starts_from_a_model_a_state_dict_or_a_file(tmp_path):
    problem = a_problem(plain)
    start = problem.initial() * np.float32(0.5)
    start[-1] = 1.0  # after the statistics
    for source in sources(problem, start, tmp_path):
        run = nw.simulate(problem, METHOD, nw.speeds.Fixed([1.0]), steps=1, initial=source)
        assert run.history.loss[0] == problem.loss(start)
    saved = nw.simulate(problem, METHOD, nw.speeds.Fixed([1.0]), steps=5).save(tmp_path / "run")
    again = nw.simulate(problem, METHOD, nw.speeds.Fixed([1.0]), steps=1, initial=saved / "params.safetensors")
    assert again.history.loss[0] == problem.loss(nw.load(saved).params)


def test_problems_of_numpy_start_from_the_files_of_a_run(tmp_path):
    problem = nw.problems.NoisyQuadratic(dimension=4)
    run = nw.simulate(problem, METHOD, nw.speeds.Fixed([1.0]), steps=5)
    path = run.save(tmp_path / "run") / "params.safetensors"
    again = nw.simulate(problem, METHOD, nw.speeds.Fixed([1.0]), steps=1, initial=str(path))
    assert again.history.loss[0] == problem.loss(run.params)
    with pytest.raises(TypeError, match="has no model"):
        run.model()


class WithFrozenBase(nn.Module):
    """Tied weights and a frozen base."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(5, 5).requires_grad_(False)
        self.one, self.two = nn.Linear(5, 5), nn.Linear(5, 5)
        self.two.weight = self.one.weight
        self.last = nn.Linear(5, 2)

    def forward(self, inputs):
        return self.last(self.two(self.one(self.base(inputs)).relu()))


def test_tied_weights_may_be_stored_once_and_a_frozen_base_must_be_the_same(tmp_path):
    problem = a_problem(WithFrozenBase)
    start = problem.initial() * np.float32(0.5)
    model = problem.model(start)
    save_model(model, str(tmp_path / "model.safetensors"))  # which stores tied weights once
    assert np.array_equal(problem.params_of(tmp_path / "model.safetensors"), start)
    assert np.array_equal(problem.params_of(model), start)
    nn.init.zeros_(model.base.weight)
    with pytest.raises(ValueError, match=r"has another base.weight, which is not trained .* load it in build_model"):
        problem.params_of(model)


class WithUnsavedMean(nn.Module):
    """Follows the mean of its inputs in a buffer that is in no state dict."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(5, 2)
        self.register_buffer("mean", torch.zeros(5), persistent=False)

    def forward(self, inputs):
        if self.training:
            self.mean.lerp_(inputs.mean(0), 0.1)
        return self.last(inputs - self.mean)


def test_statistics_that_are_in_no_state_dict_are_taken_from_models_and_vectors(tmp_path, caplog):
    problem = a_problem(WithUnsavedMean)
    assert "training changes the buffer mean, which is registered with persistent=False" in caplog.text
    start = problem.initial() + np.float32(0.5)
    start[-1] = 1.0
    assert np.array_equal(problem.params_of(problem.model(start)), start)
    caplog.clear()
    problem.write_files(start, tmp_path)
    found = problem.params_of(tmp_path / "model.safetensors")
    assert np.array_equal(found[:12], start[:12])
    assert np.array_equal(found[12:], [0, 0, 0, 0, 0, 1])
    assert "model files have no mean, which is registered with persistent=False" in caplog.text


def test_sweeps_start_from_models_and_files_too(tmp_path):
    problem = a_problem(lambda: nn.Linear(5, 2))
    start = problem.initial() * np.float32(0.5)
    problem.write_files(start, tmp_path)
    for initial in (problem.model(start), tmp_path / "model.safetensors"):
        found = nw.sweep(
            problem,
            nw.AsynchronousSGD(nw.Constant(0.1)),
            nw.speeds.Fixed([1.0]),
            stepsizes=[0.1],
            steps=1,
            initial=initial,
        )
        assert found.curves[0, 0, 0] == problem.loss(start)


def test_params_of_another_model_are_refused(tmp_path):
    problem = a_problem(plain)
    state = problem.model(problem.initial()).state_dict()
    wrong = [
        (state | {"more": torch.ones(1)}, ValueError, "an unknown more"),
        ({name: tensor for name, tensor in state.items() if name != "0.bias"}, ValueError, "it has no 0.bias"),
        (state | {"0.bias": torch.ones(7)}, ValueError, "of another model"),
        ({"params": torch.ones(3)}, ValueError, "params of another problem"),
        (tmp_path / "none.safetensors", FileNotFoundError, "there is no such file"),
        (3.5, TypeError, "initial must be a vector, a state dict"),
    ]
    for source, error, message in wrong:
        with pytest.raises(error, match=message):
            nw.simulate(problem, METHOD, nw.speeds.Fixed([1.0]), steps=1, initial=source)
    (tmp_path / "damaged.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"cannot be read as a safetensors file .* torch\.load"):
        problem.params_of(tmp_path / "damaged.safetensors")


def test_a_run_returns_its_model(tmp_path):
    problem = a_problem(plain)
    run = nw.simulate(problem, METHOD, nw.speeds.Fixed([1.0]), steps=5)
    model = run.model()
    assert not model.training
    assert np.array_equal(problem.params_of(model), run.params)
    loaded = nw.load(run.save(tmp_path / "run"))
    assert np.array_equal(problem.params_of(loaded.model(problem)), run.params)
    with pytest.raises(ValueError, match=r"write run.model\(problem\)"):
        loaded.model()


class OfABrokenGpu:
    def __float__(self):
        raise RuntimeError("CUDA error: device-side assert triggered")


def test_errors_of_a_gpu_are_not_taken_for_wrong_values():
    means = WeightedMeans()
    with pytest.raises(RuntimeError, match="device-side assert"):
        means.add("loss", OfABrokenGpu(), 1.0)
    with pytest.raises(TypeError, match=r"loss of a batch must be a number .* got a Tensor of shape \(2,\)"):
        means.add("loss", torch.ones(2), 1.0)
    with pytest.raises(TypeError, match=r"loss of a batch must be a number .* got a str"):
        means.add("loss", "low", 1.0)
