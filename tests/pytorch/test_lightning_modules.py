"""What a LightningModule reads and logs in workers, and the loaders of which its problem is made."""

import inspect
from importlib.util import find_spec
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import nowait as nw
from nowait.core import sampler
from nowait.pytorch import TorchProblem
from nowait.testing import train_scripted

pytestmark = pytest.mark.skipif(find_spec("lightning") is None, reason="needs the packages of nowait[adapters]")

SPEEDS = nw.speeds.Fixed([1.0, 3.0])
SGD = nw.AsynchronousSGD(nw.Constant(0.01))


def loader(count=50, batch_size=4, **options):
    from lightning_modules import DATA

    return DataLoader(Subset(DATA, range(count)), batch_size=batch_size, **({"shuffle": True} | options))


def annealed(read):
    """Return a module whose loss has the weight that ``read(module, batch_idx)`` returns."""
    from lightning_modules import Classifier

    class Annealed(Classifier):
        def training_step(self, batch, batch_idx):
            return (1 + read(self, batch_idx)) * cross_entropy(self(batch[0]), batch[1])

    return Annealed()


def weights_of(problem, tickets):
    """Return the weights of the losses of tickets, from their gradients."""
    point, samples = problem.initial(), sampler(0)
    plain = problem.gradient(point, samples.sample(0, 0))
    gradients = [problem.gradient(point, samples.sample(0, 0, ticket)) for ticket in tickets]
    return [float(gradient @ plain / (plain @ plain)) for gradient in gradients]


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda module, batch_idx: module.global_step, [0, 5, 12, 13, 130]),
        (lambda module, batch_idx: module.current_epoch, [0, 0, 0, 1, 10]),
        (lambda module, batch_idx: batch_idx, [0, 5, 12, 0, 0]),
        (lambda module, batch_idx: module.trainer.global_step / module.trainer.max_steps, [0, 5 / 26, 12 / 26, 0.5, 5]),
    ],
    ids=["global_step", "current_epoch", "batch_idx", "of_the_trainer"],
)
def test_steps_epochs_and_batches_are_those_of_the_whole_run(read, expected):
    from lightning_modules import Items

    problem = TorchProblem.from_lightning(annealed(read), Items(), epochs=2)  # 50 items are 13 batches
    assert weights_of(problem, [0, 5, 12, 13, 130]) == pytest.approx([1 + value for value in expected], rel=1e-4)
    sent = cloudpickle.loads(cloudpickle.dumps(problem))
    assert weights_of(sent, [5]) == weights_of(problem, [5])


def test_the_batches_of_one_gradient_have_numbers_of_their_own():
    from lightning_modules import Items

    numbers = []
    module = annealed(lambda module, batch_idx: numbers.append(batch_idx) or 0)
    problem = TorchProblem.from_lightning(module, Items(), accumulate=3)
    numbers.clear()
    for ticket in (0, 1, 5):
        problem.gradient(problem.initial(), sampler(0).sample(0, 0, ticket))
    assert numbers == [0, 1, 2, 3, 4, 5, 0, 1, 2]  # an epoch has 5 steps


def test_annealing_starts_in_workers_and_the_run_replays():
    from lightning_modules import Items

    problem = TorchProblem.from_lightning(annealed(lambda module, _: module.current_epoch), Items(), epochs=3)
    for run in (
        nw.simulate(problem, SGD, SPEEDS, steps=problem.usual_steps()),
        train_scripted(problem, SGD, steps=20, workers=2),
    ):
        assert (nw.replay(run.trace, problem, SGD).params == run.params).all()
    frozen = TorchProblem.from_lightning(annealed(lambda module, _: 0), Items(), epochs=3)
    other = nw.simulate(frozen, SGD, SPEEDS, steps=problem.usual_steps())
    assert (other.params != nw.simulate(problem, SGD, SPEEDS, steps=problem.usual_steps()).params).any()


