"""What becomes of the settings, methods and callbacks of a Hugging Face Trainer: honoured, refused by name, or told."""

import dataclasses
import json
from importlib.util import find_spec

import cloudpickle
import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import nowait as nw
from hugging_face_trainers import a_trainer, gpt2, sequences
from nowait.api.recorded import part
from nowait.core import sampler
from nowait.pytorch import TorchProblem

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs the packages of nowait[adapters]")

SPEEDS = nw.speeds.Fixed([1.0, 3.0])


def a_sample(ticket=None, worker=1, job=2):
    return sampler(0).sample(worker, job) if ticket is None else sampler(0).sample(worker, job, ticket)


def problem_with(folder, **settings):
    return TorchProblem.from_trainer(a_trainer(folder, settings=settings))


# The table of TrainingArguments


def test_every_field_of_the_installed_version_is_in_the_table():
    import transformers

    from nowait.pytorch.trainer_support import FIELDS

    fields = dataclasses.fields(transformers.Seq2SeqTrainingArguments)
    assert {field.name for field in fields if field.init} - set(FIELDS) == set()


def test_a_trainer_with_default_settings_is_neither_refused_nor_warned_about(tmp_path, caplog):
    import transformers

    for kind, arguments in [
        (transformers.Trainer, transformers.TrainingArguments),
        (transformers.Seq2SeqTrainer, transformers.Seq2SeqTrainingArguments),
    ]:
        trainer = kind(gpt2(), arguments(str(tmp_path), use_cpu=True), train_dataset=sequences(8))
        TorchProblem.from_trainer(trainer)
    assert [record for record in caplog.records if record.name == "nowait"] == []


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("train_sampling_strategy", "sequential", "workers draw the items of every epoch in a random order"),
        ("train_sampling_strategy", "batch_rebalance", "workers draw the items of every epoch in a random order"),
        ("neftune_noise_alpha", 5.0, "leave it out"),
        ("include_for_metrics", ["inputs"], "compute_metrics gets predictions and labels only"),
        ("optim_target_modules", "all-linear", "choose another optim"),
        ("optim", "schedule_free_adamw", "LOMO and schedule-free ones do more"),
        ("use_liger_kernel", True, "it changes the classes of this process only"),
        ("fsdp", "full_shard", "a worker has the whole model"),
        ("load_best_model_at_end", True, "keep_best="),
    ],
)
def test_a_setting_that_would_not_be_done_is_refused_by_name(tmp_path, setting, value, words):
    trainer = a_trainer(tmp_path)
    setattr(trainer.args, setting, value)
    with pytest.raises(ValueError, match=rf"from_trainer cannot do .*{setting} of TrainingArguments: .*{words}"):
        TorchProblem.from_trainer(trainer)


def test_all_faults_are_named_at_once_and_unknown_settings_are_faults(tmp_path, monkeypatch):
    from nowait.pytorch import trainer_support

    monkeypatch.delitem(trainer_support.FIELDS, "weight_decay")
    trainer = a_trainer(tmp_path, settings={"weight_decay": 0.1, "neftune_noise_alpha": 5.0})
    with pytest.raises(ValueError, match=r"weight_decay=.* of TrainingArguments is not known") as error:
        TorchProblem.from_trainer(trainer)
    assert "neftune_noise_alpha" in str(error.value)


def test_settings_without_effect_are_named_in_one_warning(tmp_path, caplog):
    problem_with(tmp_path, save_steps=10, save_total_limit=2, eval_strategy="epoch", data_seed=3)
    (message,) = [record.getMessage() for record in caplog.records if record.name == "nowait"]
    assert message == (
        "these TrainingArguments have no effect on runs of nowait: eval_strategy (nw.train evaluates, with "
        "evaluate_every=); save_steps, save_total_limit (checkpoints are written by nw.train with folder= and "
        "checkpoint_every=); data_seed (the order of items follows from seed= of nw.train)"
    )


def test_gradient_accumulation_says_that_each_batch_counts_its_own_labels(tmp_path, caplog):
    problem_with(tmp_path, gradient_accumulation_steps=2)
    assert "each divided by its own number of labels" in caplog.text


def test_torch_compile_is_honoured_in_every_worker(tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model, **options: compiled.append(options))
    problem = problem_with(tmp_path, torch_compile=True, torch_compile_backend="eager", torch_compile_mode="default")
    compiled.clear()
    cloudpickle.loads(cloudpickle.dumps(problem))._built()
    assert compiled == [{"backend": "eager", "mode": "default"}]
    problem_with(tmp_path)._built()
    assert len(compiled) == 1


