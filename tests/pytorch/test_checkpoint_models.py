"""``model.safetensors``: in every checkpoint, written from params without a model, and the only place of params."""

import json
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_model
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import nowait as nw
from forked_zygotes import children
from nowait.core import Server
from nowait.engines import keeper
from nowait.engines.keeper import checkpoint_of
from nowait.pytorch import TorchMemory, TorchOptimizer, TorchProblem
from nowait.pytorch.compiled_names import use_plain_names
from nowait.recording import HistoryRecorder, TraceRecorder
from nowait.recording.checkpoints import CheckpointFolder
from nowait.recording.errors import DamagedFileError
from nowait.recording.folder import RunFolder

INPUTS = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(INPUTS, (INPUTS[:, 0] > 0).long())
METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(0.05))


class Tied(nn.Module):
    """Two layers with the same parameters, and batch normalisation."""

    def __init__(self):
        super().__init__()
        self.second = self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 2)

    def forward(self, inputs):
        return self.last(self.norm(self.second(self.first(inputs).relu())))


class Compiled(nn.Module):
    """A model with the names that ``torch.compile`` gives."""

    def __init__(self):
        super().__init__()
        self._orig_mod = Tied()

    def forward(self, inputs):
        return self._orig_mod(inputs)


class Precise(nn.Linear):
    """A layer with a buffer that training changes, of another dtype than the parameters."""

    def __init__(self):
        super().__init__(4, 2)
        self.register_buffer("calls", torch.zeros(2, dtype=torch.float64))

    def forward(self, inputs):
        if self.training:
            self.calls += 1.0
        return super().forward(inputs)


class WithMore(nn.Linear):
    """A layer whose state dict has something else than tensors."""

    def get_extra_state(self):
        return {"version": 1}

    def set_extra_state(self, state):
        pass


def frozen_part():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].bias.requires_grad_(False)
    return model


def mostly_frozen():
    model = nn.Sequential(nn.Linear(4, 40), nn.Linear(40, 2))
    model[0].requires_grad_(False)
    return model


def odd_sizes():
    return nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 2))


def half():
    return nn.Linear(4, 2).to(torch.bfloat16)


def a_problem(build, kind=TorchProblem, **options):
    def forward(model, batch):
        return model(batch[0].to(next(model.parameters()).dtype)).float(), batch[1]

    return kind(build, cross_entropy, DATA, batch_size=8, forward=forward, **options)


def some_params(problem):
    return (problem.initial() + np.linspace(0.1, 0.2, problem.dimension)).astype(problem.initial().dtype)


def metadata_of(path):
    with safe_open(path, framework="pt") as file:
        return file.metadata()


def is_aligned(path):
    """Return True if every tensor in a file starts at a multiple of the size of its entries."""
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    sizes = {name: tensor.element_size() for name, tensor in load_file(path).items()}
    return all(header[name]["data_offsets"][0] % size == 0 for name, size in sizes.items())


