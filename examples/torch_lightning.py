"""A LightningModule on scikit-learn's digits, with its own optimiser and schedule. One of the workers is slow."""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import nowait as nw
from nowait.pytorch import TorchProblem


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, index):
        return cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, index):
        output = self.layers(batch[0])
        self.log("accuracy", (output.argmax(1) == batch[1]).float().mean())
        return cross_entropy(output, batch[1])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.005, betas=(0.6, 0.99))
        steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Data(lightning.LightningDataModule):
    def setup(self, stage):
        images, digits = load_digits(return_X_y=True)
        data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits))
        self.train, self.valid = torch.utils.data.random_split(data, [1400, 397], torch.Generator().manual_seed(0))

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=32, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.valid, batch_size=128)


problem = TorchProblem.from_lightning(Digits(), Data(), epochs=8)
method = nw.AsynchronousSGD(problem.usual_stepsize())
run = nw.train(problem, method, workers=3, steps=problem.usual_steps(), evaluate_every=100, slowdown={2: 10.0})
print("steps:", run.stats.steps)
print("accuracy above 0.9:", bool(run.history.metrics["accuracy"][-1] > 0.9))
print("a module again:", type(run.model()).__name__)
