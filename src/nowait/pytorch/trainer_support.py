"""What ``from_trainer`` makes of everything a ``transformers.Trainer`` may be set to do.

Each field of ``TrainingArguments``, each overridden method and each callback is honoured, refused by name, or has no
meaning for workers that compute gradients. What users might miss is listed in one warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, final

from nowait.pytorch.adapter import overrides

logger = logging.getLogger("nowait")


class Treatment(Enum):
    """What becomes of a field of ``TrainingArguments``."""

    HONOURED = "honoured"
    REFUSED = "refused"
    """An error, if it is set."""
    TOLD = "told"
    """It has no effect, and a warning says so if it is set."""
    WITHOUT_MEANING = "without meaning"


@final
@dataclass(frozen=True)
class Setting:
    """A field of ``TrainingArguments``."""

    treatment: Treatment
    text: str
    """What it becomes, what to do in its place, or why it has no meaning."""
    usual: tuple[Any, ...] = ()
    """Values that do not count as set. Nothing that is false counts as set, either."""
    refused_values: tuple[str, ...] = ()
    """Beginnings of values that are refused, of a field that is honoured otherwise."""

    def is_set(self, value: Any) -> bool:
        """Return True if a value is not the usual one."""
        plain = getattr(value, "value", value)
        return bool(plain) and plain not in self.usual

    def is_refused(self, value: Any) -> bool:
        """Return True if the field must not have this value."""
        if self.treatment is Treatment.REFUSED:
            return self.is_set(value)
        return bool(self.refused_values) and str(getattr(value, "value", value)).startswith(self.refused_values)


def _honoured(text: str) -> Setting:
    return Setting(Treatment.HONOURED, text)


def _refused(text: str, *usual: Any) -> Setting:
    return Setting(Treatment.REFUSED, text, usual)


def _told(text: str, *usual: Any) -> Setting:
    return Setting(Treatment.TOLD, text, usual)


def _no_meaning(text: str) -> Setting:
    return Setting(Treatment.WITHOUT_MEANING, text)


SAVING = "checkpoints are written by nw.train with folder= and checkpoint_every="
BEST = "pass keep_best= to nw.train"
RESUMING = "a run goes on with nw.resume"
EVALUATING = "nw.train evaluates, with evaluate_every="
LOGGING = "nw.train logs, to callbacks=[nw.loggers. ...]"
HUB = "push the folder that problem.save_pretrained writes"
OPTIMISER, SCHEDULE = "a part of usual_update()", "a part of usual_stepsize()"
ONE_PROCESS = "workers exchange nothing but gradients: there is no group of processes"
LOADING = "it only says how processes hand batches over"
QUIET = "it only says what a Trainer prints"
WITH_ANOTHER = "it only says how another setting works"
SHARDING = "a worker has the whole model: leave it out"
ITEMS = "workers draw the items of every epoch in a random order: leave it out, or take group_by_length"

FIELDS: dict[str, Setting] = {
    # batches, steps, optimiser
    "per_device_train_batch_size": _honoured("batch_size"),
    "gradient_accumulation_steps": _honoured("accumulate"),
    "num_train_epochs": _honoured("usual_steps()"),
    "max_steps": _honoured("usual_steps()"),
    "learning_rate": _honoured(SCHEDULE),
    "lr_scheduler_type": _honoured(SCHEDULE),
    "lr_scheduler_kwargs": _honoured(SCHEDULE),
    "warmup_steps": _honoured(SCHEDULE),
    "optim": Setting(
        Treatment.HONOURED,
        "it must be an optimiser that makes steps from gradients alone: LOMO and schedule-free ones do more",
        refused_values=("lomo", "adalomo", "schedule_free"),
    ),
    "optim_args": _honoured(OPTIMISER),
    "optim_target_modules": _refused("GaLore and APOLLO are not supported: choose another optim"),
    "weight_decay": _honoured(OPTIMISER),
    "adam_beta1": _honoured(OPTIMISER),
    "adam_beta2": _honoured(OPTIMISER),
    "adam_epsilon": _honoured(OPTIMISER),
    "max_grad_norm": _honoured("clip_norm"),
    "label_smoothing_factor": _honoured("compute_loss uses it"),
    "average_tokens_across_devices": _no_meaning(ONE_PROCESS),
    "auto_find_batch_size": _told("a worker that runs out of memory is an error"),
    # precision and speed
    "bf16": _honoured("autocast"),
    "fp16": _honoured("autocast and loss_scale"),
    "bf16_full_eval": _told("evaluations compute in the precision of training"),
    "fp16_full_eval": _told("evaluations compute in the precision of training"),
    "tf32": _honoured("it is a global setting of PyTorch, which nw.train carries to workers"),
    "gradient_checkpointing": _honoured("the model has it in every worker"),
    "gradient_checkpointing_kwargs": _honoured("the model has it in every worker"),
    "torch_compile": _honoured("every worker compiles its model"),
    "torch_compile_backend": _honoured("every worker compiles its model"),
    "torch_compile_mode": _honoured("every worker compiles its model"),
    "use_liger_kernel": _refused("it changes the classes of this process only: call it where TorchProblem(...) builds"),
    "liger_kernel_config": _no_meaning(WITH_ANOTHER),
    "use_cache": _honoured("it is in the config of the model"),
    "neftune_noise_alpha": _refused("it is not supported: leave it out"),
    "torch_empty_cache_steps": _no_meaning("it frees memory that is not in use"),
    "full_determinism": _honoured("deterministic"),
    "seed": _honoured("seed: of the model's layers and of evaluations; nw.train(seed=...) seeds data and dropout"),
    "data_seed": _told("the order of items follows from seed= of nw.train"),
    "use_cpu": _honoured("device"),
    # data
    "train_sampling_strategy": Setting(Treatment.HONOURED, ITEMS, refused_values=("sequential", "batch_rebalance")),
    "length_column_name": _no_meaning(WITH_ANOTHER),
    "remove_unused_columns": _honoured("collate_fn"),
    "label_names": _honoured("prediction_step uses it"),
    "dataloader_drop_last": _honoured("usual_steps(); all batches of training are full, and evaluations use all items"),
    "dataloader_num_workers": _honoured("loader_workers"),
    "dataloader_pin_memory": _no_meaning(LOADING),
    "dataloader_persistent_workers": _no_meaning(LOADING),
    "dataloader_prefetch_factor": _no_meaning(LOADING),
    "dataloader_multiprocessing_context": _no_meaning(LOADING),
    "dataloader_in_order": _no_meaning(LOADING),
    # evaluation
    "per_device_eval_batch_size": _honoured("the batches of evaluations"),
    "prediction_loss_only": _honoured("no metrics are computed"),
    "eval_do_concat_batches": _honoured("compute_metrics gets lists"),
    "include_for_metrics": _refused("compute_metrics gets predictions and labels only: leave it out"),
    "batch_eval_metrics": _refused("compute_metrics is called once for all batches: leave it out"),
    "eval_strategy": _told(EVALUATING, "no"),
    "eval_steps": _told(EVALUATING),
    "eval_delay": _told(EVALUATING),
    "eval_on_start": _no_meaning("the initial params are always evaluated"),
    "eval_use_gather_object": _no_meaning(ONE_PROCESS),
    "eval_accumulation_steps": _no_meaning("predictions are moved to the host after every batch"),
    # logging
    "logging_strategy": _told(LOGGING, "steps", "no"),
    "logging_steps": _told(LOGGING, 500),
    "logging_first_step": _told(LOGGING),
    "report_to": _told(LOGGING, "none", ["none"]),
    "run_name": _no_meaning(WITH_ANOTHER),
    "project": _no_meaning(WITH_ANOTHER),
    "trackio_space_id": _no_meaning(WITH_ANOTHER),
    "trackio_bucket_id": _no_meaning(WITH_ANOTHER),
    "trackio_static_space_id": _no_meaning(WITH_ANOTHER),
    "include_num_input_tokens_seen": _told(LOGGING, "no"),
    "skip_memory_metrics": _no_meaning(QUIET),
    "log_on_each_node": _no_meaning(QUIET),
    "logging_nan_inf_filter": _no_meaning(QUIET),
    "log_level": _no_meaning(QUIET),
    "log_level_replica": _no_meaning(QUIET),
    "disable_tqdm": _no_meaning(QUIET),
    "debug": _told("leave it out, and look for the fault with the Trainer"),
    # saving, resuming, publishing
    "output_dir": _no_meaning("the Trainer has made it, and a run of nowait has folder="),
    "save_strategy": _told(SAVING, "steps", "no"),
    "save_steps": _told(SAVING, 500),
    "save_total_limit": _told(SAVING),
    "save_only_model": _told(SAVING),
    "save_on_each_node": _no_meaning(ONE_PROCESS),
    "enable_jit_checkpoint": _told(SAVING),
    "load_best_model_at_end": _refused("run.params are the last ones: leave it out, and pass keep_best= to nw.train"),
    "metric_for_best_model": _told(BEST),
    "greater_is_better": _told(BEST),
    "resume_from_checkpoint": _told(RESUMING),
    "ignore_data_skip": _told(RESUMING),
    "restore_callback_states_from_checkpoint": _told(RESUMING),
    "push_to_hub": _told(HUB),
    "hub_token": _no_meaning(WITH_ANOTHER),
    "hub_private_repo": _no_meaning(WITH_ANOTHER),
    "hub_model_id": _no_meaning(WITH_ANOTHER),
    "hub_strategy": _no_meaning(WITH_ANOTHER),
    "hub_always_push": _no_meaning(WITH_ANOTHER),
    "hub_revision": _no_meaning(WITH_ANOTHER),
    # several processes
    "accelerator_config": _no_meaning(ONE_PROCESS),
    "parallelism_config": _refused(SHARDING),
    "fsdp": _refused(SHARDING),
    "fsdp_config": _no_meaning(WITH_ANOTHER),
    "deepspeed": _refused(SHARDING),
    "ddp_find_unused_parameters": _no_meaning(ONE_PROCESS),
    "ddp_bucket_cap_mb": _no_meaning(ONE_PROCESS),
    "ddp_broadcast_buffers": _no_meaning(ONE_PROCESS),
    "ddp_static_graph": _no_meaning(ONE_PROCESS),
    "ddp_backend": _no_meaning(ONE_PROCESS),
    "ddp_timeout": _no_meaning(ONE_PROCESS),
    "local_rank": _no_meaning(ONE_PROCESS),
    # for scripts
    "do_train": _no_meaning("a Trainer does not read it"),
    "do_eval": _no_meaning("a Trainer does not read it"),
    "do_predict": _no_meaning("a Trainer does not read it"),
    # of Seq2SeqTrainingArguments
    "sortish_sampler": _refused(ITEMS),
    "predict_with_generate": _refused("evaluations do not generate: leave it out, and generate with run.model()"),
    "generation_max_length": _no_meaning(WITH_ANOTHER),
    "generation_num_beams": _no_meaning(WITH_ANOTHER),
    "generation_config": _no_meaning(WITH_ANOTHER),
    # of transformers 4
    "adafactor": _honoured(OPTIMISER),
    "warmup_ratio": _honoured(SCHEDULE),
    "no_cuda": _honoured("device"),
    "use_mps_device": _honoured("device"),
    "group_by_length": _honoured("sampler"),
    "include_inputs_for_metrics": _refused("compute_metrics gets predictions and labels only: leave it out"),
    "past_index": _refused("outputs are not kept from batch to batch: leave it out", -1),
    "use_ipex": _refused("it is not supported: leave it out"),
    "torchdynamo": _refused("use torch_compile"),
    "mp_parameters": _refused(SHARDING),
    "evaluation_strategy": _told(EVALUATING, "no"),
    "include_tokens_per_second": _told(LOGGING),
    "jit_mode_eval": _told("evaluations call the model as training does"),
    "overwrite_output_dir": _no_meaning("nothing is written there"),
    "logging_dir": _no_meaning(WITH_ANOTHER),
    "save_safetensors": _no_meaning(WITH_ANOTHER),
    "fp16_opt_level": _no_meaning(WITH_ANOTHER),
    "fp16_backend": _no_meaning(WITH_ANOTHER),
    "half_precision_backend": _no_meaning(WITH_ANOTHER),
    "use_legacy_prediction_loop": _no_meaning(WITH_ANOTHER),
    "fsdp_min_num_params": _no_meaning(WITH_ANOTHER),
    "fsdp_transformer_layer_cls_to_wrap": _no_meaning(WITH_ANOTHER),
    "push_to_hub_model_id": _no_meaning(WITH_ANOTHER),
    "push_to_hub_organization": _no_meaning(WITH_ANOTHER),
    "push_to_hub_token": _no_meaning(WITH_ANOTHER),
    "tpu_num_cores": _no_meaning(ONE_PROCESS),
    "tpu_metrics_debug": _no_meaning(QUIET),
    "ray_scope": _no_meaning(WITH_ANOTHER),
    "dispatch_batches": _no_meaning(ONE_PROCESS),
    "split_batches": _no_meaning(ONE_PROCESS),
    "per_gpu_train_batch_size": _refused("use per_device_train_batch_size"),
    "per_gpu_eval_batch_size": _refused("use per_device_eval_batch_size"),
}
"""All fields of ``TrainingArguments``; a test compares them with those of the installed version."""

CALLED = frozenset(
    {
        # by workers, and in evaluations
        "autocast_smart_context_manager",
        "compute_loss",
        "compute_loss_context_manager",
        "get_batch_samples",
        "_get_num_items_in_batch",
        "get_cp_size",
        "get_sp_size",
        "get_tp_size",
        "prediction_step",
        # when the problem is made: the results are used
        "create_optimizer",
        "create_scheduler",
        "get_decay_parameter_names",
        "get_optimizer_cls_and_kwargs",
        "get_eval_dataloader",
        "get_train_dataloader",
        "_get_collator_with_removed_columns",
        "_get_dataloader",
        "_get_eval_sampler",
        "_get_train_sampler",
        "_remove_unused_columns",
        "_set_signature_columns_if_needed",
        # when the trainer was made
        "add_callback",
        "call_model_init",
        "create_accelerator_and_postprocess",
        "pop_callback",
        "remove_callback",
        "_build_accelerator_args",
        "_move_model_to_device",
        "_validate_args",
    }
)
"""Methods of a Trainer that a subclass may override, because they are called."""
NOT_MISSED = frozenset(
    {
        "create_model_card",
        "end",
        "floating_point_ops",
        "get_test_dataloader",
        "hyperparameter_search",
        "init_hf_repo",
        "is_local_process_zero",
        "is_world_process_zero",
        "log",
        "num_examples",
        "predict",
        "push_to_hub",
        "save_model",
        "store_flos",
        "_determine_best_metric",
        "_finish_current_push",
        "_get_learning_rate",
        "_get_output_dir",
        "_hp_search_setup",
        "_issue_warnings_after_load",
        "_load_best_model",
        "_load_callback_state",
        "_load_from_checkpoint",
        "_load_optimizer_and_scheduler",
        "_load_rng_state",
        "_load_scaler",
        "_push_from_checkpoint",
        "_report_to_hp_search",
        "_save",
        "_save_checkpoint",
        "_save_optimizer_and_scheduler",
        "_save_rng_state",
        "_save_scaler",
        "_track_num_input_tokens",
        "_tune_save_checkpoint",
    }
)
"""Methods that are not called, and whose results do not change what is computed. A warning names those overridden."""
IN_PLACE_OF = {
    "training_step": "override compute_loss, or compute gradients in a function: TorchProblem(..., manual=function)",
    "evaluate": "override prediction_step, or pass compute_metrics",
    "evaluation_loop": "override prediction_step, or pass compute_metrics",
    "_evaluate": "override prediction_step, or pass compute_metrics",
    "create_optimizer_and_scheduler": "override create_optimizer and create_scheduler",
    "_clip_grad_norm": "use max_grad_norm of TrainingArguments",
    "_prepare_inputs": "change batches in compute_loss or in data_collator",
    "_prepare_input": "change batches in compute_loss or in data_collator",
    "_maybe_log_save_evaluate": "use callbacks= of nw.train",
}
"""What to override, or use, in place of a method that is not called. Methods that no table has are refused as well."""
OF_THE_LOOP = "it belongs to the training loop, which workers do not run"


def check_supported(trainer: Any) -> None:
    """Raise an error that names everything of a trainer that would not be done; warn of what has no effect."""
    faults = [*_refused_fields(trainer.args), *_refused_methods(trainer), *_refused_callbacks(trainer)]
    if faults:
        raise ValueError(f"from_trainer cannot do what this {type(trainer).__name__} is set to do: {'; '.join(faults)}")
    _warn_of_fields(trainer.args)
    _warn_of_methods(trainer)
    if trainer.args.gradient_accumulation_steps > 1 and _counts_tokens(trainer):
        logger.warning(
            "gradient_accumulation_steps: a gradient is the mean of those of its batches, each divided by its own "
            "number of labels; a Trainer divides all by the number of labels in all batches"
        )


def _refused_fields(args: Any) -> Iterator[str]:
    for name, value in _values(args):
        setting = FIELDS.get(name)
        if setting is None:
            if value:
                yield f"{name}={value!r} of TrainingArguments is not known to this version of nowait: leave it out"
        elif setting.is_refused(value):
            yield f"{name} of TrainingArguments: {setting.text}"


def _warn_of_fields(args: Any) -> None:
    names: dict[str, list[str]] = {}
    for name, value in _values(args):
        setting = FIELDS[name] if name in FIELDS else _no_meaning("")
        if setting.treatment is Treatment.TOLD and setting.is_set(value):
            names.setdefault(setting.text, []).append(name)
    if names:
        listed = "; ".join(f"{', '.join(fields)} ({text})" for text, fields in names.items())
        logger.warning("these TrainingArguments have no effect on runs of nowait: %s", listed)


def _values(args: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields that transformers defines; those of other packages are read by their own trainers."""
    kind = next(kind for kind in type(args).__mro__ if kind.__module__.startswith("transformers."))
    for field in fields(kind):
        if field.init:
            yield field.name, getattr(args, field.name)