def test_a_module_reads_what_is_known_of_its_trainer_and_an_error_names_it(caplog):
    from lightning_modules import Classifier, Items

    class Reads(Classifier):
        def setup(self, stage):
            assert self.trainer.estimated_stepping_batches == 26

        def training_step(self, batch, batch_idx):
            assert (self.trainer.max_epochs, self.trainer.num_training_batches) == (2, 13)
            assert self.trainer.is_global_zero
            assert self.trainer.training
            assert self.logger is None
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            assert self.trainer.validating
            assert (self.global_step, self.current_epoch) == (0, 0)
            return super().validation_step(batch, batch_idx)

    class Wants(Classifier):
        def training_step(self, batch, batch_idx):
            return self.trainer.strategy

    problem = TorchProblem.from_lightning(Reads(), Items(), epochs=2)
    problem.gradient(problem.initial(), sampler(0).sample(0, 0, 3))
    assert problem.model(problem.initial())._trainer is None
    attached, trainer = Classifier(), SimpleNamespace()
    attached.trainer = trainer
    TorchProblem.from_lightning(attached, Items())
    assert attached.trainer is trainer
    with pytest.raises(AttributeError, match=r"self.trainer has no strategy here: .* only current_epoch, global_step"):
        TorchProblem.from_lightning(Wants(), Items())


def test_what_training_step_logs_is_named_once(caplog):
    from lightning_modules import Classifier, Items

    sent = cloudpickle.loads(cloudpickle.dumps(TorchProblem.from_lightning(Classifier(), Items())))
    sent.gradient(sent.initial(), sampler(0).sample(0, 0))
    assert caplog.text.count("training_step of Classifier logs seen: workers drop it") == 1
    assert "The mean of their losses is the metric training_loss; log other metrics in validation_step" in caplog.text


@pytest.mark.parametrize("logged", ["loss", "loss.detach()", "loss.item()", "2 * loss"])
def test_a_logged_training_loss_is_not_lost(logged, caplog):
    from lightning_modules import Classifier, Items

    class Usual(Classifier):
        def training_step(self, batch, batch_idx):
            loss = cross_entropy(self(batch[0]), batch[1])
            self.log("train_loss", eval(logged, {"loss": loss}), prog_bar=True)
            return loss

    problem = TorchProblem.from_lightning(Usual(), Items())
    problem.gradient(problem.initial(), sampler(0).sample(0, 0))
    assert problem.training_loss() > 0
    assert ("workers drop it" in caplog.text) is (logged == "2 * loss")


def test_options_of_loaders_without_effect_are_named_in_one_line(caplog):
    from lightning_modules import DATA, Classifier

    def loaders(**options):
        return DataLoader(DATA, batch_size=4, shuffle=True, **options), DataLoader(DATA, batch_size=50, **options)

    train, validation = loaders(num_workers=2, pin_memory=True, persistent_workers=True, timeout=3)
    TorchProblem.from_lightning(Classifier(), train, [validation, loaders()[1]])
    told = "num_workers, pin_memory, persistent_workers, timeout"
    expected = f"{told} of train_dataloader; {told} of val_dataloader: no effect here, because every worker loads its"
    assert [record.getMessage()[: len(expected)] for record in caplog.records if "no effect" in record.msg] == [
        expected
    ]

    caplog.clear()
    TorchProblem.from_lightning(Classifier(), *loaders())
    TorchProblem.from_lightning(Classifier(), *loaders(num_workers=2), loader_workers=2)
    assert "no effect here" not in caplog.text


def test_every_hook_of_training_is_called_or_named_if_it_is_overridden():
    from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks

    from nowait.pytorch.lightning import NOT_CALLED

    called = {"configure_model", "on_after_batch_transfer", "on_before_batch_transfer", "prepare_data", "setup"}
    called |= {"on_validation_epoch_end", "on_validation_epoch_start", "train_dataloader", "val_dataloader"}
    hooks = {name for kind in (CheckpointHooks, DataHooks, ModelHooks) for name in vars(kind) if name[0] != "_"}
    hooks = {name for name in hooks if "test" not in name and "predict" not in name}
    assert hooks - called - set(NOT_CALLED) == set()


