"""Optimisers with parameter groups and real shapes: the numbers of a plain loop, checkpoints, and refusals by trial."""

import copy
import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.api.rebuild import rebuild
from nowait.core import Layout, Server, sampler
from nowait.core.memory import HOST, to_host
from nowait.core.state import copies
from nowait.numerics.parallel import using_threads
from nowait.pytorch import TorchMemory, TorchOptimizer, TorchProblem
from nowait.pytorch.optimizer_kind import OptimizerKind
from nowait.recording import describe
from nowait.testing import gradient_from, train_scripted

INPUTS = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(INPUTS, (INPUTS[:, 0] > 0).long())
METHOD = nw.AsynchronousSGD(nw.Constant(0.05))
LAYOUT = Layout.of({"0.weight": (4, 3), "0.bias": (4,), "1.weight": (2, 4)})
AdamW, Muon, SGD = torch.optim.AdamW, torch.optim.Muon, torch.optim.SGD


class Lars(torch.optim.Optimizer):
    """A class of one's own: the step of a tensor is as long as a part of the tensor itself."""

    def __init__(self, params, lr, trust=0.1):
        super().__init__(params, {"lr": lr, "trust": trust})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                ratio = group["trust"] * parameter.norm() / parameter.grad.norm()
                parameter.sub_(parameter.grad, alpha=float(group["lr"] * ratio))


