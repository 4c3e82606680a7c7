"""PyTorch models: the same numbers as a plain loop, bit-identical replays, buffers, data, and early errors."""

import json
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

import nowait as nw
from names import plain
from nowait.core import sampler
from nowait.core.statistics import lengthening
from nowait.numerics.chunks import LARGE
from nowait.numerics.parallel import using_threads
from nowait.pytorch import TorchOptimizer, TorchProblem
from nowait.pytorch.bound_model import CopyingModel, ViewingModel
from nowait.pytorch.flat import ModelLayout, tensor_of
from nowait.pytorch.rng import seeded
from nowait.recording import describe
from nowait.testing import PROBLEM_CHECKS, train_scripted

INPUTS = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] > 0).long() + (INPUTS[:, 1] > 0).long()
DATA = TensorDataset(INPUTS, TARGETS)
METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(0.2))


def with_dropout():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def with_batch_norm():
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean()


def a_problem(build=with_dropout, **options):
    return TorchProblem(build, cross_entropy, DATA, **({"batch_size": 8} | options))


def plain_loop(make_optimizer, steps):
    """Run a plain PyTorch loop over the same batches."""
    torch.manual_seed(0)
    model = with_dropout()
    optimizer = make_optimizer(model.parameters())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for job in range(steps):
        sample = sampler(0).sample(0, job)
        torch.manual_seed(sample.part(1).key >> 1)
        inputs, targets = default_collate([DATA[int(place)] for place in sample.indices(len(DATA), 8)])
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    torch.set_num_threads(threads)
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).numpy()