@pytest.mark.parametrize("build", [Tied, Compiled, Precise, odd_sizes, frozen_part, half, mostly_frozen])
def test_the_file_is_that_of_save_model(build, tmp_path):
    problem = a_problem(build)
    params = some_params(problem)
    problem.write_model(params, tmp_path / "ours", {"step": "3"})
    model = problem.model(params)
    use_plain_names(model)
    save_model(model, str(tmp_path / "theirs"), {"step": "3"})
    ours, theirs = load_file(tmp_path / "ours"), load_file(tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype
        assert torch.equal(tensor, theirs[name])
    assert metadata_of(tmp_path / "ours") == metadata_of(tmp_path / "theirs")
    assert is_aligned(tmp_path / "ours")


def test_a_problem_that_was_pickled_writes_the_same_file(tmp_path):
    import cloudpickle

    problem = a_problem(Tied)
    params = some_params(problem)
    problem.write_model(params, tmp_path / "here", {})
    cloudpickle.loads(cloudpickle.dumps(problem)).write_model(params, tmp_path / "there", {})
    assert (tmp_path / "here").read_bytes() == (tmp_path / "there").read_bytes()


# Checkpoints


def a_checkpoint(problem, folder, model_file):
    """Write a checkpoint of AdamW after no step, at params of which every entry is another number; return params."""
    params, update = some_params(problem), TorchOptimizer(torch.optim.AdamW)
    recorder = TraceRecorder([0])
    server = Server(
        METHOD, params, 1, update=update, log=recorder, statistics=problem.num_statistics, layout=problem.layout
    )
    (folder / "checkpoints").mkdir()
    written = CheckpointFolder(folder / "checkpoints", keep=1).write(
        checkpoint_of(server.initial_state(), recorder, [0], HistoryRecorder(), model_file), lambda: None
    )
    assert written is not None
    return written.path, params


def read(path):
    return CheckpointFolder(path.parent, keep=1).read(0).state.params


@pytest.mark.parametrize("build", [Tied, Compiled, Precise, frozen_part])
def test_params_are_in_the_model_only_and_come_back_bit_for_bit(build, tmp_path):
    problem = a_problem(build)
    path, params = a_checkpoint(problem, tmp_path, problem.checkpoint_model())
    vectors = load_file(path / "state.safetensors")
    assert "params" not in vectors
    assert len(vectors["params_rest"]) <= 3
    assert np.array_equal(read(path), params)
    CheckpointFolder(path.parent, keep=1).remove_all()
    assert not path.parent.exists()


def test_params_of_a_model_in_half_precision_are_kept_beside_it(tmp_path):
    problem = a_problem(half)
    path, params = a_checkpoint(problem, tmp_path, problem.checkpoint_model())
    assert load_file(path / "model.safetensors")["weight"].dtype == torch.bfloat16
    assert np.array_equal(read(path), params)
    (path / "model.safetensors").unlink()
    with pytest.raises(DamagedFileError, match=r"model\.safetensors is damaged: it is missing"):
        read(path)


@pytest.mark.parametrize("build", [mostly_frozen, lambda: WithMore(4, 2)])
def test_some_models_are_not_in_checkpoints(build, tmp_path):
    problem = a_problem(build)
    assert problem.checkpoint_model() is None
    path, params = a_checkpoint(problem, tmp_path, None)
    assert sorted(file.name for file in path.iterdir()) == ["state.json", "state.safetensors"]
    assert "model" not in json.loads((path / "state.json").read_text())
    assert np.array_equal(read(path), params)


class WithUnsavedBuffer(nn.Linear):
    """A layer with a buffer that training changes and that is in no state dict."""

    def __init__(self):
        super().__init__(4, 2)
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def forward(self, inputs):
        if self.training:
            self.mean.lerp_(inputs.mean(0), 0.1)
        return super().forward(inputs - self.mean)


def test_the_state_of_a_checkpoint_has_buffers_that_are_in_no_state_dict(tmp_path):
    problem = a_problem(WithUnsavedBuffer)
    path, params = a_checkpoint(problem, tmp_path, problem.checkpoint_model())
    assert "mean" not in load_file(path / "model.safetensors")
    assert np.array_equal(problem.params_of(path / "state.safetensors"), params)


def test_params_are_read_from_either_file_of_a_checkpoint(tmp_path):
    problem = a_problem(frozen_part)
    path, params = a_checkpoint(problem, tmp_path, problem.checkpoint_model())
    for name in ("model.safetensors", "state.safetensors"):
        assert np.array_equal(problem.params_of(path / name), params)


def test_a_part_of_a_checkpoint_without_the_rest_is_refused(tmp_path):
    problem = a_problem(frozen_part)
    path, _ = a_checkpoint(problem, tmp_path, problem.checkpoint_model())
    (path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"pass the model\.safetensors that was beside it"):
        problem.params_of(path / "state.safetensors")


# Runs


class OnTensors(TorchProblem):
    """A problem whose params are tensors, as they are on a GPU."""

    def device_memory(self):
        return TorchMemory("cpu")


class Params(nw.Callback):
    """Records the params at every checkpoint, and the processes started since at every evaluation."""

    def __init__(self):
        self.at, self.children = {}, {}
        self.before = self.processes()

    def processes(self):
        return set(children()) if sys.platform == "linux" else set()

    def on_step(self, control):
        self.at[control.steps] = np.array(control.params)

    def on_evaluate(self, control):
        self.children[control.steps] = self.processes() - self.before


def test_every_checkpoint_of_a_run_has_the_model(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(keeper, "BACKGROUND_BYTES", 1)  # a thread writes all but the first and the last one
    problem, seen = a_problem(Tied, OnTensors), Params()
    options = {"update": TorchOptimizer(torch.optim.AdamW), "folder": tmp_path / "run", "callbacks": [seen]}
    run = nw.train(
        problem, METHOD, workers=1, steps=30, evaluate_every=10, checkpoint_every=10, keep_checkpoints=9, **options
    )
    folders = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert {"step_0", "step_30"} < {folder.name for folder in folders}
    for folder in folders:
        model = Tied()
        load_model(model, folder / "model.safetensors")
        params = seen.at.get(int(folder.name.removeprefix("step_")), problem.initial())
        for tensor, other in zip(model.state_dict().values(), problem.model(params).state_dict().values(), strict=True):
            assert torch.equal(tensor, other)
    assert not seen.children[30], "workers end before the last params are evaluated"
    assert run.params is run.last

    newest = tmp_path / "run" / "checkpoints" / "step_30" / "model.safetensors"
    data = newest.read_bytes()
    newest.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    latest = RunFolder(tmp_path / "run", 9, run.config["run"]).latest()
    assert "step_30/model.safetensors is damaged: its checksum differs" in caplog.text
    assert latest.state.steps < 30
    assert np.array_equal(latest.state.params, seen.at.get(latest.state.steps, problem.initial()))


def test_a_run_in_host_memory_is_resumed_from_its_model_with_its_optimiser(tmp_path):
    problem, folder, update = a_problem(Tied), tmp_path / "run", TorchOptimizer(torch.optim.AdamW, betas=(0.5, 0.9))
    nw.train(problem, METHOD, workers=1, steps=20, update=update, folder=folder, checkpoint_every=5)
    resumed = nw.resume(folder, problem, steps=30)
    assert resumed.stats.steps == 30
    replayed = nw.replay(resumed.trace, problem, METHOD, update=update)
    assert np.array_equal(replayed.last, resumed.last), "as if it had not been interrupted"


def mixed():
    return nn.Sequential(nn.Linear(4, 6).to(torch.bfloat16), ToFloat(), nn.BatchNorm1d(6), nn.Linear(6, 2))


class ToFloat(nn.Module):
    def forward(self, inputs):
        return inputs.float()


def half_with_statistics():
    return nn.Sequential(nn.Linear(4, 2).to(torch.bfloat16), ToFloat(), nn.BatchNorm1d(2, affine=False))


def partly_frozen_in_half():
    model = nn.Sequential(nn.Linear(4, 2).to(torch.bfloat16), ToFloat(), nn.Linear(2, 40), nn.Linear(40, 2))
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize("build", [half_with_statistics, partly_frozen_in_half])
def test_params_beside_tensors_that_numpy_cannot_read_come_back_bit_for_bit(build, tmp_path):
    problem = a_problem(build)
    assert problem.checkpoint_model() is not None
    path, params = a_checkpoint(problem, tmp_path, problem.checkpoint_model())
    assert np.array_equal(read(path), params)


def test_params_of_a_model_with_several_dtypes_come_back_bit_for_bit(tmp_path):
    problem = a_problem(mixed)
    path, params = a_checkpoint(problem, tmp_path, problem.checkpoint_model())
    tensors = load_file(path / "model.safetensors")
    assert (tensors["0.weight"].dtype, tensors["3.weight"].dtype) == (torch.bfloat16, torch.float32)
    assert np.array_equal(read(path), params)