def test_evaluations_have_the_trainers_batches_and_may_be_of_the_loss_alone(tmp_path):
    problem = problem_with(tmp_path, per_device_eval_batch_size=5)
    assert [batch.items for batch in problem._validation_batches()] == [5, 5, 5, 5, 2]
    numbers = problem_with(tmp_path, prediction_loss_only=True).evaluate(problem.initial())
    assert set(numbers) == {"loss"}


def test_batches_that_a_trainer_drops_do_not_count_as_steps(tmp_path):
    problem = TorchProblem.from_trainer(
        a_trainer(tmp_path, train_dataset=sequences(22), settings={"dataloader_drop_last": True, "num_train_epochs": 2})
    )
    assert problem.usual_steps() == 2 * 5


def test_steps_follow_from_a_batch_size_that_is_given_in_place_of_the_trainers(tmp_path):
    trainer = a_trainer(tmp_path, settings={"num_train_epochs": 2})
    assert TorchProblem.from_trainer(trainer, batch_size=2, accumulate=5).usual_steps() == 2 * 2
    assert TorchProblem.from_trainer(trainer, sampler=np.arange(8)).usual_steps() == 2 * 2


def test_processes_that_load_batches_and_deterministic_algorithms_are_honoured(tmp_path):
    trainer = a_trainer(tmp_path)
    trainer.args.dataloader_num_workers, trainer.args.full_determinism = 2, True
    problem = TorchProblem.from_trainer(trainer)
    assert problem._loader_workers == 2
    assert problem._settings.deterministic


# Overridden methods


def trainer_of_class(folder, **members):
    import transformers

    return a_trainer(folder, type("MyTrainer", (transformers.Trainer,), members))


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("training_step", "override compute_loss, or compute gradients in a function"),
        ("evaluate", "override prediction_step"),
        ("_prepare_inputs", "change batches in compute_loss"),
        ("create_optimizer_and_scheduler", "override create_optimizer and create_scheduler"),
        ("_wrap_model", "it belongs to the training loop"),
    ],
)
def test_an_overridden_method_that_would_not_be_called_is_refused_by_name(tmp_path, method, words):
    import transformers

    trainer = trainer_of_class(tmp_path, **{method: lambda self, *arguments, **options: None})
    with pytest.raises(
        ValueError, match=f"what this MyTrainer is set to do: the method {method} .* not called: {words}"
    ):
        TorchProblem.from_trainer(trainer)
    usual = a_trainer(tmp_path)
    setattr(usual, method, getattr(transformers.Trainer, method))
    with pytest.raises(ValueError, match=f"the method {method} "):
        TorchProblem.from_trainer(usual)


def test_methods_that_change_nothing_that_is_computed_are_told(tmp_path, caplog):
    TorchProblem.from_trainer(trainer_of_class(tmp_path, save_model=lambda self: None, own_method=lambda self: None))
    assert "MyTrainer overrides save_model, which is not called" in caplog.text


def test_the_tables_name_methods_of_the_installed_trainer_each_in_one_of_them():
    import transformers

    from nowait.pytorch.trainer_support import CALLED, IN_PLACE_OF, NOT_MISSED

    known = CALLED | NOT_MISSED | set(IN_PLACE_OF)
    assert known - set(vars(transformers.Trainer)) == set()
    assert len(known) == len(CALLED) + len(NOT_MISSED) + len(IN_PLACE_OF)


def items_of(problem, count=5):
    """Return the items of the first batches of a worker, by their first token (there are fewer than 12)."""
    batches = [problem._batches.draw(a_sample(job=job), 0, 1)["input_ids"][:, 0] for job in range(count)]
    return sorted(torch.cat(batches).tolist())


def test_an_own_train_loader_gives_items_batch_size_and_collator(tmp_path):
    def four_items(self):
        return DataLoader(Subset(self.train_dataset, range(4)), batch_size=2, shuffle=True, collate_fn=doubled)

    def doubled(items):
        return {name: 2 * torch.stack([item[name] for item in items]) % 12 for name in items[0]}

    problem = TorchProblem.from_trainer(trainer_of_class(tmp_path, get_train_dataloader=four_items))
    assert items_of(problem, 2) == [0, 2, 4, 6]
    assert problem._batches.size.usual == 2
    assert problem.usual_steps() == 3 * 2