@pytest.mark.parametrize(
    ("update", "make_optimizer"),
    [
        (None, lambda parameters: torch.optim.SGD(parameters, lr=0.1)),
        (TorchOptimizer(torch.optim.SGD, momentum=0.9, fused=False), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
        (TorchOptimizer(torch.optim.AdamW, fused=False), lambda p: torch.optim.AdamW(p, lr=0.1)),
        (TorchOptimizer(torch.optim.AdamW), lambda p: torch.optim.AdamW(p, lr=0.1, fused=True)),
    ],
    ids=["default", "momentum", "AdamW", "AdamW, fused"],
)
def test_one_worker_is_a_plain_loop_bit_for_bit(update, make_optimizer, same_number_of_threads):
    train = nw.train if update is None else train_scripted  # one of them with a real process
    run = train(a_problem(), nw.AsynchronousSGD(nw.Constant(0.1)), workers=1, steps=40, update=update)
    assert np.array_equal(run.last, plain_loop(make_optimizer, 40))


@pytest.mark.parametrize(("build", "train"), [(with_dropout, train_scripted), (with_batch_norm, nw.train)])
def test_a_run_of_several_workers_replays_bit_for_bit(build, train, same_number_of_threads):
    problem = a_problem(build)
    run = train(problem, METHOD, workers=3, steps=60)
    replayed = nw.replay(run.trace, problem, METHOD)
    assert np.array_equal(replayed.params, run.params)


def test_the_simulator_trains_the_same_problem_and_learns():
    problem = a_problem(metrics={"accuracy": accuracy})
    run = nw.simulate(problem, METHOD, nw.speeds.Fixed([1, 1, 9]), steps=400)
    assert problem.evaluate(problem.initial())["accuracy"] < 0.6
    assert problem.evaluate(run.params)["accuracy"] > 0.8
    assert run.history.loss[-1] == problem.loss(run.last)


def test_gradients_are_those_of_autograd_and_nothing_is_copied():
    problem = a_problem(with_batch_norm)
    point, out = problem.initial(), np.empty(problem.dimension, np.float32)
    problem.gradient_into(point, sampler(0).sample(2, 5), out)
    [bound] = problem._models.values()
    first = next(bound.model.parameters())
    assert first.data_ptr() == point.ctypes.data, "the parameters are the point's own memory"
    model = problem.model(problem.initial()).train()
    places = sampler(0).sample(2, 5).indices(len(DATA), 8)
    cross_entropy(model(INPUTS[places]), TARGETS[places]).backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
    np.testing.assert_allclose(out[: len(expected)], expected, rtol=1e-4, atol=1e-6)


def computed(bound, point, replace):
    """One gradient, on memory that held something else before."""
    out = np.full_like(point, np.nan)
    for parameter in bound.model.parameters():
        parameter.data = parameter.data.clone()  # as flatten_parameters of recurrent layers does
    bound.load(point)
    bound.zero_gradient(out)
    bound.model.train()(INPUTS[:9]).square().mean().backward()
    first = next(bound.model.parameters())
    gradient = first.grad.clone()
    first.grad.zero_()
    first.grad = replace(gradient)
    bound.store_gradient(out)
    return out


@pytest.mark.parametrize("replace", [torch.clone, torch.Tensor.to_sparse], ids=["dense", "sparse"])
def test_a_model_that_is_copied_to_its_device_computes_the_same(replace):
    """With the CPU as the device: what is special about accelerators is that params and gradients are copied."""
    layout = ModelLayout.of(with_batch_norm(), ["1.running_mean", "1.running_var"])
    point = np.linspace(0.1, 1.0, layout.length).astype(np.float32)
    here, there = (kind(with_batch_norm(), layout, torch.device("cpu")) for kind in (ViewingModel, CopyingModel))
    expected = computed(here, point, torch.clone)
    assert np.count_nonzero(expected[:96]) > 48, "the gradient of the first layer"
    assert expected[-1] == 1
    for _ in range(2):
        assert np.array_equal(computed(here, point, replace), expected)
        assert np.array_equal(computed(there, point, replace), expected)


def test_read_only_memory_can_be_read_through_a_tensor():
    array = np.arange(4, dtype=np.float32)
    array.flags.writeable = False
    assert tensor_of(array).tolist() == [0, 1, 2, 3]
    assert tensor_of(array).data_ptr() == array.ctypes.data


# Buffers


def sent_by(problem, worker, num_workers):
    """Return the buffers that the server makes of a worker's first gradient."""
    start = problem.initial()[-33:-1]
    sent = problem.gradient(problem.initial(), sampler(0).sample(worker, 0))[-33:-1]
    return start + lengthening(0.1, num_workers) * (sent - start)


@pytest.mark.parametrize("num_workers", [2, 20])
def test_buffers_start_as_a_mean_and_are_then_merged_with_weight_one_over_m(num_workers):
    problem = a_problem(with_batch_norm)
    assert problem.num_statistics == 16 + 16 + 1
    assert problem.statistics_momentum == pytest.approx(0.1)
    speeds = nw.speeds.Fixed(1.0, workers=num_workers)
    runs = [nw.simulate(problem, METHOD, speeds, steps=steps).last for steps in (1, 2, num_workers, num_workers + 1)]
    sent = [sent_by(problem, worker, num_workers) for worker in range(num_workers)]
    np.testing.assert_allclose(runs[0][-33:-1], sent[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(runs[1][-33:-1], np.mean(sent[:2], axis=0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(runs[2][-33:-1], np.mean(sent, axis=0), rtol=1e-4, atol=1e-6)
    moved = np.abs(runs[3][-33:-1] - runs[2][-33:-1]).max()
    assert 0 < moved < 3 / num_workers
    assert all(run[-1] == 1 for run in runs)


def test_a_minibatch_of_all_workers_has_the_mean_of_their_buffers():
    problem = a_problem(with_batch_norm)
    run = nw.simulate(problem, nw.MinibatchSGD(nw.Constant(0.1)), nw.speeds.Fixed([1.0, 1.0]), steps=1)
    sent = [sent_by(problem, worker, 2) for worker in (0, 1)]
    np.testing.assert_allclose(run.last[-33:-1], np.mean(sent, axis=0), rtol=1e-5)


def test_buffers_of_many_workers_follow_as_fast_as_those_of_one():
    """The distance to the buffers that a plain mean over the data gives."""
    problem = a_problem(with_batch_norm, batch_size=40)
    method = nw.AsynchronousSGD(nw.Constant(1e-6))
    model = problem.model(problem.initial()).train()
    model[1].momentum = 1.0
    model(INPUTS)
    exact = np.concatenate([model[1].running_mean.numpy(), model[1].running_var.numpy()])
    far = [
        np.abs(nw.simulate(problem, method, nw.speeds.Fixed(1.0, workers=count), steps=20).last[-33:-1] - exact).max()
        for count in (1, 4, 12)
    ]
    assert max(far[1:]) < 1.1 * far[0]


class WithCounter(nn.Module):
    """A buffer that is no running mean."""

    def __init__(self):
        super().__init__()
        self.layers = with_batch_norm()
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, inputs):
        if self.training:
            self.batches += 1
        return self.layers(inputs)


def test_the_momentum_of_buffers():
    assert a_problem(WithCounter).statistics_momentum == 1.0
    assert a_problem(with_dropout).statistics_momentum == 1.0
    assert a_problem(with_batch_norm, accumulate=2).statistics_momentum == pytest.approx(1 - 0.9**2)


def test_discounted_gradients_do_not_discount_buffers():
    problem = a_problem(with_batch_norm)
    method = nw.FedBuff(nw.Constant(0.1), buffer=2, discount=nw.PolynomialDecay(0.5, power=0.5))
    run = nw.simulate(problem, method, nw.speeds.Fixed([1.0, 1.0]), steps=1)
    sent = [sent_by(problem, worker, 2) for worker in (0, 1)]
    np.testing.assert_allclose(run.last[-33:-1], np.mean(sent, axis=0), rtol=1e-5)


def test_one_worker_has_the_buffers_of_a_plain_loop_bit_for_bit():
    problem = a_problem(with_batch_norm)
    run = nw.simulate(problem, nw.AsynchronousSGD(nw.Constant(0.1)), nw.speeds.Fixed([1.0]), steps=20)
    torch.manual_seed(0)
    model = with_batch_norm()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with problem._settings.active():
        for job in range(20):
            places = sampler(0).sample(0, job).indices(len(DATA), 8)
            optimizer.zero_grad()
            cross_entropy(model(INPUTS[places]), TARGETS[places]).backward()
            optimizer.step()
    assert np.array_equal(run.last[-33:-17], model[1].running_mean.numpy())


@pytest.mark.parametrize(
    "method",
    [
        nw.ClippedASGD(nw.Constant(0.1), max_norm=0.05),
        nw.DelayCompensatedSGD(nw.Constant(0.05), strength=0.04),
        nw.PickySGD(nw.Constant(0.05), radius=1e-3),
        nw.RennalaSGD(nw.Constant(0.1), batch=2),
        nw.GradientTable(nw.Constant(0.05)),
        nw.DelayedNesterov(nw.Constant(0.05), every=2),
    ],
    ids=plain,
)
def test_methods_that_look_at_gradients_leave_buffers_alone(method):
    problem = a_problem(with_batch_norm)
    run = nw.simulate(problem, method, nw.speeds.Fixed([1.0, 1.5]), steps=60)
    assert not run.stats.diverged
    assert run.last[-1] == 1
    assert 0 < np.abs(run.last[-33:-17]).max() < 3, "running means stay among the activations"
    assert run.trace.gradient_norm[run.trace.gradient_norm > 0].min() < 3


class WithConstants(nn.Module):
    """Buffers that no training changes: not finite, complex, integers, not persistent."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
        self.register_buffer("waves", torch.polar(torch.ones(3), torch.ones(3)))
        self.register_buffer("places", torch.arange(64), persistent=False)

    def forward(self, inputs):
        return self.linear(inputs) + 0 * self.places[:3]


def test_constant_buffers_stay_as_they_were_built():
    problem = a_problem(WithConstants)
    assert problem.num_statistics == 0
    model = problem.model(nw.simulate(problem, METHOD, nw.speeds.Fixed([1.0, 2.0]), steps=5).params)
    assert torch.equal(model.places, torch.arange(64))
    assert torch.isneginf(model.mask).sum() == 3
    assert model.waves.imag.abs().sum() > 0


def test_the_users_random_numbers_and_threads_are_left_alone():
    problem = a_problem()
    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    problem.gradient(problem.initial(), sampler(0).sample(0, 0))
    problem.loss(problem.initial())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_memory_is_not_kept():
    problem = a_problem()
    for _ in range(600):
        problem.gradient(problem.initial(), sampler(0).sample(0, 0))
    [bound] = problem._models.values()
    assert len(bound._views._cached) <= 256


class Shaky(Dataset):
    """A data set with random noise from numpy and from random, as in many augmentations."""

    def __len__(self):
        return 20

    def __getitem__(self, place):
        return INPUTS[place] + float(np.random.normal()) + random.random(), TARGETS[place]  # noqa: NPY002


def test_noise_of_numpy_and_random_is_replayed_too():
    problem = TorchProblem(with_dropout, cross_entropy, Shaky(), batch_size=4)
    first, again, other = (problem.gradient(problem.initial(), sampler(0).sample(worker, 3)) for worker in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("draw", [lambda: torch.rand(()).item(), np.random.normal, random.random])
def test_every_kind_of_random_number_is_the_tickets(draw):
    def numbers(key):
        with seeded(key):
            return [draw() for _ in range(3)]

    assert numbers(1) == numbers(1) != numbers(2)
    before = draw()
    numbers(1)
    assert draw() != before, "the user's own go on"


def test_constants_can_be_estimated_with_buffers_too():
    found = nw.theory.estimate(a_problem(with_batch_norm), samples=8, iterations=3, descent=3)
    assert found.L > 0
    run = nw.simulate(nw.problems.NoisyQuadratic(dimension=2), nw.AsynchronousSGD(0.1), nw.speeds.Fixed([1.0]), steps=2)
    with pytest.raises(ValueError, match="models with buffers cannot be checked"):
        nw.theory.check_lemmas(run.trace, nw.Constant(0.1), a_problem(with_batch_norm))


def test_optimisers_do_not_write_to_gradients():
    update = TorchOptimizer(torch.optim.SGD, momentum=0.9, nesterov=True, foreach=True)
    params, direction, out = (np.ones(4, np.float32) for _ in range(3))
    update.start(params)
    for _ in range(2):
        update.apply(params, direction, 0.1, out)
    assert direction.tolist() == [1, 1, 1, 1]


def test_optimisers_do_not_touch_buffers():
    problem = a_problem(with_batch_norm)
    update = TorchOptimizer(torch.optim.AdamW, weight_decay=0.5)
    plain, decayed = (
        nw.simulate(problem, METHOD, nw.speeds.Fixed([1.0, 1.0]), steps=1, update=one) for one in (None, update)
    )
    assert np.array_equal(plain.last[-33:], decayed.last[-33:])


def test_evaluation_uses_the_merged_buffers():
    problem = a_problem(with_batch_norm)
    params = problem.initial()
    other = params.copy()
    other[-33:-17] += 3.0  # the running means
    assert problem.loss(params) != problem.loss(other)
    assert problem.model(other)[1].running_mean.tolist() == pytest.approx([3.0] * 16)


def test_compression_refuses_buffers():
    with pytest.raises(TypeError, match="Compressed cannot wrap a problem with buffers"):
        nw.problems.Compressed(a_problem(with_batch_norm), nw.problems.TopK(1))


# Models


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight
        self.frozen, self.unused = nn.Linear(6, 3), nn.Linear(2, 2)
        self.frozen.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs):
        return self.scale * self.frozen(self.second(self.first(inputs)))


def test_tied_frozen_and_unused_parameters():
    problem = a_problem(Tied)
    assert problem.dimension == 36 + 6 + 1, "tied ones once, frozen ones not"
    run = train_scripted(problem, METHOD, workers=2, steps=30)
    start, end = problem.initial(), run.last
    assert not np.array_equal(start[:36], end[:36])
    model = problem.model(end)
    assert model.first.weight is model.second.weight
    torch.manual_seed(0)
    fresh = Tied()
    assert torch.equal(model.frozen.weight, fresh.frozen.weight)
    assert torch.equal(model.unused.weight, fresh.unused.weight), "what got no gradient did not move"


def test_sparse_gradients_arrive():
    def build():
        return nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Flatten(), nn.Linear(6, 2))

    words = torch.randint(0, 5, (20, 2), generator=torch.Generator().manual_seed(1))
    problem = TorchProblem(build, cross_entropy, TensorDataset(words, torch.zeros(20, dtype=torch.long)), batch_size=4)
    gradient = problem.gradient(problem.initial(), sampler(0).sample(0, 0))
    assert np.abs(gradient[:15]).sum() > 0


def test_float64_models_keep_their_precision():
    data = TensorDataset(INPUTS.double(), TARGETS)
    problem = TorchProblem(lambda: with_dropout().double(), cross_entropy, data, batch_size=4)
    assert problem.initial().dtype == np.float64


def test_clipping_and_accumulation():
    whole, clipped, several = a_problem(Tied), a_problem(Tied, clip_norm=0.01), a_problem(Tied, accumulate=3)
    sample = sampler(0).sample(0, 0)
    assert np.linalg.norm(whole.gradient(whole.initial(), sample)) > 0.01
    assert np.linalg.norm(clipped.gradient(clipped.initial(), sample)) == pytest.approx(0.01, rel=1e-3)
    model = several.model(several.initial()).train()
    for part in range(3):
        places = sample.part(part).indices(len(DATA), 8)
        (cross_entropy(model(INPUTS[places]), TARGETS[places]) / 3).backward()
    expected = [
        p.grad.reshape(-1) if p.grad is not None else torch.zeros(p.numel())
        for p in model.parameters()
        if p.requires_grad
    ]
    np.testing.assert_allclose(several.gradient(several.initial(), sample), torch.cat(expected), rtol=1e-4, atol=1e-7)


# Data


class Numbers(Dataset):
    """Items that contain their own index and are not tensors."""

    def __len__(self):
        return 10

    def __getitem__(self, place):
        return {"number": place, "input": INPUTS[place], "target": TARGETS[place]}


def seen_places(problem, worker, jobs):
    batches = problem._batches
    return [batches._places(sampler(0).sample(worker, job), 0, 1).tolist() for job in range(jobs)]


def test_epochs_have_every_item_once():
    problem = a_problem(sampling="epochs", batch_size=40)
    places = [place for batch in seen_places(problem, 1, 6) for place in batch]
    assert sorted(places[:120]) == sorted(places[120:]) == list(range(120))
    assert places[:120] != places[120:]
    assert seen_places(problem, 1, 3) != seen_places(problem, 2, 3)
    assert seen_places(problem, 1, 3) == seen_places(a_problem(sampling="epochs", batch_size=40), 1, 3)


def test_batches_that_cross_the_end_of_an_epoch():
    problem = a_problem(sampling="epochs", batch_size=50)
    places = [place for batch in seen_places(problem, 0, 5) for place in batch]
    assert sorted(places[:120]) == list(range(120))


def test_other_batches_by_collate_and_forward():
    problem = TorchProblem(
        with_dropout,
        cross_entropy,
        Numbers(),
        batch_size=4,
        collate_fn=default_collate,
        forward=lambda model, batch: (model(batch["input"]), batch["target"]),
    )
    assert np.isfinite(problem.gradient(problem.initial(), sampler(0).sample(0, 0))).all()


@pytest.mark.parametrize("sampling", ["replacement", "epochs"])
def test_workers_can_have_data_of_their_own(sampling):
    problem = a_problem(sampling=sampling).split(3, by="label")
    assert problem.num_shards == 3
    labels = [
        {int(TARGETS[place]) for batch in seen_places(problem, worker, 20) for place in batch} for worker in (0, 2)
    ]
    assert 2 not in labels[0]
    assert 0 not in labels[1]


class Stream(IterableDataset):
    def __iter__(self):
        yield from DATA


def test_streams_train_but_cannot_be_replayed():
    problem = TorchProblem(with_dropout, cross_entropy, Stream(), batch_size=7)
    run = train_scripted(problem, METHOD, workers=2, steps=20)
    assert run.stats.steps == 20
    with pytest.raises(ValueError, match="cannot be replayed: its gradients depend on more than the point"):
        nw.replay(run.trace, problem, METHOD)
    with pytest.raises(TypeError, match="an IterableDataset cannot be split"):
        problem.split(2)


# Folders and optimisers


def test_the_model_is_written_and_read_without_nowait(tmp_path):
    from safetensors.torch import load_model

    problem = a_problem(with_batch_norm, validation=DATA)
    run = nw.train(problem, METHOD, workers=2, steps=30, folder=tmp_path / "run")
    model = with_batch_norm()
    load_model(model, tmp_path / "run" / "model.safetensors")
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(INPUTS), problem.model(run.params)(INPUTS))


def test_an_optimiser_is_described_by_its_options_and_restored_with_its_state():
    """A whole run is resumed with it in test_device_training.py."""
    described = {"type": "TorchOptimizer", "optimizer": "Adam", "options": {"betas": [0.5, 0.9]}, "fused": True}
    assert json.loads(json.dumps(describe(TorchOptimizer(torch.optim.Adam, betas=(0.5, 0.9))))) == described
    problem = a_problem()
    state = TorchOptimizer(torch.optim.Adam)
    state.start(problem.initial())
    state.restore({"step": 20.0, "exp_avg": np.ones(problem.dimension, np.float32)})
    assert state.state()["step"] == torch.tensor(20.0)


def test_state_comes_back_as_it_was():
    params, direction = np.ones(5, np.float32), np.arange(5, dtype=np.float32)
    first, second = TorchOptimizer(torch.optim.AdamW), TorchOptimizer(torch.optim.AdamW)
    outs = [np.empty(5, np.float32) for _ in range(2)]
    for update in (first, second):
        update.start(params)
    first.apply(params, direction, 0.1, outs[0])
    second.restore(first.state())
    for update, out in zip((first, second), outs, strict=True):
        update.apply(params, direction, 0.1, out)
    assert np.array_equal(outs[0], outs[1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TorchOptimizer(torch.optim.SGD, lr=0.1), "leave lr= out"),
        (
            lambda: TorchOptimizer(torch.optim.LBFGS),
            r"LBFGS failed in a trial step .*missing 1 required positional argument: 'closure'",
        ),
        (lambda: TorchOptimizer(torch.optim.SGD, odd=1), "SGD does not take these options"),
        (lambda: TorchOptimizer(nn.Linear), "optimizer must be a class of torch.optim"),
    ],
)
def test_wrong_optimisers_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_much_momentum_and_many_workers_are_warned_of(caplog):
    momentum = TorchOptimizer(torch.optim.SGD, momentum=0.9)
    nw.simulate(a_problem(), METHOD, nw.speeds.Fixed(1.0, workers=8), steps=2, update=momentum)
    assert "start from no momentum" in caplog.text
    caplog.clear()
    nw.simulate(
        a_problem(), nw.MinibatchSGD(nw.Constant(0.1)), nw.speeds.Fixed(1.0, workers=8), steps=2, update=momentum
    )
    assert caplog.text == ""


@pytest.mark.parametrize("update", [TorchOptimizer(torch.optim.AdamW), nw.Adam(), nw.ScaleGradient(nw.AMSGrad())])
def test_the_moments_of_adam_are_no_momentum_to_warn_of(update, caplog):
    nw.simulate(a_problem(), METHOD, nw.speeds.Fixed(1.0, workers=8), steps=2, update=update)
    assert "momentum" not in caplog.text


# Errors before any process starts


SHARED = nn.Linear(6, 3)


class Renorming(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.linear = nn.Embedding(3, 6, max_norm=0.1), nn.Linear(6, 3)

    def forward(self, inputs):
        return self.linear(inputs + self.table(torch.zeros(len(inputs), dtype=torch.long)))


def FrozenRenorming():
    model = Renorming()
    model.table.requires_grad_(False)
    return model


def growing():
    growing.calls = getattr(growing, "calls", 0) + 1
    return nn.Linear(6, 2 + growing.calls)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"build": growing}, "build_model must return the same model on every call"),
        ({"build": lambda: SHARED}, "build_model must return a new model on every call"),
        ({"build": lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, momentum=None))}, "momentum=None"),
        ({"build": with_batch_norm, "batch_size": 1}, "more than 1 value per channel"),
        ({"build": Renorming}, "the model writes to its parameter table.weight in place"),
        ({"build": FrozenRenorming}, "writes to its frozen parameter table.weight: it is not among the params"),
        ({"build": nn.Linear(6, 3)}, r"got a model \(Linear\): pass lambda: copy.deepcopy\(model\)"),
        ({"build": 3}, "build_model must be a function that returns a new model, got 3"),
        ({"build": lambda: nn.Sequential(nn.LazyLinear(3))}, "0.weight of the model has no shape yet"),
        ({"build": lambda: nn.Sequential(nn.Linear(6, 3), nn.LazyBatchNorm1d())}, "1.weight of the model has no shape"),
        ({"loss": lambda output, target: output.mean() * np.nan}, "the loss of the first batch is NaN"),
        ({"metrics": {"loss": accuracy}}, "no name may be 'loss'"),
        ({"metrics": {"a": 3}}, "metrics must map names to functions"),
        (
            {"metrics": {"a": lambda output, target: output}, "validation": DATA},
            "a of a batch must be a number or a tensor with one entry",
        ),
        ({"validation": DataLoader(DATA)}, "validation must be a data set"),
        ({"data": DataLoader(DATA)}, "got a DataLoader: pass its dataset"),
        ({"device": 3}, "device must be a name such as 'cuda'"),
        ({"build": lambda: 3}, "build_model must return a torch.nn.Module, got int"),
        ({"build": nn.Flatten}, "has no parameters that require gradients"),
        (
            {"build": lambda: nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3).double())},
            "parameters must be float32, bfloat16 or float16, or all of them float64, got torch.float32, torch.float64",
        ),
        (
            {"loss": nn.CrossEntropyLoss(reduction="none")},
            r"loss must return a scalar tensor, got a tensor of shape \(64,\)",
        ),
        ({"loss": lambda output, target: 3.0}, "loss must return a scalar tensor, got float"),
        ({"loss": lambda output, target: torch.zeros(())}, "the loss does not depend on the model's parameters"),
        ({"data": TensorDataset(INPUTS[:0], TARGETS[:0])}, "train_set is empty"),
        ({"data": 3}, "train_set must have a length and items"),
        ({"validation": TensorDataset(INPUTS[:0], TARGETS[:0])}, "validation is empty"),
        ({"device": "cuda:7"}, "device 'cuda:7' is not available"),
        ({"device": []}, "device is an empty list"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1"),
        ({"sampling": "odd"}, "sampling must be one of replacement, epochs"),
        ({"accumulate": 0}, "accumulate must be an integer of at least 1"),
        ({"clip_norm": 0}, "clip_norm must be a finite number above 0"),
        ({"threads": 0}, "threads must be an integer of at least 1"),
    ],
    ids=plain,
)
def test_mistakes_are_told_before_any_process_starts(options, message):
    build, loss, data = (
        options.pop("build", with_dropout),
        options.pop("loss", cross_entropy),
        options.pop("data", DATA),
    )
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message):
        TorchProblem(build, loss, data, **options)


class WritesLater(nn.Linear):
    """Writes to its weights once it has moved far enough."""

    def forward(self, inputs):
        if self.training and self.weight.detach().abs().max() > 1.0:
            with torch.no_grad():
                self.weight.clamp_(-1.0, 1.0)
        return super().forward(inputs)


def test_a_model_that_writes_to_its_weights_later_is_named():
    problem = a_problem(lambda: WritesLater(6, 3))
    problem.gradient(problem.initial(), sampler(0).sample(0, 0))
    with pytest.raises(ValueError, match="the model writes to its parameter weight in place"):
        problem.gradient(problem.initial() * 10, sampler(0).sample(0, 0))


def test_a_worker_that_writes_to_its_weights_says_where(tmp_path):
    problem = a_problem(lambda: WritesLater(6, 3))
    far = problem.initial() * 10
    with pytest.raises(nw.WorkerFailedError, match="a model that writes to its weights in place ends so"):
        nw.train(problem, METHOD, workers=1, steps=5, initial=far, max_failures=0, folder=tmp_path / "run")
    log = (tmp_path / "run" / "workers.log").read_text()
    assert "Segmentation fault" in log
    assert "in forward" in log


def test_what_does_not_pickle_is_named():
    class Locked(Numbers):
        def __init__(self):
            import threading

            self.lock = threading.Lock()

        def __getitem__(self, place):
            return INPUTS[place], TARGETS[place]

    problem = TorchProblem(with_dropout, cross_entropy, Locked(), batch_size=2)
    with pytest.raises(TypeError, match=r"train_set\.lock of TorchProblem cannot be sent to worker processes"):
        nw.train(problem, METHOD, workers=1, steps=1)


# The contract of problems


def a_stream():
    return TorchProblem(with_dropout, cross_entropy, Stream(), batch_size=7)


CONTRACTED = {
    "dropout": a_problem,
    "batch norm": lambda: a_problem(with_batch_norm),
    "epochs, split, accumulated": lambda: a_problem(sampling="epochs", accumulate=2).split(3, by="label"),
    "float64": lambda: TorchProblem(
        lambda: with_dropout().double(), cross_entropy, TensorDataset(INPUTS.double(), TARGETS), batch_size=4
    ),
    "stream": a_stream,
    "local steps": lambda: nw.problems.LocalSteps(a_problem(), steps=2, stepsize=0.1),
    "local steps, AdamW, batch norm": lambda: nw.problems.LocalSteps(
        a_problem(with_batch_norm), steps=3, stepsize=0.01, update=TorchOptimizer(torch.optim.AdamW)
    ),
    "compressed": lambda: nw.problems.Compressed(a_problem(), nw.problems.TopK(10)),
    "encoded": lambda: nw.problems.Encoded(a_problem(with_batch_norm), "float16", "bfloat16"),
}


@pytest.fixture
def same_number_of_threads():
    """``prepare`` sets it to one, for the processes that are forked after it."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("check", PROBLEM_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CONTRACTED)
def test_torch_problems_keep_the_contract(name, check, same_number_of_threads):
    check(CONTRACTED[name]())


def test_a_wrapped_stream_is_not_replayed():
    stream = nw.problems.LocalSteps(a_stream(), steps=2, stepsize=0.1)
    run = nw.simulate(stream, METHOD, nw.speeds.Fixed([1.0]), steps=3)
    with pytest.raises(ValueError, match="cannot be replayed"):
        nw.replay(run.trace, stream, METHOD)


def test_params_of_another_problem_are_refused():
    with pytest.raises(ValueError, match="params must have 163 entries of float32"):
        a_problem().model(np.zeros(3, np.float32))


def test_the_layout_of_a_model():
    layout = ModelLayout.of(with_batch_norm())
    assert list(layout.parameters)[:2] == ["0.weight", "0.bias"]
    assert layout.buffers == ()
    some = ModelLayout.of(with_batch_norm(), ["1.running_mean"])
    assert [block.name for block in some.buffers] == ["1.running_mean"]
    assert some.length == some.num_parameters + 16 + 1


def test_an_optimiser_uses_as_many_threads_as_the_server():
    def record(*_):
        seen.append(torch.get_num_threads())

    def steps(update, length):
        seen.clear()
        params = np.ones(length, np.float32)
        update.start(params)
        [optimizer] = update._running.optimizers
        optimizer.register_step_pre_hook(record)
        for threads in (3, 1):
            with using_threads(threads):
                update.apply(params, params, 0.1, params.copy())
        update.apply(params, params, 0.1, params.copy())
        return list(seen)

    seen, before = [], torch.get_num_threads()
    assert steps(TorchOptimizer(torch.optim.SGD), 3) == [3, 1, 1]
    assert steps(TorchOptimizer(torch.optim.SGD), LARGE) == [3, 1, before]
    assert steps(TorchOptimizer(torch.optim.Adafactor), LARGE) == [1, 1, 1], "its sums depend on the number of threads"
    assert torch.get_num_threads() == before
