"""Training with params and gradients as tensors that processes share: of the processor everywhere, and on a GPU."""

import os
import random
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_model
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.core import sampler
from nowait.fleet.wire.shared import SharedSlots, shared_slots
from nowait.pytorch import TorchMemory, TorchOptimizer, TorchProblem, process
from nowait.pytorch.cuda_runtime import clear_memory_errors
from nowait.pytorch.rng import seeded
from nowait.pytorch.threads import torch_threads

INPUTS = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] > 0).long() + (INPUTS[:, 1] > 0).long()
METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(0.2))
GPU_MARKS = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")]
ON_GPU = pytest.param("cuda", marks=GPU_MARKS)


def on_gpu(test):
    """Mark a test that needs a GPU."""
    for mark in GPU_MARKS:
        test = mark(test)
    return test


class OnTensors(TorchProblem):
    """A problem whose params are tensors even on the processor, as they are on a GPU."""

    def device_memory(self):
        return TorchMemory("cpu") if self._devices[0].type == "cpu" else super().device_memory()


def test_kernels_of_a_gpu_may_be_others_when_a_run_is_resumed(tmp_path, caplog):
    def scaled(factor):
        build, data = seeded_linear, TensorDataset(INPUTS, TARGETS)
        return OnTensors(build, lambda output, target: factor * cross_entropy(output, target), data, batch_size=8)

    nw.train(scaled(1.0), METHOD, workers=1, steps=2, folder=tmp_path / "run")
    assert nw.resume(tmp_path / "run", scaled(1.05), steps=3).stats.steps == 3
    assert "the problem may not be the one of" in caplog.text


def seeded_linear():
    return nn.Linear(6, 3)


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean()


class Deadly(nn.Linear):
    """A layer that kills its process once a file with this name can be created."""

    def __init__(self, inputs, outputs, mark):
        super().__init__(inputs, outputs)
        self.mark = mark

    def forward(self, inputs):
        import os
        import signal

        if self.training and self.mark is not None and torch.rand(()) < 0.2:
            try:
                os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(inputs)


def a_problem(device, kind=OnTensors, mark=None, **options):
    def build():
        return nn.Sequential(Deadly(6, 16, mark), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))

    return kind(build, cross_entropy, TensorDataset(INPUTS, TARGETS), batch_size=8, device=device, **options)


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_a_killed_worker_is_replaced_and_the_run_replays_and_has_the_losses_of_its_iterates(device, tmp_path, caplog):
    problem = a_problem(device, mark=str(tmp_path / "killed"))
    run = nw.train(problem, METHOD, workers=2, steps=60, evaluate_every=20, update=nw.Sgd(), output=nw.UniformAverage())
    assert (tmp_path / "killed").exists()
    assert run.stats.lost == 1
    replayed = nw.replay(run.trace, problem, METHOD, update=nw.Sgd(), output=nw.UniformAverage())
    assert np.array_equal(replayed.last, run.last)
    assert np.array_equal(replayed.params, run.params)
    assert run.history.loss[-1] == pytest.approx(problem.loss(run.last), rel=1e-6)
    assert run.history.loss[-1] < run.history.loss[0]