@pytest.mark.parametrize(
    "step",
    [
        lambda module, batch: None,
        lambda module, batch, batch_idx, **options: options,
        lambda module, batch, batch_idx, *, verbose=False: verbose,
        lambda module, *arguments, **options: arguments[1],
    ],
    ids=["batch", "keywords", "keyword_only", "any"],
)
def test_a_step_gets_as_many_arguments_as_it_takes(step):
    from lightning_modules import Classifier, Items

    def training_step(self, *arguments, **options):
        step(self, *arguments, **options)
        return Classifier.training_step(self, arguments[0], 0)

    training_step.__signature__ = inspect.signature(step)
    kind = type("Mine", (Classifier,), {"training_step": training_step})
    problem = TorchProblem.from_lightning(kind(), Items())
    assert np.isfinite(problem.gradient(problem.initial(), sampler(0).sample(0, 0))).all()


def test_a_module_inside_of_another_logs_and_modules_may_print_and_read_their_trainers_model(capsys):
    from lightning_modules import Classifier, Items

    class Outer(Classifier):
        def __init__(self):
            super().__init__()
            self.inner = Classifier()

        def training_step(self, batch, batch_idx):
            self.print("a step")
            return self.inner.training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            return self.inner.validation_step(batch, batch_idx)

        def configure_optimizers(self):
            return torch.optim.SGD(self.trainer.model.inner.parameters(), lr=0.5)

    problem = TorchProblem.from_lightning(Outer(), Items())
    assert {"val_loss", "val_accuracy", "positive"} <= problem.evaluate(problem.initial()).keys()
    assert "a step" in capsys.readouterr().out


def test_an_error_about_a_logger_that_is_none_says_why():
    from lightning_modules import Classifier, Items

    class Draws(Classifier):
        def validation_step(self, batch, batch_idx):
            self.logger.experiment.add_scalar("loss", 1.0)

    class Refuses(Classifier):
        def training_step(self, batch, batch_idx):
            raise AttributeError("my own error")

    with pytest.raises(AttributeError, match="my own error") as own:
        TorchProblem.from_lightning(Refuses(), Items())
    assert not hasattr(own.value, "__notes__")

    class Divides(Items):
        def setup(self, stage):
            self.size = 8 // self.trainer.world_size

    for module, data in ((Draws(), Items()), (Classifier(), Divides())):
        with pytest.raises(AttributeError) as error:
            TorchProblem.from_lightning(module, data)
        assert (
            "nowait trains without a Trainer, so self.logger of a module and self.trainer" in error.value.__notes__[0]
        )


def test_the_error_of_self_optimizers_says_that_the_server_has_them():
    from lightning_modules import Classifier, Items

    class Reads(Classifier):
        def training_step(self, batch, batch_idx):
            self.log("lr", self.optimizers().param_groups[0]["lr"])

    with pytest.raises(AttributeError, match=r"self.optimizers\(\) and self.lr_schedulers\(\) do not work in workers"):
        TorchProblem.from_lightning(Reads(), Items())


def test_what_would_not_be_called_of_data_modules_and_compiled_modules_is_refused(caplog):
    from lightning_modules import Classifier, Items

    class Changes(Items):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            return batch

    class Moves(Items):
        def transfer_batch_to_device(self, batch, device, dataloader_idx):
            return batch

    TorchProblem.from_lightning(Classifier(), Moves())
    assert "Moves overrides transfer_batch_to_device, which is not called" in caplog.text
    with pytest.raises(ValueError, match="Changes overrides on_after_batch_transfer, which is not called"):
        TorchProblem.from_lightning(Classifier(), Changes())
    with pytest.raises(TypeError, match="a compiled LightningModule, whose validation_step and hooks cannot be seen"):
        TorchProblem.from_lightning(torch.compile(Classifier(), backend="eager"), Items())
    with pytest.raises(TypeError, match="needs a LightningModule, got Plain"):
        TorchProblem.from_lightning(type("Plain", (torch.nn.Module,), {"configure_optimizers": print})())


def test_a_hook_in_which_steps_are_prepared_and_a_scheduler_of_the_momentum_are_told(caplog):
    from lightning_modules import Classifier, Items

    class Prepares(Classifier):
        def on_train_epoch_start(self):
            self.beta = self.current_epoch

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)]

    TorchProblem.from_lightning(Prepares(), Items())
    assert "on_train_epoch_start, which is not called: let training_step itself set what it reads" in caplog.text
    assert "OneCycleLR also changes the momentum, but a run keeps the one with which it starts" in caplog.text


# Loaders


