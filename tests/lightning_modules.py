"""LightningModules for tests. Lightning takes seconds to import, so only the tests that need it import this file."""

import lightning
import torch
import torchmetrics
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

INPUTS = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(INPUTS, (INPUTS[:, 0] > 0).long())


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 2)
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(2, average="micro")
        self.seen = torchmetrics.SumMetric()

    def forward(self, inputs):
        return self.head(torch.tanh(self.body(inputs)))

    def training_step(self, batch, batch_idx):
        loss = cross_entropy(self(batch[0]), batch[1])
        self.seen(len(batch[0]))
        self.log("seen", self.seen)
        self.log_dict({"train_loss": loss})
        return {"loss": loss}

    def validation_step(self, batch, batch_idx):
        output = self(batch[0])
        self.accuracy(output, batch[1])
        self.log("val_accuracy", self.accuracy)
        self.log("val_loss", cross_entropy(output, batch[1]), prog_bar=True)
        self.log_dict({"positive": batch[1].float().mean()})

    def on_validation_epoch_end(self):
        self.log("constant", 3.0)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


class Items(lightning.LightningDataModule):
    def setup(self, stage):
        self.data = DATA

    def train_dataloader(self):
        return DataLoader(self.data, batch_size=4, shuffle=True)

    def val_dataloader(self):
        return [DataLoader(self.data, batch_size=50)]


class Scheduled(Classifier):
    form = "dict"

    def configure_optimizers(self):
        groups = [
            {"params": self.body.parameters()},
            {"params": self.head.parameters(), "lr": 0.05, "weight_decay": 0.1},
        ]
        optimizer = torch.optim.AdamW(groups if self.form == "dict" else self.head.parameters(), lr=0.1)
        scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
        if self.form == "lists":
            return [optimizer], [{"scheduler": scheduler, "interval": "step", "frequency": 3}]
        return {"optimizer": optimizer, "lr_scheduler": scheduler}