def test_params_as_tensors_give_the_bits_of_params_as_arrays():
    run = nw.train(a_problem("cpu"), METHOD, workers=1, steps=50, update=nw.Sgd())
    on_host = nw.simulate(a_problem("cpu", TorchProblem), METHOD, nw.speeds.Fixed([1.0]), steps=50, update=nw.Sgd())
    assert np.array_equal(on_host.last, run.last)


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_a_run_is_resumed_with_the_state_of_its_optimiser_and_keeps_its_best_params(device, tmp_path):
    def cut(control):
        if control.steps == 33:
            raise RuntimeError("imagine a power cut")

    def groups(name, parameter):
        return {"optimizer": torch.optim.AdamW, "betas": (0.5, 0.9)} if parameter.ndim < 2 else {"momentum": 0.9}

    problem, method = a_problem(device, metrics={"accuracy": accuracy}), nw.RennalaSGD(nw.Constant(0.01), batch=2)
    update = TorchOptimizer(torch.optim.Muon, groups=groups)
    options = {"update": update, "folder": tmp_path / "run", "checkpoint_every": 10}
    options |= {"evaluate_every": 10, "keep_best": "loss"}
    with pytest.raises(RuntimeError, match="power cut"):
        nw.train(problem, method, workers=2, steps=50, callbacks=[cut], **options)
    run = nw.resume(tmp_path / "run", problem)
    assert run.config["update"]["groups"]["0.bias"] == {"optimizer": "AdamW", "betas": [0.5, 0.9]}
    assert run.stats.steps == 50
    replayed = nw.replay(run.trace, problem, method, update=update)
    assert np.array_equal(replayed.last, run.last)
    assert run.history.metrics["accuracy"][-1] > run.history.metrics["accuracy"][0]
    assert np.isfinite(run.history.metrics["training_loss"]).any()
    best = problem.params_of(tmp_path / "run" / "best.safetensors")  # perhaps of a step that was repeated
    assert problem.loss(best) <= run.history.loss.min() * (1 + 1e-6)


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_gradients_of_tensors_are_those_of_arrays_and_are_written_in_place(device):
    problem, sample = a_problem(device), sampler(0).sample(1, 3)
    expected = problem.gradient(problem.initial(), sample)
    memory = problem.device_memory()
    point, out = (memory.from_host(problem.initial()) for _ in range(2))
    problem.gradient_into(point, sample, out)
    assert np.array_equal(memory.to_host(out), expected)
    assert np.array_equal(memory.to_host(point), problem.initial()), "buffers are written to the gradient, not here"


def test_slots_of_another_process_are_the_same_memory():
    memory = TorchMemory("cpu")
    ours = shared_slots(memory, 5, np.float32)
    first, second = ours.allocate(), ours.allocate()
    theirs = shared_slots(memory, 5, "<f4", ours.fd)
    first.fill_(1.0)
    second.fill_(2.0)
    assert theirs[1].tolist() == [2.0] * 5
    assert theirs[0].tolist() == [1.0] * 5
    assert theirs.views[0].dtype == torch.float32
    theirs.fd = -1  # the file is ours
    ours.close()


def test_slots_of_the_host_are_arrays():
    slots = shared_slots(None, 3, np.float64)
    assert isinstance(slots, SharedSlots)
    slots.close()


# Mixed precision


def test_autocast_computes_in_bfloat16_and_params_stay_float32():
    problem = a_problem("cpu", TorchProblem, autocast="bfloat16")
    exact = a_problem("cpu", TorchProblem)
    sample = sampler(0).sample(0, 0)
    rough, gradient = problem.gradient(problem.initial(), sample), exact.gradient(exact.initial(), sample)
    assert rough.dtype == np.float32
    assert np.linalg.norm(rough - gradient) < 0.05 * np.linalg.norm(gradient)
    assert not np.array_equal(rough, gradient)
    assert problem.loss(problem.initial()) == pytest.approx(exact.loss(exact.initial()), rel=0.05)


def test_a_model_in_half_precision_is_trained_with_params_in_float32():
    def build():
        return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).to(torch.bfloat16)

    problem = TorchProblem(
        build,
        lambda output, target: cross_entropy(output.float(), target),
        TensorDataset(INPUTS.to(torch.bfloat16), TARGETS),
        batch_size=8,
    )
    method = nw.AsynchronousSGD(nw.DelayAdaptive(0.1))
    run = nw.simulate(problem, method, nw.speeds.Fixed([1.0, 3.0]), steps=300, update=nw.Sgd())
    assert run.params.dtype == np.float32
    assert run.history.loss[-1] < 0.7 * run.history.loss[0]
    tensor = torch.from_numpy(run.last.copy())
    assert not torch.equal(tensor, tensor.to(torch.bfloat16).float()), "params have more digits than the model"
    assert problem.model(run.params)[0].weight.dtype == torch.bfloat16