@pytest.mark.parametrize(
    "make", [lambda data: SubsetRandomSampler(range(4)), lambda data: WeightedRandomSampler([1.0] * 4 + [0.0] * 16, 4)]
)
def test_an_own_train_sampler_chooses_the_items(tmp_path, make):
    trainer = trainer_of_class(tmp_path, _get_train_sampler=lambda self, data=None: make(self.train_dataset))
    problem = TorchProblem.from_trainer(trainer)
    assert set(items_of(problem)) == {0, 1, 2, 3}
    assert problem.usual_steps() == 3
    sent = cloudpickle.loads(cloudpickle.dumps(problem))
    assert items_of(sent) == items_of(problem)
    assert len(set(items_of(TorchProblem.from_trainer(trainer, sampler=SubsetRandomSampler(range(9)))))) > 4
    in_order = trainer_of_class(tmp_path, _get_train_sampler=lambda self, data: SequentialSampler(data))
    with pytest.raises(ValueError, match="get_train_dataloader takes the items in their order"):
        TorchProblem.from_trainer(in_order)


def test_batches_of_similar_length_are_honoured(tmp_path):
    def padded(items):
        return {name: torch.nn.utils.rnn.pad_sequence([item[name] for item in items]) for name in items[0]}

    trainer = a_trainer(
        tmp_path,
        train_dataset=sequences(20, length=4) + sequences(20, length=7),
        settings={"train_sampling_strategy": "group_by_length", "num_train_epochs": 1},
        data_collator=padded,
    )
    problem = TorchProblem.from_trainer(trainer)
    assert problem.usual_steps() == 10
    places = [problem._batches._places(a_sample(job=job), 0, 1).tolist() for job in range(10)]
    assert sorted(place for batch in places for place in batch) == list(range(40))
    of_one_length = [batch for batch in places if len({place < 20 for place in batch}) == 1]
    assert len(of_one_length) >= 4  # of 10; random batches of four have one length in 12 % of the cases


def test_a_train_sampler_with_replacement_is_honoured(tmp_path):
    trainer = trainer_of_class(
        tmp_path, _get_train_sampler=lambda self, data=None: RandomSampler(self.train_dataset, replacement=True)
    )
    assert TorchProblem.from_trainer(trainer)._batches.choice.sampling == "replacement"


def test_an_own_evaluation_loader_gives_items_and_collator(tmp_path):
    def one_item(self, data=None):
        return DataLoader(Subset(self.eval_dataset, [3]), batch_size=1, collate_fn=self.data_collator)

    problem = TorchProblem.from_trainer(trainer_of_class(tmp_path, get_eval_dataloader=one_item))
    assert problem.evaluate(problem.initial())["count"] == 5


def test_a_loss_function_gets_the_number_of_labels_as_in_a_step_of_the_trainer(tmp_path):
    def summed(outputs, labels, num_items_in_batch):
        losses = torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), reduction="sum")
        return losses / num_items_in_batch

    problem = TorchProblem.from_trainer(a_trainer(tmp_path, compute_loss_func=summed))
    problem.gradient(problem.initial(), a_sample())
    assert 2.0 < problem.training_loss() < 3.0  # log(12) = 2.48


# Callbacks


def test_callbacks_are_refused_by_name_with_what_to_use(tmp_path):
    import transformers

    class Mine(transformers.TrainerCallback):
        pass

    settings = {"metric_for_best_model": "eval_accuracy", "greater_is_better": True}
    stopping = transformers.EarlyStoppingCallback(3, 0.01)
    expected = r'callbacks=\[nw.EarlyStopping\("accuracy", patience=3, mode="max", min_change=0.01\)\] to nw.train'
    for callback, words in [(stopping, expected), (Mine(), "the callback Mine is not called: .* nw.Callback")]:
        with pytest.raises(ValueError, match=words):
            TorchProblem.from_trainer(a_trainer(tmp_path, settings=settings, callbacks=[callback]))


# self.log, self.state, several evaluation sets, trainers that have trained


def test_what_compute_loss_logs_is_dropped_in_gradients_and_a_metric_in_evaluations(tmp_path, caplog):
    import transformers

    class Logging(transformers.Trainer):
        def compute_loss(self, model, inputs, **options):
            self.log({"eval_length": inputs["input_ids"].shape[1]})
            return super().compute_loss(model, inputs, **options)

    problem = TorchProblem.from_trainer(a_trainer(tmp_path, Logging))
    assert caplog.text.count("compute_loss of Logging logs eval_length: workers drop it while they compute") == 1
    sent = cloudpickle.loads(cloudpickle.dumps(problem))
    sent.gradient(problem.initial(), a_sample())
    assert sent.evaluate(problem.initial())["length"] == 6.0
    assert caplog.text.count("workers drop it") == 1


