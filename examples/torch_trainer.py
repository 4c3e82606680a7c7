"""GPT-2 from a config on a small language, as a Trainer would train it, by workers that do not wait for each other."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import nowait as nw
from nowait.pytorch import TorchProblem

LETTERS, LENGTH = 12, 16
SHAPE = {"vocab_size": LETTERS, "n_positions": LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 2}


def sequence(seed):
    """Count upwards from a random letter, in steps of 1, 2 or 3."""
    first, step = torch.randint(1, 4, (2,), generator=torch.Generator().manual_seed(seed)).tolist()
    codes = (first + step * torch.arange(LENGTH)) % LETTERS
    return {"input_ids": codes, "labels": codes}


def compute_metrics(prediction):
    guesses, letters = prediction.predictions[:, 2:-1].argmax(-1), prediction.label_ids[:, 3:]
    return {"accuracy": (guesses == letters).mean()}


torch.manual_seed(0)
trainer = Trainer(
    GPT2LMHeadModel(GPT2Config(**SHAPE, bos_token_id=0, eos_token_id=0)),
    TrainingArguments("out", learning_rate=0.004, warmup_steps=20, adam_beta1=0.6, max_steps=200, report_to=[]),
    train_dataset=[sequence(seed) for seed in range(200)],
    eval_dataset=[sequence(seed) for seed in range(200, 240)],
    compute_metrics=compute_metrics,
)
problem = TorchProblem.from_trainer(trainer)
method = nw.AsynchronousSGD(problem.usual_stepsize())
run = nw.train(problem, method, workers=2, steps=problem.usual_steps(), evaluate_every=100)
problem.save_pretrained(run.params, "gpt2")
again = GPT2LMHeadModel.from_pretrained("gpt2")

print("steps:", run.stats.steps)
print("accuracy above 0.9:", bool(run.history.metrics["accuracy"][-1] > 0.9))
print("from_pretrained reads it:", bool((problem.params_of(again) == run.params).all()))