class MixedModel(nn.Module):
    """Matrices in bfloat16, normalisation and output in float32: as language models are often loaded."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 16).to(torch.bfloat16), nn.BatchNorm1d(16)
        self.second, self.output = nn.Linear(16, 8).half(), nn.Linear(8, 3)

    def forward(self, inputs):
        hidden = self.norm(self.first(inputs.to(torch.bfloat16)).float())
        return self.output(self.second(hidden.relu().half()).float())


def a_mixed_problem(device="cpu", **options):
    return TorchProblem(
        MixedModel, cross_entropy, TensorDataset(INPUTS, TARGETS), batch_size=8, device=device, **options
    )


@pytest.mark.parametrize("vectors", [np.asarray, torch.from_numpy])
def test_gradients_of_a_model_with_several_dtypes_are_those_of_plain_pytorch(vectors):
    problem = a_mixed_problem()
    params, sample = problem.initial() * np.float32(1.001), sampler(0).sample(0, 3)
    assert params.dtype == np.float32
    gradient = problem.gradient(vectors(params), sample)

    model = problem.model(params).train()
    assert [parameter.dtype for parameter in model.parameters()] == [
        *[torch.bfloat16] * 2,
        *[torch.float32] * 2,
        *[torch.float16] * 2,
        *[torch.float32] * 2,
    ]
    inputs, targets = problem._batches.draw(sample, 0, 1)
    with torch_threads(1):
        cross_entropy(model(inputs), targets).backward()
    expected = torch.cat([parameter.grad.float().ravel() for parameter in model.parameters()])
    assert torch.equal(torch.as_tensor(gradient)[: len(expected)], expected)


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_a_model_with_several_dtypes_trains_and_replays(device, tmp_path):
    problem = a_mixed_problem(device, clip_norm=1.0)
    run = nw.train(problem, METHOD, workers=2, steps=200, update=nw.Sgd(), folder=tmp_path / "run")
    assert run.history.loss[-1] < 0.8 * run.history.loss[0]
    assert np.array_equal(nw.replay(run.trace, problem, METHOD, update=nw.Sgd()).params, run.params)
    trained = problem.initial()[: problem.layout.length]
    assert not np.array_equal(run.params[: len(trained)], trained)
    model = MixedModel()
    load_model(model, tmp_path / "run" / "model.safetensors")
    assert torch.equal(model.norm.running_mean, problem.model(run.params).norm.running_mean)
    assert torch.equal(model.first.weight, problem.model(run.params).first.weight)


def test_a_model_that_gets_another_dtype_later_is_named():
    kinds = iter([torch.float32, torch.float32, torch.float64])
    problem = TorchProblem(
        lambda: nn.Linear(6, 3).to(next(kinds)), cross_entropy, TensorDataset(INPUTS, TARGETS), batch_size=8
    )
    with pytest.raises(
        ValueError, match=r"whose weight is torch\.float64, but torch\.float32 when the problem was made"
    ):
        problem.gradient(np.zeros(problem.dimension, np.float32), sampler(0).sample(0, 0))


class Counting(nn.Module):
    """Counts its batches in a buffer of float32."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.full((1,), 300.0))

    def forward(self, inputs):
        if self.training:
            self.count += 1
        return inputs


def test_statistics_of_a_model_in_half_precision_keep_their_own_precision():
    def build():
        return nn.Sequential(nn.Linear(6, 3).to(torch.bfloat16), Counting())

    def loss(output, target):
        return cross_entropy(output.float(), target)

    problem = TorchProblem(build, loss, TensorDataset(INPUTS.to(torch.bfloat16), TARGETS), batch_size=8)
    run = nw.simulate(problem, METHOD, nw.speeds.Fixed([1.0]), steps=5, update=nw.Sgd())
    assert problem.model(run.params)[1].count.item() == 305.0, "bfloat16 has no number between 304 and 306"


def test_a_scaled_loss_gives_the_same_gradient_and_the_same_clipping():
    sample, options = sampler(0).sample(0, 0), {"kind": TorchProblem, "clip_norm": 0.01}
    plain, scaled = a_problem("cpu", **options), a_problem("cpu", loss_scale=1024.0, **options)
    np.testing.assert_allclose(
        scaled.gradient(plain.initial(), sample), plain.gradient(plain.initial(), sample), rtol=1e-4, atol=1e-9
    )
    tiny = a_problem("cpu", loss_scale=2.0**40, kind=TorchProblem)
    assert np.isfinite(tiny.gradient(plain.initial(), sample)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"autocast": "half"}, 'autocast must be "bfloat16" or "float16", or None, got \'half\''),
        ({"autocast": ["bfloat16"]}, 'autocast must be "bfloat16" or "float16", or None'),
        ({"loss_scale": 0}, "loss_scale must be a finite number above 0"),
        ({"params_on": "disk"}, 'params_on must be "device" or "host", got \'disk\''),
    ],
)
def test_wrong_settings_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        a_problem("cpu", TorchProblem, **options)


