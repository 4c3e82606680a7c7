"""The GPU of a sweep: whether there is one, and how much memory it has."""

from __future__ import annotations

import os
import re
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any

from nowait.core import checks

INTERPRETER = "TRITON_INTERPRET"
"""With this environment variable set to 1, Triton interprets its kernels on the CPU: slow, but no GPU is needed."""
INTERPRETER_BYTES = 1 << 28
"""The memory that a sweep may use when Triton interprets its kernels."""
BATCHES = 2
"""How many batches of runs a GPU executes at a time; meanwhile the plans of the next one are made."""


def checked_name(name: object) -> str:
    """Return "cpu", "cuda" or "cuda:" and a number; None means "cpu". ``ValueError`` for other names."""
    if name is None:
        return "cpu"
    if not isinstance(name, str) or not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:' and the number of a GPU, got {checks.shown(name)}")
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
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


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


@cache
def streams_of(device: Any) -> list[Any]:
    """Return the streams of a GPU that sweeps use: what is queued on different streams runs side by side.

    They are the same for all sweeps, because PyTorch keeps free memory for each stream. Without a GPU they are None.
    """
    from torch.cuda import Stream

    return [Stream(device) if device.type == "cuda" else None for _ in range(2 * BATCHES)]  # type: ignore[no-untyped-call]


def queue_on(stream: Any) -> AbstractContextManager[Any]:
    """Return a context in which work is queued on this stream."""
    import torch

    return nullcontext() if stream is None else torch.cuda.stream(stream)


def wait_for(stream: Any, other: Any) -> None:
    """Let a stream wait for everything that is queued on another one; the CPU does not wait."""
    if stream is not None:
        stream.wait_stream(other)


def wait_for_uploads(stream: Any, device: Any) -> None:
    """Let a stream wait for everything that is queued on the current stream of this thread."""
    import torch

    if stream is not None:
        stream.wait_stream(torch.cuda.current_stream(device))


def synchronise(device: Any) -> None:
    """Wait until the device has done everything that it was given."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
