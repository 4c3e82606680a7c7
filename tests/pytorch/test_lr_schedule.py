"""Schedulers of PyTorch as schedules of the stepsize."""

import pickle
from functools import partial
from importlib import import_module

import pytest
import torch
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.pytorch import TorchProblem, lr_schedule
from nowait.pytorch.adapter import Recipe
from nowait.pytorch.evaluation import UsualEvaluations
from nowait.pytorch.gradients import usual_forward
from nowait.pytorch.optimizer_kind import OptimizerKind


def sequence(optimizer):
    first = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=5)
    second = lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    return lr_scheduler.SequentialLR(optimizer, [first, second], milestones=[5])


@pytest.mark.parametrize(
    "make",
    [
        sequence,
        lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=40),
        lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 7),
    ],
    ids=["sequence", "lambda", "one cycle", "restarts"],
)
def test_factors_are_the_learning_rates_of_a_plain_loop_in_any_order(make):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9)
    scheduler, expected = make(optimizer), []
    for _ in range(30):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    schedule = lr_schedule(make)
    assert [schedule(step) for step in (30, 7, 1)] == [expected[29], expected[6], expected[0]]
    assert [schedule(step) for step in range(1, 31)] == expected


def test_a_torch_schedule_with_a_delay_rule_and_its_copy():
    rule = nw.Scheduled(nw.DelayAdaptive(0.8), lr_schedule(sequence))
    assert rule(8, 4, 1) == 0.4 * 0.1
    copy = pickle.loads(pickle.dumps(rule))
    assert copy(8, 4, 17) == rule(8, 4, 17)


def test_schedulers_that_are_no_function_of_the_step_are_refused():
    with pytest.raises(ValueError, match=r"does not give a factor for step 2: .*metrics"):
        lr_schedule(lr_scheduler.ReduceLROnPlateau)
    with pytest.raises(TypeError, match="a function that returns a scheduler, got None"):
        lr_schedule(lambda optimizer: None)
    short = lr_schedule(lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=10))
    for _ in range(2):
        with pytest.raises(ValueError, match="does not give a factor for step 12: Tried to step"):
            short(12)
    with pytest.raises(ValueError, match="step must be at least 1, got 0"):
        short(0)


class PlainAdapter:
    """As the adapter of a framework, without one: its schedule halves the learning rate every four steps."""

    recipe = Recipe(
        OptimizerKind(torch.optim.SGD),
        {},
        0.1,
        lr_schedule(lambda optimizer: lr_scheduler.StepLR(optimizer, 4, gamma=0.5)),
        10,
    )
    evaluates_sets_together = False

    def begin(self, sample):
        pass

    def evaluation(self, *, with_metrics):
        return UsualEvaluations(usual_forward, torch.nn.functional.mse_loss, {}).evaluation(with_metrics=with_metrics)

    def write_beside(self, folder):
        pass


def test_a_run_with_the_schedule_of_a_framework_resumes_without_its_method(tmp_path, monkeypatch):
    data = TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    loss = torch.nn.functional.mse_loss
    problem = TorchProblem(partial(torch.nn.Linear, 2, 1), loss, data, adapter=PlainAdapter())
    method = nw.AsynchronousSGD(problem.usual_stepsize())
    nw.train(problem, method, workers=1, steps=4, folder=tmp_path / "run", checkpoint_every=4)
    monkeypatch.setattr(import_module("nowait.api.resume"), "run_training", lambda training: training.method)
    resumed = nw.resume(tmp_path / "run", problem, steps=10)
    assert [resumed.stepsize(1, 1, step) for step in (4, 5, 10)] == [0.1, 0.05, 0.025]