def test_loaders_may_be_passed_as_to_fit():
    from lightning_modules import Classifier

    problem = TorchProblem.from_lightning(
        Classifier(), train_dataloaders=loader(20), val_dataloaders=loader(8, shuffle=False), epochs=2
    )
    assert problem.usual_steps() == 2 * 5
    assert [batch.items for batch in problem._validation_batches()] == [4, 4]
    positional = TorchProblem.from_lightning(Classifier(), loader(20), loader(8, shuffle=False))
    assert [batch.items for batch in positional._validation_batches()] == [4, 4]
    point, sample = problem.initial(), sampler(0).sample(0, 0)
    assert (positional.gradient(point, sample) == problem.gradient(point, sample)).all()


def test_a_modules_own_loaders_are_used_after_prepare_data_and_setup():
    from lightning_modules import Classifier

    class Whole(Classifier):
        def prepare_data(self):
            self.count = 20

        def setup(self, stage):
            self.items = self.count

        def train_dataloader(self):
            return loader(self.items)

        def val_dataloader(self):
            return loader(8, shuffle=False)

    assert TorchProblem.from_lightning(Whole()).usual_steps() == 5
    with pytest.raises(ValueError, match="Classifier has no train_dataloader: pass train_dataloaders=, or a data"):
        TorchProblem.from_lightning(Classifier())


def test_layers_that_configure_model_makes_are_trained():
    from lightning_modules import Classifier, Items

    class Late(Classifier):
        def __init__(self):
            super().__init__()
            self.head = None

        def configure_model(self):
            if self.head is None:
                self.head = torch.nn.Linear(8, 2)

    assert "head.weight" in TorchProblem.from_lightning(Late(), Items()).layout


def test_a_loader_without_shuffling_is_told_and_samplers_choose_the_items(caplog):
    from lightning_modules import DATA, Classifier

    TorchProblem.from_lightning(Classifier(), loader(shuffle=False))
    assert "train_dataloader does not shuffle" in caplog.text
    assert TorchProblem.from_lightning(Classifier(), loader(drop_last=True)).usual_steps() == 12

    def problem_of(**options):
        return TorchProblem.from_lightning(Classifier(), DataLoader(DATA, **options), epochs=2)

    again = problem_of(batch_size=4, sampler=RandomSampler(DATA, replacement=True, num_samples=10))
    assert (again.usual_steps(), again._batches.choice.sampling) == (2 * 3, "replacement")
    weighted = problem_of(batch_size=4, sampler=WeightedRandomSampler([1.0, 3.0] + [0.0] * 48, 20))
    drawn = {tuple(row) for row in weighted._batches.draw(sampler(0).sample(0, 0), 0, 1)[0].tolist()}
    assert drawn <= {tuple(row) for row in DATA.tensors[0][:2].tolist()}
    assert weighted.usual_steps() == 2 * 5
    own = problem_of(batch_sampler=[[0, 1, 2], [3], [4, 5]])
    assert own.usual_steps() == 2 * 3
    sizes = {len(own._batches.draw(sampler(0).sample(0, job), 0, 1)[0]) for job in range(20)}
    assert sizes == {1, 2, 3}
    other = TorchProblem.from_lightning(Classifier(), loader(), batch_sampler=[[0, 1], [2, 3]])
    assert other.usual_steps() == 2


def test_a_stream_has_no_epochs(caplog):
    from lightning_modules import DATA, Classifier

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(DATA)

    problem = TorchProblem.from_lightning(Classifier(), DataLoader(Stream(), batch_size=4))
    with pytest.raises(ValueError, match="the number of items of an IterableDataset is not known: choose steps"):
        problem.usual_steps()
    epochs = annealed(lambda module, batch_idx: 100 * module.current_epoch + batch_idx)
    streamed = TorchProblem.from_lightning(epochs, DataLoader(Stream(), batch_size=50))
    assert weights_of(streamed, [7]) == pytest.approx([8], rel=1e-4)


def several_loaders():
    return [loader(40, 16, shuffle=False), loader(10, 16, shuffle=False)]