class Counting(SGD):
    """Keeps a Python number in the state of each parameter, and one in each group."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        for group in self.param_groups:
            group["shrink"] = 1.0

    def step(self):
        for group in self.param_groups:
            group["lr"] *= group["shrink"]
            group["shrink"] *= 0.9
            for parameter in group["params"]:
                count = self.state[parameter]["count"] = self.state[parameter].get("count", 0) + 1
                assert type(count) is int
        super().step()


def a_model():
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))


def a_problem():
    return TorchProblem(a_model, cross_entropy, DATA, batch_size=8)


def plain_loop(make_optimizers, steps):
    """Run a plain PyTorch loop over the same batches."""
    torch.manual_seed(0)
    model = a_model()
    optimizers = make_optimizers(dict(model.named_parameters()))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for job in range(steps):
        model.zero_grad()
        places = sampler(0).sample(0, job).indices(len(DATA), 8)
        cross_entropy(model(INPUTS[places]), DATA.tensors[1][places]).backward()
        for optimizer in optimizers:
            optimizer.step()
    torch.set_num_threads(threads)
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).numpy()


def no_decay(name, parameter):
    """No decay for biases and norms, and smaller steps in the first layer."""
    options = {"weight_decay": 0.0} if parameter.ndim < 2 else {}
    return options | ({"stepsize_factor": 0.5} if name.startswith("0.") else {})


def adamw_with_groups(named, **options):
    return [
        AdamW(
            [
                {"params": [named["0.weight"]], "lr": 0.025},
                {"params": [named["0.bias"]], "lr": 0.025, "weight_decay": 0.0},
                {"params": [named["1.weight"], named["1.bias"], named["3.bias"]], "weight_decay": 0.0},
                {"params": [named["3.weight"]]},
            ],
            lr=0.05,
            weight_decay=0.3,
            **options,
        )
    ]


def muon_for_matrices(name, parameter):
    return {} if parameter.ndim == 2 else {"optimizer": AdamW, "betas": (0.5, 0.9), "stepsize_factor": 0.1}


def muon_and_adamw(named):
    matrices = [parameter for parameter in named.values() if parameter.ndim == 2]
    others = [parameter for parameter in named.values() if parameter.ndim != 2]
    return [Muon(matrices, lr=0.05), AdamW(others, lr=0.05 * 0.1, betas=(0.5, 0.9), fused=True)]


@pytest.mark.parametrize(
    ("update", "make_optimizers"),
    [
        (TorchOptimizer(AdamW, weight_decay=0.3, groups=no_decay, fused=False), adamw_with_groups),
        (
            TorchOptimizer(AdamW, weight_decay=0.3, groups=no_decay),
            lambda named: adamw_with_groups(named, fused=True),
        ),
        (TorchOptimizer(torch.optim.Adafactor), lambda named: [torch.optim.Adafactor(named.values(), lr=0.05)]),
        (TorchOptimizer(Muon, groups=muon_for_matrices), muon_and_adamw),
        (TorchOptimizer(Lars, trust=0.2), lambda named: [Lars(named.values(), lr=0.05, trust=0.2)]),
        (TorchOptimizer(SGD, momentum=0.5, groups={}), lambda n: [SGD(n.values(), 0.05, momentum=0.5, fused=True)]),
    ],
    ids=["AdamW", "AdamW, fused", "Adafactor", "Muon and AdamW", "a class of one's own", "SGD, fused"],
)
def test_one_worker_is_a_plain_loop_bit_for_bit(update, make_optimizers):
    run = train_scripted(a_problem(), METHOD, workers=1, steps=20, update=update)
    assert np.array_equal(run.last, plain_loop(make_optimizers, 20))


def test_parameters_with_equal_options_share_a_group():
    update = TorchOptimizer(AdamW, groups=no_decay)
    problem = a_problem()
    update.start_with_layout(problem.initial(), problem.layout)
    [optimizer] = update._running.optimizers
    assert [(len(group["params"]), group["stepsize_factor"]) for group in optimizer.param_groups] == [
        (1, 0.5),
        (1, 0.5),
        (3, 1.0),
        (1, 1.0),
    ]


def test_groups_see_names_and_shapes_but_no_values():
    seen = {}
    TorchOptimizer(AdamW, groups=lambda name, parameter: seen.update({name: parameter})).check(LAYOUT)
    assert {name: tuple(parameter.shape) for name, parameter in seen.items()} == {
        name: block.shape for name, block in LAYOUT.items()
    }
    assert all(isinstance(parameter, nn.Parameter) and parameter.is_meta for parameter in seen.values())


def test_a_trial_shows_which_optimisers_treat_all_entries_alike():
    kinds = [
        kind for kind in vars(torch.optim).values() if isinstance(kind, type) and kind is not torch.optim.Optimizer
    ]
    others = {kind.__name__ for kind in kinds if not OptimizerKind(kind).is_elementwise()}
    assert others == {"Adafactor", "LBFGS", "Muon", "SparseAdam"}
    assert not OptimizerKind(Lars).is_elementwise()
    assert not OptimizerKind(Counting).is_elementwise(), "no trial shows all that a class of one's own does"


@pytest.mark.parametrize(
    "make",
    [
        lambda: TorchOptimizer(AdamW, groups=no_decay),
        lambda: TorchOptimizer(torch.optim.Adafactor),
        lambda: TorchOptimizer(Muon, groups=muon_for_matrices),
        lambda: TorchOptimizer(Counting),
        lambda: TorchOptimizer(torch.optim.NAdam, groups=no_decay, weight_decay=0.1),
    ],
    ids=["AdamW", "Adafactor", "Muon and AdamW", "numbers", "NAdam"],
)
@pytest.mark.parametrize("memory", [HOST, TorchMemory("cpu")], ids=["host", "tensors"])
def test_a_restored_optimiser_goes_on_with_the_same_bits(make, memory):
    generator = np.random.default_rng(0)
    directions = [memory.from_host(generator.normal(size=24).astype(np.float32)) for _ in range(6)]

    def steps(update, params, directions):
        for direction in directions:
            out = memory.from_host(np.full(24, np.nan, np.float32))
            update.stepper(params)(params, direction, 0.1, out)
            params = out
        return params

    update, again = make(), make()
    first = memory.from_host(np.linspace(-1, 1, 24).astype(np.float32))
    for one in (update, again):
        one.start_with_layout(first, LAYOUT)
    middle = steps(update, first, directions[:3])
    state = copies(update.state())
    numbers = {name: value for name, value in state.items() if not isinstance(value, np.ndarray)}
    again.restore(state | json.loads(json.dumps(numbers)))
    expected, restored = (steps(one, middle, directions[3:]) for one in (update, again))
    assert np.array_equal(to_host(restored), to_host(expected))
    assert {name: str(value) for name, value in again.state().items()} == {
        name: str(value) for name, value in update.state().items()
    }


def test_a_state_of_params_as_one_vector_is_divided_among_the_parameters():
    flat, blocks = TorchOptimizer(AdamW, fused=False), TorchOptimizer(AdamW, fused=False, groups={})
    params = np.linspace(-1, 1, 24).astype(np.float32)
    outs = [np.empty_like(params) for _ in range(2)]
    for update in (flat, blocks):
        update.start_with_layout(params, LAYOUT)
    flat.apply(params, params, 0.1, outs[0])
    blocks.restore(copies(flat.state()))
    for update, out in zip((flat, blocks), outs, strict=True):
        update.apply(params, params, 0.1, out)
    assert np.array_equal(*outs)
    with pytest.raises(ValueError, match="no such parameter"):
        blocks.restore({"2.weight/step": 1.0})


@pytest.mark.parametrize("kind", [AdamW, SGD])
def test_bits_of_fused_steps_do_not_depend_on_the_number_of_threads(kind):
    generator = np.random.default_rng(0)
    params, direction = (generator.normal(size=70_003).astype(np.float32) for _ in range(2))
    update = TorchOptimizer(kind, **({"momentum": 0.9} if kind is SGD else {}))
    results = []
    for threads in (1, 2, 3):
        out = np.empty_like(params)
        update.start(params)
        with using_threads(threads):
            update.apply(params, direction, 0.1, out)
            update.apply(out.copy(), direction, 0.1, out)
        results.append(out)
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


# Descriptions


def test_a_description_without_fused_is_of_a_version_that_fused_on_devices_only():
    described = describe(TorchOptimizer(AdamW, fused=False))
    assert described["fused"] is False
    assert repr(rebuild(described, "update")) == "TorchOptimizer(AdamW, fused=False)"
    for choice in (True, "device"):
        written = json.loads(json.dumps(describe(TorchOptimizer(AdamW, fused=choice))))  # as in config.json
        assert describe(rebuild(written, "update"))["fused"] == choice
    del described["fused"]
    assert repr(rebuild(described, "update")) == "TorchOptimizer(AdamW, fused='device')"


def test_groups_are_described_by_name_once_the_parameters_are_known():
    update = TorchOptimizer(AdamW, groups=no_decay)
    with pytest.raises(ValueError, match=r"parameter groups of the run are not recorded: pass update= again"):
        rebuild(describe(update), "update")
    update.check(LAYOUT)
    described = describe(update)
    assert described["groups"] == {
        "0.weight": {"stepsize_factor": 0.5},
        "0.bias": {"weight_decay": 0.0, "stepsize_factor": 0.5},
    }
    made = rebuild(described, "update")
    made.check(LAYOUT)
    assert describe(made) == described
    harmful = copy.deepcopy(described)
    harmful["groups"]["0.bias"]["optimizer"] = "lr_scheduler"
    with pytest.raises(ValueError, match=r"torch.optim has no optimiser lr_scheduler"):
        rebuild(harmful, "update")


# Refusals


class OddState(SGD):
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["seen"] = ["a list"]


class GlobalState(SGD):
    def step(self):
        self.state["total"]["steps"] = 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TorchOptimizer(Muon), r"Muon failed in a trial step .*: Muon only supports 2D parameters"),
        (lambda: TorchOptimizer(OddState), "OddState failed in a trial step .*: its state has a list"),
        (lambda: TorchOptimizer(GlobalState), "GlobalState failed .*: it has state that belongs to no parameter"),
        (lambda: TorchOptimizer(AdamW, groups=lambda *_: {"weight_decy": 0.0}), "the option 'weight_decy': AdamW has"),
        (lambda: TorchOptimizer(AdamW, groups=lambda *_: {"lr": 0.1}), "an lr: give it a stepsize_factor"),
        (lambda: TorchOptimizer(AdamW, groups=lambda *_: {"fused": True}), "the option 'fused'"),
        (lambda: TorchOptimizer(AdamW, groups=lambda *_: {"stepsize_factor": -1}), "stepsize_factor must be"),
        (lambda: TorchOptimizer(AdamW, groups=lambda *_: {"betas": (2, 2)}), "AdamW failed"),
        (lambda: TorchOptimizer(AdamW, groups=lambda *_: 3), "must return a dict of options, got 3"),
        (lambda: TorchOptimizer(AdamW, groups=lambda _, one: {"eps": float(one.sum())}), "meta"),
        (lambda: TorchOptimizer(AdamW, groups=lambda *_: {"optimizer": torch.optim.LBFGS}), "LBFGS failed"),
        (lambda: TorchOptimizer(AdamW, groups=lambda *_: {"optimizer": "SGD"}), "must be a class of torch.optim"),
        (lambda: TorchOptimizer(AdamW, groups={"head": {}}), "groups names 'head', which is no parameter"),
    ],
)
def test_what_a_trial_refuses_is_refused_before_workers_start(make, message, monkeypatch):
    monkeypatch.setattr("nowait.api.parts.Server", None)
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message):
        nw.train(a_problem(), METHOD, workers=1, steps=1, update=make())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TorchOptimizer(torch.optim.SparseAdam), "SparseAdam failed in a trial step"),
        (lambda: TorchOptimizer(AdamW, groups=3), "groups must be a function"),
        (lambda: TorchOptimizer(AdamW, fused="always"), "fused must be True, False or \"device\", got 'always'"),
    ],
)
def test_bad_arguments_are_refused_at_once(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_sgd_without_options_is_plain_and_everything_else_is_not():
    assert TorchOptimizer(SGD).is_plain
    assert TorchOptimizer(SGD, momentum=0.0, weight_decay=0).is_plain
    assert TorchOptimizer(SGD, foreach=True).is_plain, "the steps are the same"
    options = ({"momentum": 0.9}, {"weight_decay": 0.1}, {"maximize": True}, {"scale": "gradient"}, {"groups": {}})
    assert not any(TorchOptimizer(SGD, **option).is_plain for option in options)
    assert not TorchOptimizer(AdamW).is_plain
    assert not TorchOptimizer(Counting).is_plain


def test_auto_adds_its_momentum_to_the_default_of_a_problem_and_none_to_its_optimiser():
    speeds, options = nw.speeds.Fixed(1.0, workers=2), {"steps": 3, "progress": False}
    expected = {None: nw.Nesterov(0.9), TorchOptimizer(AdamW): TorchOptimizer(AdamW)}
    for update, same in expected.items():
        problem = TorchProblem(a_model, cross_entropy, DATA, batch_size=8, update=update)
        run = nw.simulate(problem, nw.Auto(0.01), speeds, **options)
        minibatches = nw.simulate(problem, nw.MinibatchSGD(0.01), speeds, update=same, **options)
        np.testing.assert_allclose(run.params, minibatches.params, rtol=1e-5, atol=1e-7)


def test_asynchronous_steps_of_auto_decay_weights_in_proportion_to_their_stepsize():
    """Of AdamW: with gradients of 0, only the decay changes params."""
    update = TorchOptimizer(AdamW, weight_decay=0.5)
    server = Server(nw.Auto(0.1), np.ones(2), 4, update=update)
    server.start()
    server.method.waits_for, server.method.until_choice = 0, 100
    for turn in range(4):
        server.handle(gradient_from(server, worker=turn, time=1.0, gradient=0.0))
    np.testing.assert_allclose(server.params, (1 - 0.1 / (2 * 4**0.5) * 0.5) ** 4)
