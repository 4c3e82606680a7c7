"""PyTorch models as problems, optimisers as updates, and params as tensors. Needs ``nowait[pytorch]``."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("nowait.pytorch needs PyTorch: pip install 'nowait[pytorch]'") from error

from nowait.core.layout import Layout
from nowait.pytorch.delays import DelayAware, Delayed
from nowait.pytorch.lr_schedule import lr_schedule
from nowait.pytorch.memory import TorchMemory
from nowait.pytorch.optimizer import TorchOptimizer
from nowait.pytorch.pickling import register_tensors
from nowait.pytorch.problem import TorchProblem

__all__ = ["DelayAware", "Delayed", "Layout", "TorchMemory", "TorchOptimizer", "TorchProblem", "lr_schedule"]

register_tensors()