def test_several_validation_loaders_are_told_apart_as_in_lightning():
    from lightning_modules import Classifier

    class Several(Classifier):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.log("val_loss", cross_entropy(self(batch[0]), batch[1]))
            self.log("index", float(batch_idx))
            self.log(f"of_{dataloader_idx}", float(dataloader_idx), add_dataloader_idx=False)

    problem = TorchProblem.from_lightning(Several(), loader(), val_dataloaders=several_loaders())
    numbers = problem.evaluate(problem.initial())
    both = {f"{name}/dataloader_idx_{number}" for name in ("val_loss", "index") for number in (0, 1)}
    assert set(numbers) == both | {"of_0", "of_1", "constant", "loss"}
    first, second = (numbers[f"val_loss/dataloader_idx_{number}"] for number in (0, 1))
    assert numbers["loss"] == pytest.approx((40 * first + 10 * second) / 50)
    assert (numbers["index/dataloader_idx_0"], numbers["index/dataloader_idx_1"]) == ((16 * 1 + 8 * 2) / 40, 0.0)
    assert numbers["of_1"] == 1.0
    sent = cloudpickle.loads(cloudpickle.dumps(problem))
    assert sent.evaluate(problem.initial()) == numbers
    by_name = dict(zip("ab", several_loaders(), strict=True))
    problem = TorchProblem.from_lightning(Several(), loader(), val_dataloaders=by_name)
    assert problem.evaluate(problem.initial()) == numbers


def test_a_validation_loader_may_have_a_collator_of_its_own():
    from lightning_modules import Classifier

    def negated(items):
        return -torch.stack([inputs for inputs, _ in items]), torch.stack([target for _, target in items])

    plain, other = (
        TorchProblem.from_lightning(Classifier(), loader(), val_dataloaders=loader(20, shuffle=False, **options))
        for options in ({}, {"collate_fn": negated})
    )
    point, sample = plain.initial(), sampler(0).sample(0, 0)
    assert (plain.gradient(point, sample) == other.gradient(point, sample)).all()
    assert plain.loss(point) != other.loss(point)


def test_reduce_on_plateau_makes_a_problem_whose_stepsize_has_to_be_chosen():
    from lightning_modules import Classifier, Items

    class Plateau(Classifier):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": lr_scheduler.ReduceLROnPlateau(optimizer), "monitor": "val_loss"},
            }

    problem = TorchProblem.from_lightning(Plateau(), Items(), epochs=2)
    assert problem.usual_steps() == 26
    assert problem.usual_update().described()["optimizer"] == "SGD"
    with pytest.raises(ValueError, match=r"ReduceLROnPlateau changes .* choose nw.DelayAdaptive\(0.1\), or with a sch"):
        problem.usual_stepsize()


# Validation sets by name, of any problem


def test_any_problem_may_have_validation_sets_by_name():
    inputs = torch.arange(12.0).reshape(6, 2)
    near, far = (TensorDataset(scale * inputs, torch.tensor([0, 1, 0, 1, 0, 1])) for scale in (0.1, 1.0))

    def problem_with(validation):
        return TorchProblem(
            lambda: torch.nn.Linear(2, 2),
            cross_entropy,
            near,
            validation=validation,
            metrics={"hits": lambda output, target: (output.argmax(1) == target).float().mean()},
        )

    problem = problem_with({"near": near, "far": Subset(far, range(2))})
    numbers, point = problem.evaluate(problem.initial()), problem.initial()
    assert set(numbers) == {"near_loss", "near_hits", "far_loss", "far_hits", "loss"}
    alone = problem_with(near).evaluate(point)
    assert (numbers["near_loss"], numbers["near_hits"]) == (alone["loss"], alone["hits"])
    assert (
        numbers["loss"]
        == problem.loss(point)
        == pytest.approx(np.average([numbers["near_loss"], numbers["far_loss"]], weights=[6, 2]))
    )
    run = nw.simulate(problem, SGD, SPEEDS, steps=3, target={"far_hits": 2.0})
    assert set(run.history.metrics) >= {"near_loss", "far_hits"}
    for validation, words in [
        ({}, "validation is empty"),
        ({"": near}, "cannot be called ''"),
        ({1: near}, "called 1"),
    ]:
        with pytest.raises(ValueError, match=words):
            problem_with(validation)
    with pytest.raises(ValueError, match=r"validation\['far'\] is empty"):
        problem_with({"near": near, "far": Subset(far, [])})