def test_a_loss_that_compute_loss_logs_is_not_lost(tmp_path, caplog):
    import transformers

    class Logging(transformers.Trainer):
        def compute_loss(self, model, inputs, **options):
            result = super().compute_loss(model, inputs, **options)
            self.log({"train_loss": (result[0] if options.get("return_outputs") else result).detach()})
            return result

    TorchProblem.from_trainer(a_trainer(tmp_path, Logging))
    assert "workers drop it" not in caplog.text


def test_options_of_a_loader_that_a_trainer_does_not_make_are_named(tmp_path, caplog):
    import transformers

    class OwnLoader(transformers.Trainer):
        def get_train_dataloader(self):
            return DataLoader(
                self.train_dataset, batch_size=2, shuffle=True, collate_fn=self.data_collator, num_workers=2, timeout=3
            )

    settings = {"dataloader_num_workers": 1, "dataloader_pin_memory": False, "dataloader_prefetch_factor": 4}
    TorchProblem.from_trainer(a_trainer(tmp_path, settings=settings))
    assert "no effect here" not in caplog.text
    TorchProblem.from_trainer(a_trainer(tmp_path, OwnLoader, settings=settings))
    assert "num_workers, timeout of get_train_dataloader: no effect here" in caplog.text


def test_compute_loss_reads_in_its_state_how_far_the_run_is(tmp_path):
    import transformers

    class Annealed(transformers.Trainer):
        def compute_loss(self, model, inputs, **options):
            weight = self.state.global_step if model.training else 1 + self.state.global_step
            assert self.state.epoch == pytest.approx(self.state.global_step / 5)
            return weight * super().compute_loss(model, inputs, **options)

    problem = TorchProblem.from_trainer(a_trainer(tmp_path, Annealed, settings={"max_grad_norm": 0.0}))
    point = problem.initial()
    three, six = (problem.gradient(point, a_sample(ticket)) for ticket in (3, 6))
    assert np.linalg.norm(three) > 0
    assert six == pytest.approx(2 * three, rel=1e-4, abs=1e-6)
    assert problem.loss(point) == pytest.approx(2.48, abs=0.5)  # at step 0
    run = nw.simulate(problem, nw.AsynchronousSGD(nw.Constant(0.001)), SPEEDS, steps=4)
    assert (nw.replay(run.trace, problem, nw.AsynchronousSGD(nw.Constant(0.001))).params == run.params).all()


def test_compute_loss_is_in_training_and_an_error_about_what_it_does_not_have_says_why(tmp_path):
    import transformers

    class Reads(transformers.Trainer):
        def compute_loss(self, model, inputs, **options):
            assert self.is_in_train
            return super().compute_loss(model, inputs, **options)

    class Wants(transformers.Trainer):
        def compute_loss(self, model, inputs, **options):
            return self.train_dataset.weight * super().compute_loss(model, inputs, **options)

    TorchProblem.from_trainer(a_trainer(tmp_path, Reads))
    with pytest.raises(AttributeError) as error:
        TorchProblem.from_trainer(a_trainer(tmp_path, Wants))
    assert "workers do not have the data sets, the optimiser" in error.value.__notes__[0]


def test_several_evaluation_sets_have_numbers_of_their_own(tmp_path):
    sets = {"near": sequences(22), "far": sequences(6, length=4)}
    trainer = a_trainer(tmp_path, eval_dataset=sets)
    problem = TorchProblem.from_trainer(trainer)
    numbers, own = problem.evaluate(problem.initial()), trainer.evaluate()
    names = {f"{name}_{metric}" for name in sets for metric in ("loss", "accuracy", "count")}
    assert set(numbers) == names | {"loss"}
    for name in sets:
        assert numbers[f"{name}_loss"] == pytest.approx(own[f"eval_{name}_loss"], rel=1e-5)
        assert numbers[f"{name}_accuracy"] == pytest.approx(own[f"eval_{name}_eval_accuracy"])
    assert numbers["loss"] == pytest.approx((22 * numbers["near_loss"] + 6 * numbers["far_loss"]) / 28)
    sent = cloudpickle.loads(cloudpickle.dumps(problem))
    assert sent.evaluate(problem.initial()) == numbers
    with pytest.raises(ValueError, match="a validation set cannot be called 'training'"):
        TorchProblem.from_trainer(a_trainer(tmp_path, eval_dataset={"training": sequences(3)}))


