"""Whether this process is a worker that was forked, where the problem is the only user of PyTorch."""

from __future__ import annotations

import os
from typing import Any

import torch

_forking: set[int] = set()
"""The processes that fork workers: this one or an ancestor."""
_streams: dict[torch.device, Any] = {}


def before_workers_are_forked() -> None:
    """Let ``in_worker`` return True in all processes that are forked from this one."""
    _forking.add(os.getpid())


def in_worker() -> bool:
    """Return True if this process was forked by one that had called ``before_workers_are_forked``."""
    return bool(_forking) and os.getpid() not in _forking


def current_stream(device: torch.device) -> Any:
    """Return the stream on which gradients are computed; looked up once in a worker, because that takes time."""
    if not in_worker():
        return torch.cuda.current_stream(device)
    if device not in _streams:
        _streams[device] = torch.cuda.current_stream(device)
    return _streams[device]


def fork_breaks_cuda() -> bool:
    """Return True if a process that is forked from this one cannot use CUDA; found out by forking one.

    The child initialises CUDA. PyTorch does not notice everything that breaks this: a step of an optimiser asks CUDA
    whether a graph is captured, which initialises the driver in this process.
    """
    child = os.fork()
    if child == 0:
        os._exit(int(not _can_initialise_cuda()))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


def _can_initialise_cuda() -> bool:
    """Return False if CUDA cannot be initialised in this process; True if this PyTorch was built without it."""
    try:
        if torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
            torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception:
        return False
    return True
