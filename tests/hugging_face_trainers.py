"""Hugging Face Trainers for tests, of a GPT-2 with random weights. transformers is imported when one is made."""

import torch

SHAPE = {
    "vocab_size": 12,
    "n_positions": 8,
    "n_embd": 8,
    "n_layer": 1,
    "n_head": 2,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def gpt2():
    import transformers

    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SHAPE, **NO_DROPOUT))


def sequences(count, length=6):
    return [
        {"input_ids": (torch.arange(length) + first) % 12, "labels": (torch.arange(length) + first) % 12}
        for first in range(count)
    ]


def accuracy_of(prediction):
    hits = prediction.predictions[:, :-1].argmax(-1) == prediction.label_ids[:, 1:]
    return {"eval_accuracy": torch.tensor(hits.mean()), "hits": list(hits.sum(1)), "count": hits.size}


def a_trainer(folder, kind=None, model=None, settings=None, **options):
    import transformers

    arguments = transformers.TrainingArguments(
        str(folder),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        **({"per_device_train_batch_size": 4} | (settings or {})),
    )
    options = {"train_dataset": sequences(20), "eval_dataset": sequences(22), "compute_metrics": accuracy_of} | options
    return (kind or transformers.Trainer)(model or gpt2(), arguments, **options)