def trained_trainer(folder, **settings):
    trainer = a_trainer(folder, settings={"max_steps": 2, "save_strategy": "no", "learning_rate": 0.01} | settings)
    trainer.train()
    return trainer


def test_after_any_training_a_new_trainer_can_be_sent_to_workers(tmp_path):
    trained = trained_trainer(tmp_path)  # accelerate keeps its loader in a state that all trainers share
    problem = problem_with(tmp_path)
    sent = cloudpickle.loads(cloudpickle.dumps(problem))
    point = problem.initial()
    assert (sent.gradient(point, a_sample()) == problem.gradient(point, a_sample())).all()
    assert trained.accelerator.gradient_state.sync_gradients


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_trainer_that_has_trained_begins_with_its_params_and_a_new_schedule(tmp_path, precision, caplog):
    trained = trained_trainer(tmp_path, bf16=precision == "bfloat16")
    problem = TorchProblem.from_trainer(trained)
    assert "the trainer has trained for 2 steps: a run starts from its params" in caplog.text
    point, weight = problem.initial(), trained.model.lm_head.weight
    assert torch.equal(torch.from_numpy(problem.layout["transformer.wte.weight"].of(point)), weight)
    assert not torch.equal(gpt2().lm_head.weight, weight)
    assert np.linalg.norm(problem.gradient(2 * point, a_sample()) - problem.gradient(point, a_sample())) > 0
    sent = cloudpickle.loads(cloudpickle.dumps(problem))
    assert (sent.gradient(point, a_sample()) == problem.gradient(point, a_sample())).all()
    rule = problem.usual_stepsize()
    assert [rule(1, 2, step) for step in (1, 2)] == [0.01, 0.005]
    assert problem.usual_update().described()["optimizer"] == "AdamW"
    assert len(trained.accelerator._models) == 1  # the trainer itself is as it was


def test_a_schedule_by_evaluations_is_refused_where_the_stepsize_is_asked_for(tmp_path):
    settings = {"lr_scheduler_type": "reduce_lr_on_plateau", "learning_rate": 0.003, "metric_for_best_model": "loss"}
    problem = problem_with(tmp_path, eval_strategy="epoch", **settings)
    assert problem.usual_steps() == 15
    with pytest.raises(ValueError, match=r"ReduceLROnPlateau .* choose nw.DelayAdaptive\(0.003\)"):
        problem.usual_stepsize()


# The schedule of a recorded run


def test_the_method_of_a_recorded_run_has_the_schedule_of_the_problem(tmp_path):
    settings = {"learning_rate": 0.01, "max_steps": 12, "lr_scheduler_type": "cosine", "weight_decay": 0.1}
    problem = problem_with(tmp_path, **settings)
    method = nw.AsynchronousSGD(problem.usual_stepsize())
    config = json.loads(json.dumps(nw.simulate(problem, method, SPEEDS, steps=2).config))
    again = part(config, "method", problem_with(tmp_path, **settings))
    assert [again.stepsize(1, 2, step) for step in (1, 5, 12)] == [method.stepsize(1, 2, step) for step in (1, 5, 12)]
    with pytest.raises(ValueError, match=r"the problem has another schedule than the run: the factor of step 2 is"):
        part(config, "method", problem_with(tmp_path, **(settings | {"max_steps": 30})))
    assert part(config, "update", problem).described() == problem.usual_update().described()
    for other in (nw.problems.NoisyQuadratic(3), None):
        with pytest.raises(ValueError, match="the problem has none: pass method= again"):
            part(config, "method", other)


def test_the_update_of_a_recorded_run_may_be_of_a_class_that_only_the_problem_knows(tmp_path):
    problem = problem_with(tmp_path, optim="adafactor")
    config = json.loads(json.dumps(nw.simulate(problem, nw.AsynchronousSGD(0.1), SPEEDS, steps=2).config))
    assert config["update"]["optimizer"] == "transformers.optimization.Adafactor"
    assert part(config, "update", problem).described() == problem.usual_update().described()
    with pytest.raises(ValueError, match=r"torch.optim has no optimiser .*Adafactor: pass update= again"):
        part(config, "update", problem_with(tmp_path, optim="sgd"))
