"""LoRA of a frozen GPT-2 on machines that may vanish: only the adapter travels, and a killed run goes on.

The base model comes from a config here; use ``AutoModelForCausalLM.from_pretrained`` for a real one.
"""

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch.utils.data import TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

import nowait as nw
from nowait.pytorch import TorchOptimizer, TorchProblem

LETTERS, LENGTH = 12, 16
SHAPE = {"vocab_size": LETTERS, "n_positions": LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 2}


def base_model():
    torch.manual_seed(0)  # the same frozen weights in every process
    return GPT2LMHeadModel(GPT2Config(**SHAPE, bos_token_id=0, eos_token_id=0))


def build_model():
    return get_peft_model(base_model(), LoraConfig(r=8, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True))


codes = torch.randint(0, LETTERS, (300, 1), generator=torch.Generator().manual_seed(1)) + torch.arange(LENGTH)
problem = TorchProblem(
    build_model,
    lambda output, _: output.loss,
    TensorDataset(codes % LETTERS),
    batch_size=16,
    forward=lambda model, batch: (model(input_ids=batch[0], labels=batch[0]), None),
)
method, update = nw.AsynchronousSGD(nw.DelayAdaptive(0.01)), TorchOptimizer(torch.optim.AdamW, betas=(0.6, 0.99))
folder = "runs/lora"
run = nw.train(problem, method, workers=2, steps=100, update=update, folder=folder, checkpoint_every=50)
run = nw.resume(folder, problem, steps=200)  # on another machine, after the first one was taken away
problem.save_pretrained(run.params, "adapter")
again = PeftModel.from_pretrained(base_model(), "adapter", is_trainable=True)

print(problem)
print("steps:", run.stats.steps)
print("the loss fell:", bool(run.history.loss[-1] < 0.9 * run.history.loss[0]))
print("from_pretrained reads the adapter:", bool((problem.params_of(again) == run.params).all()))
