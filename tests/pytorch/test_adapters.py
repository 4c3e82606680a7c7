"""Problems from a Hugging Face Trainer and a LightningModule, with the real packages: ``make test-adapters``.

They take seconds to import, so only the tests that use one import it.
"""

from importlib.util import find_spec

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

import nowait as nw
from hugging_face_trainers import a_trainer, gpt2
from nowait.core import sampler
from nowait.pytorch import TorchProblem

PACKAGES = ("transformers", "lightning", "peft", "torchmetrics")
pytestmark = pytest.mark.skipif(not all(map(find_spec, PACKAGES)), reason="needs the packages of nowait[adapters]")

SAMPLE = sampler(0).sample(worker=1, job=2)
SPEEDS = nw.speeds.Fixed([1.0, 3.0])


def gradient_of(loss, model):
    loss.backward()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return np.concatenate([parameter.grad.flatten().numpy() for parameter in trained])


# Hugging Face


def gradient_of_training_step(trainer, model, batch):
    """A Trainer divides the loss by the number of labels that it counts, also if the loss has fewer terms."""
    trainer.current_gradient_accumulation_steps = 1
    trainer.training_step(model, dict(batch), trainer._get_num_items_in_batch([batch], torch.device("cpu")))
    return np.concatenate([parameter.grad.flatten().numpy() for parameter in model.parameters()])


def test_the_gradient_is_that_of_a_step_of_the_trainer(tmp_path):
    trainer = a_trainer(tmp_path, settings={"max_grad_norm": 0.0, "label_smoothing_factor": 0.1})
    problem = TorchProblem.from_trainer(trainer)
    batch = problem._batches.draw(SAMPLE, 0, 1)
    assert set(batch) == {"input_ids", "labels"}
    expected = gradient_of_training_step(trainer, gpt2(), batch)
    gradient = problem.gradient(problem.initial(), SAMPLE)
    assert gradient == pytest.approx(expected, rel=1e-4, abs=1e-7)
    tensors = problem.gradient(torch.from_numpy(problem.initial()), SAMPLE)
    assert (tensors.numpy() == gradient).all()
    assert trainer.model is not None
    assert trainer.optimizer is None


def test_a_trainer_that_overrides_its_loss_is_asked(tmp_path):
    import transformers

    class Scaled(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **options):
            assert self.model is model
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **options)
            return (2 * loss, outputs) if return_outputs else 2 * loss

    usual, scaled = (TorchProblem.from_trainer(a_trainer(tmp_path, kind)) for kind in (None, Scaled))
    point = usual.initial()
    assert scaled.loss(point) == pytest.approx(2 * usual.loss(point))
    scaled.gradient(point, SAMPLE)
    assert scaled.training_loss() == pytest.approx(2 * _training_loss(usual, point))


def _training_loss(problem, point):
    problem.gradient(point, SAMPLE)
    return problem.training_loss()


def test_evaluations_are_those_of_the_trainer(tmp_path):
    trainer = a_trainer(tmp_path)
    numbers, own = (
        TorchProblem.from_trainer(trainer).evaluate(TorchProblem.from_trainer(trainer).initial()),
        trainer.evaluate(),
    )
    assert set(numbers) == {"loss", "accuracy", "count"}
    assert numbers["count"] == 22 * 5
    assert numbers["accuracy"] == pytest.approx(own["eval_accuracy"])
    assert numbers["loss"] == pytest.approx(own["eval_loss"], rel=1e-5)


def test_the_optimiser_has_the_trainers_groups_and_its_schedule(tmp_path):
    settings = {
        "weight_decay": 0.1,
        "learning_rate": 0.003,
        "warmup_steps": 4,
        "adam_beta1": 0.5,
        "num_train_epochs": 8,
    }
    trainer = a_trainer(tmp_path, settings=settings | {"gradient_accumulation_steps": 2})
    problem = TorchProblem.from_trainer(trainer)
    described = problem.usual_update().described()
    assert described["optimizer"] == "AdamW"
    assert described["options"] == {"betas": (0.5, 0.999)}
    decay = {name for name, options in described["groups"].items() if options == {"weight_decay": 0.1}}
    assert decay == set(trainer.get_decay_parameter_names(trainer.model)) & set(problem.layout)
    assert problem.usual_steps() == 8 * 3  # 20 items are 5 batches, which are 3 steps
    rule = problem.usual_stepsize()
    assert [rule(1, 2, step) for step in (1, 3, 5, 15)] == pytest.approx([0, 0.0015, 0.003, 0.0015])


