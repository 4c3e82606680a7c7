"""Callbacks that write a run to experiment trackers."""

from nowait.recording.loggers.logger import Logger, Opening
from nowait.recording.loggers.mlflow import MLflow
from nowait.recording.loggers.tensorboard import TensorBoard
from nowait.recording.loggers.trackio import Trackio
from nowait.recording.loggers.wandb import Wandb

__all__ = ["Logger", "MLflow", "Opening", "TensorBoard", "Trackio", "Wandb"]
