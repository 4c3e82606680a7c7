"""Problems whose gradients come from a function of the user."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.core import sampler
from nowait.pytorch import TorchProblem

INPUTS = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(INPUTS, INPUTS.sum(1, keepdim=True))
METHOD = nw.AsynchronousSGD(nw.Constant(0.05))


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 1), nn.Linear(3, 1)


def both(model, batch, sample):
    """Each part has a loss of its own, which must not change the other part."""
    inputs, targets = batch
    first = mse_loss(model.first(inputs), targets)
    second = mse_loss(model.second(inputs), model.first(inputs))
    first.backward(inputs=list(model.first.parameters()))
    second.backward(inputs=list(model.second.parameters()))
    return {"loss": first + second, "first": first, "job": float(sample.job)}


def a_problem(manual=both, **options):
    return TorchProblem(Pair, None, DATA, **({"manual": manual, "batch_size": 8, "seed": 1} | options))


def test_gradients_are_those_that_the_function_leaves():
    problem, sample = a_problem(), sampler(0).sample(worker=0, job=3)
    point = problem.initial()
    gradient = problem.gradient(point, sample)
    model = problem.model(point).train()
    both(model, problem._batches.draw(sample, 0, 1), sample)
    assert (gradient == np.concatenate([parameter.grad.flatten() for parameter in model.parameters()])).all()
    assert problem.training_loss() > 0
    tensors = problem.gradient(torch.from_numpy(point), sample)
    assert (tensors.numpy() == gradient).all()


def test_one_loss_by_hand_is_the_same_run_as_without_manual():
    def usual(model, batch, sample):
        loss = mse_loss(model(batch[0]), batch[1])
        loss.backward()
        return loss

    options = {"batch_size": 4, "validation": DATA}
    by_hand = TorchProblem(lambda: nn.Linear(3, 1), mse_loss, DATA, manual=usual, **options)
    plain = TorchProblem(lambda: nn.Linear(3, 1), mse_loss, DATA, **options)
    runs = [nw.simulate(problem, METHOD, nw.speeds.Fixed([1.0, 3.0]), steps=20) for problem in (by_hand, plain)]
    assert (runs[0].params == runs[1].params).all()
    assert (runs[0].history.loss == runs[1].history.loss).all()


def test_the_function_gets_the_sample_of_the_ticket():
    seen = []

    def noted(model, batch, sample):
        seen.append((sample.worker, sample.job))
        return both(model, batch, sample)

    problem = a_problem(noted)
    problem.gradient(problem.initial(), sampler(0).sample(worker=2, job=5))
    assert seen[-1] == (2, 5)


def test_without_a_loss_evaluations_return_the_numbers_of_the_function_and_leave_no_gradients():
    problem = a_problem(validation=DATA)
    point = problem.initial()
    numbers = problem.evaluate(point)
    assert set(numbers) == {"loss", "first", "job"}
    assert problem.loss(point) == numbers["loss"] > numbers["first"]
    assert all(parameter.grad is None for parameter in problem._model_for(0, torch.device("cpu")).model.parameters())
    sample = sampler(0).sample(worker=0, job=0)
    before = problem.gradient(point, sample)
    problem.loss(point)
    assert (problem.gradient(point, sample) == before).all()


def test_a_run_with_several_losses_learns_and_replays():
    problem = a_problem()
    run = nw.simulate(problem, METHOD, nw.speeds.Fixed([1.0, 4.0]), steps=150, evaluate_every=50)
    assert run.history.metrics["first"][-1] < 0.1 * run.history.metrics["first"][0]
    assert (nw.replay(run.trace, problem, METHOD).params == run.params).all()


def no_backward(model, batch, sample):
    return mse_loss(model.first(batch[0]), batch[1])


def writes(model, batch, sample):
    result = both(model, batch, sample)
    with torch.no_grad():
        model.first.weight.add_(1.0)
    return result


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"manual": 3}, TypeError, "manual must be a function"),
        ({"manual": None}, TypeError, "loss must be a function"),
        ({"accumulate": 2}, ValueError, "accumulate and loss_scale have no effect"),
        ({"loss_scale": 8.0}, ValueError, "accumulate and loss_scale have no effect"),
        ({"metrics": {"accuracy": mse_loss}}, ValueError, "metrics= needs a loss"),
        ({"manual": no_backward}, ValueError, "manual left no gradients"),
        ({"manual": writes}, ValueError, "writes to its parameter first.weight"),
        ({"manual": lambda *arguments: {**both(*arguments), "name": "x"}}, TypeError, "'name' is str"),
        ({"manual": lambda *arguments: {"first": both(*arguments)["first"]}}, TypeError, "'loss' is NoneType"),
    ],
)
def test_mistakes_are_reported_when_the_problem_is_made(options, error, words):
    with pytest.raises(error, match=words):
        a_problem(**options)


def test_numbers_of_numpy_are_numbers():
    def with_numpy(*arguments):
        return {**both(*arguments), "accuracy": np.float32(0.5)}

    problem = a_problem(with_numpy)
    assert problem.evaluate(problem.initial())["accuracy"] == 0.5


def test_only_problems_of_a_framework_have_a_usual_stepsize():
    problem = a_problem()
    for ask in (problem.usual_stepsize, problem.usual_steps):
        with pytest.raises(TypeError, match="from_trainer and from_lightning"):
            ask()
    with pytest.raises(TypeError, match="Pair has no save_pretrained"):
        problem.save_pretrained(problem.initial(), "anywhere")