def test_deterministic_is_true_or_false():
    with pytest.raises(TypeError, match="deterministic must be True or False, got 'yes'"):
        a_problem("cpu", deterministic="yes")


def test_deterministic_algorithms_are_chosen_only_while_a_problem_computes():
    chosen = []

    def loss(output, target):
        chosen.append(torch.are_deterministic_algorithms_enabled())
        return cross_entropy(output, target)

    problem = TorchProblem(lambda: nn.Linear(6, 3), loss, TensorDataset(INPUTS, TARGETS), deterministic=True)
    problem.gradient(problem.initial(), sampler(0).sample(0, 0))
    problem.loss(problem.initial())
    assert all(chosen)
    assert not torch.are_deterministic_algorithms_enabled()


# Batches of the next ticket


def prefetching(*args, **options):
    """Return a problem that prefetches on the processor, too."""
    problem = TorchProblem(*args, **options)
    problem._gradients.prefetches_on = lambda device: True
    return problem


class Drawn(TensorDataset):
    """Counts how often items are fetched, and adds noise to them."""

    fetched = 0

    def __getitem__(self, place):
        Drawn.fetched += 1
        inputs, targets = super().__getitem__(place)
        return inputs + 0.1 * torch.randn(()), targets


def drawing(kind):
    Drawn.fetched = 0

    def build():
        return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    return kind(build, cross_entropy, Drawn(INPUTS, TARGETS), batch_size=4, accumulate=2)


def test_prefetched_batches_are_those_drawn_on_demand():
    problem = drawing(prefetching)
    point, samples = problem.initial(), sampler(0)
    in_order = [problem.gradient(point, samples.sample(0, job)) for job in range(5)]
    on_demand = drawing(prefetching)
    for job in (4, 0, 2, 3, 1):
        assert np.array_equal(on_demand.gradient(point, samples.sample(0, job)), in_order[job])


class Encoding(dict):
    """A batch that moves itself, as that of a tokenizer does."""

    def to(self, device):
        return self


def test_batches_that_move_themselves_keep_their_type_and_are_moved_when_they_are_used():
    kinds = []

    def forward(model, batch):
        kinds.append(type(batch))
        return model(batch["inputs"]), batch["targets"]

    def collate(items):
        inputs, targets = zip(*items, strict=True)
        return Encoding(inputs=torch.stack(inputs), targets=torch.stack(targets))

    problem = prefetching(
        lambda: nn.Linear(6, 3), cross_entropy, TensorDataset(INPUTS, TARGETS), collate_fn=collate, forward=forward
    )
    for job in range(4):
        problem.gradient(problem.initial(), sampler(0).sample(0, job))
    assert set(kinds) == {Encoding}


def test_an_error_in_the_next_batch_is_not_an_error_of_this_ticket():
    class Broken(TensorDataset):
        def __getitem__(self, place):
            if broken:
                raise OSError("a damaged item")
            return super().__getitem__(place)

    broken = False
    problem = prefetching(lambda: nn.Linear(6, 3), cross_entropy, Broken(INPUTS, TARGETS), batch_size=4)
    for job in range(2):
        problem.gradient(problem.initial(), sampler(0).sample(0, job))
    expected = problem.gradient(problem.initial(), sampler(0).sample(0, 2))
    for job in range(2):
        problem.gradient(problem.initial(), sampler(0).sample(0, job))
    broken = True
    assert np.array_equal(problem.gradient(problem.initial(), sampler(0).sample(0, 2)), expected)
    with pytest.raises(OSError, match="a damaged item"):
        problem.gradient(problem.initial(), sampler(0).sample(0, 3))


def test_nothing_is_prefetched_while_tickets_are_those_of_many_workers():
    problem = drawing(prefetching)
    before = Drawn.fetched
    for job in range(3):
        for worker in range(2):
            problem.gradient(problem.initial(), sampler(0).sample(worker, job))
    assert Drawn.fetched == before + 6 * 8


