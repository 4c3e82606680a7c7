"""Models that are compiled, checkpoint their activations or use another memory format compute the same."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from nowait.core import sampler
from nowait.engines.fingerprint import Fingerprint, Match
from nowait.pytorch import TorchProblem

INPUTS = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(INPUTS, (INPUTS.mean(dim=(1, 2, 3)) > 0).long())
SAMPLES = [sampler(0).sample(0, job) for job in range(3)]


class Net(nn.Module):
    def __init__(self, reentrant=None, dropout=0.2):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Dropout(dropout))
        self.norm, self.head, self.reentrant = nn.BatchNorm2d(4), nn.Linear(4, 2), reentrant

    def forward(self, inputs):
        if self.reentrant is None:
            features = self.features(inputs)
        else:
            features = checkpoint(self.features, inputs.requires_grad_(), use_reentrant=self.reentrant)
        return self.head(self.norm(features).mean(dim=(2, 3)))


def a_problem(build, **options):
    return TorchProblem(build, cross_entropy, DATA, batch_size=8, **options)


def test_batch_norm_does_not_hide_other_data_or_another_activation():
    """Its running statistics are many times larger than the first gradient, and hardly depend on either."""

    def print_of(activation, data):
        def make():
            return nn.Sequential(nn.Conv2d(3, 4, 3), activation(), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))

        return Fingerprint.of(TorchProblem(make, cross_entropy, data, batch_size=8))

    own = print_of(nn.ReLU, DATA)
    other_data = TensorDataset(INPUTS.flip(3) + 0.1 * INPUTS, DATA.tensors[1])
    assert own.compare(print_of(nn.ReLU, DATA), deterministic=True) is Match.SAME
    for other in (print_of(nn.GELU, DATA), print_of(nn.Tanh, DATA), print_of(nn.ReLU, other_data)):
        assert own.compare(other, deterministic=True) is Match.OTHER


def gradients(problem):
    points = [problem.initial() * scale for scale in (1.0, 0.5, 1.0)]  # the memory of params is another each time
    return [problem.gradient(point, sample) for point, sample in zip(points, SAMPLES, strict=True)]


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_the_same_bits_with_dropout(reentrant):
    assert np.array_equal(gradients(a_problem(lambda: Net(reentrant))), gradients(a_problem(Net)))


def test_models_in_channels_last_have_the_same_gradients():
    def forward(model, batch):
        return model(batch[0].to(memory_format=torch.channels_last)), batch[1]

    problem = a_problem(lambda: Net(dropout=0.0).to(memory_format=torch.channels_last), forward=forward)
    plain = a_problem(lambda: Net(dropout=0.0))  # the masks of dropout depend on the order of memory
    assert np.array_equal(problem.initial(), plain.initial())
    np.testing.assert_allclose(gradients(problem), gradients(plain), rtol=1e-3, atol=1e-6)


def compiled():
    return torch.compile(Net(), backend="eager")


def compiled_inside():
    model = Net()
    model.features = torch.compile(model.features, backend="eager")
    return model


@pytest.mark.parametrize("build", [compiled, compiled_inside])
def test_compiled_models_have_the_same_gradients_and_are_saved_under_their_own_names(build, tmp_path):
    from safetensors.torch import load_model

    problem, plain = a_problem(build), a_problem(Net)
    np.testing.assert_allclose(gradients(problem), gradients(plain), rtol=1e-4, atol=1e-6)
    assert problem.loss(problem.initial()) == pytest.approx(plain.loss(plain.initial()), rel=1e-5)
    problem.write_files(problem.initial(), tmp_path)
    assert np.array_equal(problem.params_of(tmp_path / "model.safetensors"), problem.initial())
    assert np.array_equal(plain.params_of(problem.model(problem.initial())), problem.initial())
    model = Net()
    load_model(model, tmp_path / "model.safetensors")
    assert np.array_equal(model.head.weight.detach(), plain.model(plain.initial()).head.weight.detach())