def test_a_run_from_a_trainer_learns_replays_and_is_read_by_from_pretrained(tmp_path):
    import transformers

    settings = {"learning_rate": 0.01, "max_steps": 60, "lr_scheduler_type": "cosine"}
    problem = TorchProblem.from_trainer(a_trainer(tmp_path, settings=settings))
    method = nw.AsynchronousSGD(problem.usual_stepsize())
    run = nw.simulate(problem, method, SPEEDS, steps=problem.usual_steps(), evaluate_every=20)
    assert run.history.metrics["accuracy"][-1] > 0.5 > run.history.metrics["accuracy"][0]
    assert (nw.replay(run.trace, problem, method).params == run.params).all()
    problem.save_pretrained(run.params, tmp_path / "model")
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "model")
    assert (problem.params_of(again) == run.params).all()


def test_what_workers_get_computes_the_same_gradients(tmp_path):
    problem = TorchProblem.from_trainer(a_trainer(tmp_path))
    problem.loss(problem.initial())
    sent = cloudpickle.loads(cloudpickle.dumps(problem))
    point = problem.initial()
    assert (sent.gradient(point, SAMPLE) == problem.gradient(point, SAMPLE)).all()
    assert sent.evaluate(point) == problem.evaluate(point)


def test_a_lora_model_in_a_trainer_trains_and_saves_only_the_adapter(tmp_path):
    import peft

    config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    model = peft.get_peft_model(gpt2(), config)
    trainer = a_trainer(tmp_path, model=model, settings={"max_steps": 5, "lr_scheduler_type": "constant"})
    problem = TorchProblem.from_trainer(trainer)
    assert problem.dimension == 2 * (8 + 24)
    run = nw.simulate(problem, nw.AsynchronousSGD(problem.usual_stepsize()), SPEEDS, steps=5)
    problem.save_pretrained(run.params, tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").stat().st_size < 4_000
    again = peft.PeftModel.from_pretrained(gpt2(), tmp_path / "adapter", is_trainable=True)
    assert (problem.params_of(again) == run.params).all()


def test_trainers_that_cannot_be_used_are_refused(tmp_path):
    model = gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pair = (optimizer, lr_scheduler.LambdaLR(optimizer, lambda step: 1.0))
    for trainer, words in [
        (a_trainer(tmp_path, model=model, optimizers=pair), "has a scheduler that belongs to its optimiser"),
        (a_trainer(tmp_path, settings={"neftune_noise_alpha": 5.0}), "neftune_noise_alpha"),
        (a_trainer(tmp_path, train_dataset=None), "the trainer has no train_dataset"),
    ]:
        with pytest.raises(ValueError, match=words):
            TorchProblem.from_trainer(trainer)
    with pytest.raises(TypeError, match=r"needs a transformers\.Trainer"):
        TorchProblem.from_trainer(model)
    with pytest.raises(ValueError, match="the first device must be that of the trainer, cpu, got cuda:1"):
        TorchProblem.from_trainer(a_trainer(tmp_path), device=["cuda:1", "cpu"])
    with pytest.raises(TypeError, match="compute_metrics must return a dict of numbers by name, got a int"):
        TorchProblem.from_trainer(a_trainer(tmp_path, compute_metrics=lambda predictions: 3))
    with pytest.raises(ValueError, match="metrics of their own"):
        TorchProblem.from_trainer(a_trainer(tmp_path), metrics={"accuracy": cross_entropy})


def test_local_steps_of_a_trainer_have_its_optimiser_inside_and_sgd_at_the_server(tmp_path):
    problem = TorchProblem.from_trainer(a_trainer(tmp_path))
    local = nw.problems.LocalSteps(problem, 3, 0.003, update=problem.usual_update())
    run = nw.simulate(local, nw.AsynchronousSGD(nw.Constant(1.0)), SPEEDS, steps=6)
    assert run.config["update"] == {"type": "Sgd"}
    assert run.history.loss[-1] < run.history.loss[0]
    assert np.isfinite(run.history.metrics["accuracy"]).all()


# Lightning


def test_the_gradient_is_that_of_training_step():
    from lightning_modules import Classifier, Items

    problem = TorchProblem.from_lightning(Classifier(), Items())
    inputs, targets = problem._batches.draw(SAMPLE, 0, 1)
    model = Classifier()
    expected = gradient_of(cross_entropy(model(inputs), targets), model)
    assert (problem.gradient(problem.initial(), SAMPLE) == expected).all()
    sent = cloudpickle.loads(cloudpickle.dumps(problem))
    assert (sent.gradient(problem.initial(), SAMPLE) == expected).all()


def test_what_the_module_logs_in_evaluations_are_the_metrics():
    from lightning_modules import DATA, INPUTS, Classifier, Items

    problem = TorchProblem.from_lightning(Classifier(), Items())
    model = Classifier()
    output = model(INPUTS).detach()
    for _ in range(2):  # the metrics are reset
        numbers = problem.evaluate(problem.initial())
        assert set(numbers) == {"loss", "val_loss", "val_accuracy", "positive", "constant"}
        assert numbers["loss"] == numbers["val_loss"] == pytest.approx(float(cross_entropy(output, DATA.tensors[1])))
        assert numbers["val_accuracy"] == pytest.approx(float((output.argmax(1) == DATA.tensors[1]).float().mean()))
        assert numbers["positive"] == pytest.approx(float(DATA.tensors[1].float().mean()))


def test_a_run_from_a_module_learns_and_replays():
    from lightning_modules import Classifier, Items

    problem = TorchProblem.from_lightning(Classifier(), Items(), epochs=8)
    assert problem.usual_steps() == 8 * 13
    method = nw.AsynchronousSGD(problem.usual_stepsize())
    run = nw.simulate(problem, method, SPEEDS, steps=problem.usual_steps(), evaluate_every=50)
    assert run.history.metrics["val_accuracy"][-1] > 0.9
    assert (nw.replay(run.trace, problem, method).params == run.params).all()
    assert isinstance(run.model(), Classifier)
    assert "log" not in vars(problem._model_for(0, torch.device("cpu")).model)


def test_groups_and_a_scheduler_that_steps_once_per_epoch():
    from lightning_modules import Items, Scheduled

    problem = TorchProblem.from_lightning(Scheduled(), Items(), batch_size=10)
    groups = problem.usual_update().described()["groups"]
    assert groups == {name: {"weight_decay": 0.1, "stepsize_factor": 0.5} for name in ("head.weight", "head.bias")}
    rule = problem.usual_stepsize()
    assert [rule(1, 2, step) for step in (1, 5, 6, 11)] == pytest.approx([0.1, 0.1, 0.05, 0.025])


def test_a_scheduler_every_few_steps_and_parameters_that_the_optimiser_does_not_have():
    from lightning_modules import Items, Scheduled

    module = Scheduled()
    module.form = "lists"
    problem = TorchProblem.from_lightning(module, Items())
    rule = problem.usual_stepsize()
    assert [rule(1, 2, step) for step in (1, 3, 4, 7)] == pytest.approx([0.1, 0.1, 0.05, 0.025])
    run = nw.simulate(problem, nw.AsynchronousSGD(rule), SPEEDS, steps=5)
    body = problem.layout["body.weight"]
    assert (body.of(run.params) == body.of(problem.initial())).all()
    assert (run.params != problem.initial()).any()


def test_a_module_needs_no_validation_data_and_workers_may_have_batches_of_their_own():
    from lightning_modules import Classifier, Items

    class WithoutValidation(Items):
        def val_dataloader(self):
            return None

    sizes = {"batch_size": {0: 2, "default": 4}, "accumulate": {0: 2, "default": 1}}
    problem = TorchProblem.from_lightning(Classifier(), WithoutValidation(), **sizes)
    assert problem.usual_steps() == 13
    assert problem.evaluate(problem.initial())["val_accuracy"] >= 0


def test_modules_that_cannot_be_used_are_refused(caplog):
    from lightning_modules import DATA, Classifier, Items

    class Manual(Classifier):
        automatic_optimization = False

    class Two(Classifier):
        def configure_optimizers(self):
            return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.body, self.head)]

    for module, data, words in [
        (Manual(), Items(), "Manual uses manual optimisation"),
        (Two(), Items(), "one optimiser with at most one scheduler"),
    ]:
        with pytest.raises(ValueError, match=words):
            TorchProblem.from_lightning(module, data)
    with pytest.raises(TypeError, match="needs a LightningModule"):
        TorchProblem.from_lightning(nn.Linear(2, 2), Items())

    class WithoutBatches(Items):
        def train_dataloader(self):
            return DataLoader(self.data, batch_size=None)

    for data, words in [
        (DATA, "datamodule must be a LightningDataModule object, got a TensorDataset"),
        (Items, "datamodule must be a LightningDataModule object, got the class Items"),
        (WithoutBatches(), "a DataLoader with a batch_size, as every gradient is of a batch"),
    ]:
        with pytest.raises(TypeError, match=words):
            TorchProblem.from_lightning(Classifier(), data)

    class Hooked(Classifier):
        def on_train_batch_end(self, *arguments):
            pass

    TorchProblem.from_lightning(Hooked(), Items())
    assert "overrides on_train_batch_end, which is not called" in caplog.text
