"""The GPU of a sweep: whether there is one, and how much memory it has."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from typing import Any

INTERPRETER = "TRITON_INTERPRET"
"""With this environment variable set to 1, Triton interprets its kernels on the CPU: slow, but no GPU is needed."""
INTERPRETER_BYTES = 1 << 28
"""The memory that a sweep may use when Triton interprets its kernels."""


def checked_name(name: object) -> str:
    """Return "cpu", "cuda" or "cuda:" and a number; None means "cpu". ``ValueError`` for other names."""
    if name is None:
        return "cpu"
    if not isinstance(name, str) or not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:' and the number of a GPU, got {name!r}")
    return name


def find_device(name: str) -> Any:
    """Return the ``torch.device`` with this name. Raises ``ImportError`` or ``RuntimeError`` if it cannot be used."""
    for package, words, command in (
        ("torch", "PyTorch", "pip install 'nowait[pytorch]'"),
        ("triton", "Triton", "pip install triton"),
    ):
        if find_spec(package) is None:
            raise ImportError(f"device={name!r} needs {words}, which is not installed: {command}")
    import torch

    if is_interpreted():
        return torch.device("cpu")
    device = torch.device(name)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise RuntimeError(f"device={name!r} needs a CUDA GPU, and PyTorch {torch.__version__} finds none")
    if (device.index or 0) >= count:
        raise RuntimeError(f"device={name!r} does not exist: PyTorch finds {count} GPUs, numbered from 0")
    return device


def is_interpreted() -> bool:
    """Return whether Triton interprets kernels on the CPU."""
    return os.environ.get(INTERPRETER) == "1"


def free_bytes(device: Any) -> int:
    """Return the free memory of a device."""
    import torch

    return INTERPRETER_BYTES if device.type == "cpu" else int(torch.cuda.mem_get_info(device)[0])


def num_processors(device: Any) -> int:
    """Return the number of multiprocessors of a GPU."""
    import torch

    return 1 if device.type == "cpu" else int(torch.cuda.get_device_properties(device).multi_processor_count)


def synchronise(device: Any) -> None:
    """Wait until the device has done everything that it was given."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