def test_a_worker_draws_one_batch_ahead():
    problem = drawing(prefetching)
    before = Drawn.fetched
    for job in range(4):
        problem.gradient(problem.initial(), sampler(0).sample(0, job))
    assert Drawn.fetched == before + 4 * 8 + 4, "the first batch of the ticket that comes next, and no other twice"


def test_a_gpu_without_memory_is_reported_with_advice():
    torchs = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.72 GiB of which …"
    with (
        pytest.raises(MemoryError, match=re.escape("CUDA out of memory. Tried to allocate 2.00 GiB. All workers on a")),
        clear_memory_errors(),
    ):
        raise RuntimeError(torchs)
    with pytest.raises(RuntimeError, match="sizes do not match"), clear_memory_errors():
        raise RuntimeError("sizes do not match")


def test_a_machine_without_memory_is_reported_with_advice():
    with pytest.raises(MemoryError, match=r"can't allocate memory.*Use fewer workers"), clear_memory_errors():
        torch.empty(10**15)


def test_worker_processes_seed_in_the_same_way_and_leave_states(monkeypatch):
    def drawn():
        return torch.rand(3).tolist(), np.random.rand(), random.random()  # noqa: NPY002

    with seeded(5):
        expected = drawn()
    before = torch.get_rng_state()
    monkeypatch.setattr(process, "_forking", {os.getppid()})
    assert process.in_worker()
    with seeded(5):
        assert drawn() == expected
        after = torch.get_rng_state()
    assert torch.equal(torch.get_rng_state(), after)
    torch.set_rng_state(before)


def test_a_process_that_may_be_forked():
    assert not process.fork_breaks_cuda()
    assert not process.in_worker()


def test_seeds_are_those_of_torch():
    with seeded(11):
        ours = torch.rand(3).tolist()
    torch.manual_seed(11 >> 1)
    assert torch.rand(3).tolist() == ours


class InitialisesCuda(TensorDataset):
    """Uses the GPU while it is loaded, as data sets of users may do."""

    def __setstate__(self, state):
        self.__dict__.update(state)
        torch.zeros(1, device="cuda")


@on_gpu
def test_workers_are_not_forked_after_cuda_was_initialised():
    data = InitialisesCuda(INPUTS, TARGETS)
    problem = TorchProblem(lambda: nn.Linear(6, 3), cross_entropy, data, batch_size=8, device="cuda")
    run = nw.train(problem, METHOD, workers=2, steps=20, update=nw.Sgd(), max_failures=0)
    assert np.array_equal(nw.replay(run.trace, problem, METHOD, update=nw.Sgd()).last, run.last)


@on_gpu
@pytest.mark.parametrize("devices", [["cuda", "cpu"], ["cpu", "cuda"]], ids=str)
def test_workers_on_a_gpu_and_on_the_processor_train_together(devices):
    problem, method = a_problem(devices, TorchProblem, deterministic=True), nw.MinibatchSGD(nw.Constant(0.2))
    run = nw.train(problem, method, workers=2, steps=60, update=nw.Sgd())
    assert set(run.trace.arrivals["worker"].tolist()) == {0, 1}
    assert np.array_equal(nw.replay(run.trace, problem, method, update=nw.Sgd()).last, run.last)
    assert run.history.loss[-1] < run.history.loss[0]


@on_gpu
def test_params_in_host_memory_and_workers_on_a_gpu():
    problem = a_problem("cuda", TorchProblem, deterministic=True, params_on="host")
    run = nw.train(problem, METHOD, workers=2, steps=60, update=nw.Sgd())
    assert np.array_equal(nw.replay(run.trace, problem, METHOD, update=nw.Sgd()).last, run.last)


class Huge(nn.Linear):
    """Needs more memory than any GPU has, once it is trained by a worker."""

    def forward(self, inputs):
        if process.in_worker():
            torch.empty(1 << 44, device="cuda")
        return super().forward(inputs)


@on_gpu
def test_a_gpu_that_is_too_small_is_named_in_the_error():
    problem = TorchProblem(
        lambda: Huge(6, 3), cross_entropy, TensorDataset(INPUTS, TARGETS), batch_size=8, device="cuda"
    )
    with pytest.raises(nw.WorkerFailedError, match="All workers on a GPU share its memory"):
        nw.train(problem, METHOD, workers=1, steps=20, update=nw.Sgd(), max_failures=1)