def _refused_methods(trainer: Any) -> Iterator[str]:
    for name in overridden_methods(trainer):
        if name not in CALLED | NOT_MISSED:
            yield f"the method {name} of its class is not called: {IN_PLACE_OF.get(name, OF_THE_LOOP)}"


def _warn_of_methods(trainer: Any) -> None:
    names = [name for name in overridden_methods(trainer) if name in NOT_MISSED]
    if names:
        logger.warning("%s overrides %s, which is not called", type(trainer).__name__, ", ".join(names))


def overridden_methods(trainer: Any) -> list[str]:
    """Return the methods of ``transformers.Trainer`` that a subclass, or the object itself, defines anew."""
    import transformers

    own_methods = vars(transformers.Trainer).items()
    methods = [name for name, value in own_methods if callable(getattr(value, "__func__", value))]
    own = vars(trainer)
    return [
        name
        for name in methods
        if not name.startswith("__") and (name in own or overrides(trainer, name, ("transformers.",)))
    ]


def _refused_callbacks(trainer: Any) -> Iterator[str]:
    from transformers import EarlyStoppingCallback

    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, EarlyStoppingCallback):
            stopping = _early_stopping(callback, trainer)
            yield f"EarlyStoppingCallback is not called: remove it, and pass callbacks=[{stopping}] to nw.train"
        elif not type(callback).__module__.startswith("transformers."):
            yield (
                f"the callback {type(callback).__name__} is not called: remove it, and pass a nw.Callback in "
                f"callbacks= of nw.train"
            )


def _early_stopping(callback: Any, trainer: Any) -> str:
    """Return the callback of nowait that does the same, as code."""
    name = str(trainer.args.metric_for_best_model or "loss").removeprefix("eval_")
    mode = {True: ', mode="max"', False: ', mode="min"', None: ""}[trainer.args.greater_is_better]
    change = callback.early_stopping_threshold
    least = f", min_change={change:g}" if change else ""
    return f'nw.EarlyStopping("{name}", patience={callback.early_stopping_patience}{mode}{least})'


def _counts_tokens(trainer: Any) -> bool:
    return bool(trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None)
