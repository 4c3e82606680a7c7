"""How a problem computes: threads, precision, and whether algorithms must be deterministic."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, final

import torch

from nowait.core import checks

AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@final
@dataclass(frozen=True)
class ComputeSettings:
    """The settings of one problem. They are PyTorch's global ones only while the problem computes."""

    threads: int
    """Sums depend on the number of threads, so it is the same in every process."""
    autocast: torch.dtype | None
    loss_scale: float
    deterministic: bool

    @classmethod
    def of(cls, threads: int, autocast: Any, loss_scale: float, deterministic: bool) -> ComputeSettings:
        """Check the arguments of a problem."""
        if autocast is not None and not (isinstance(autocast, str) and autocast in AUTOCAST):
            raise ValueError(f'autocast must be "bfloat16" or "float16", or None, got {autocast!r}')
        if not isinstance(deterministic, bool):
            raise TypeError(f"deterministic must be True or False, got {deterministic!r}")
        return cls(
            checks.at_least(1, threads, "threads", "a worker needs one"),
            None if autocast is None else AUTOCAST[autocast],
            checks.positive(loss_scale, "loss_scale", "losses are multiplied by it, and gradients divided"),
            deterministic,
        )

    @contextmanager
    def active(self) -> Iterator[None]:
        """Set PyTorch's number of threads and its choice of algorithms, and restore both at the end."""
        threads, changes_algorithms = torch.get_num_threads(), self._changes_algorithms()
        if threads != self.threads:
            torch.set_num_threads(self.threads)
        if changes_algorithms:
            torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            if threads != self.threads:
                torch.set_num_threads(threads)
            if changes_algorithms:
                torch.use_deterministic_algorithms(False)

    def _changes_algorithms(self) -> bool:
        if not self.deterministic or torch.are_deterministic_algorithms_enabled():
            return False
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with this
        return True

    def one_thread(self, device: torch.device) -> Any:
        """Return the context of backward passes: on a GPU in this thread, as waking up autograd's own takes time."""
        return torch.autograd.set_multithreading_enabled(device.type != "cuda")

    def precision(self, device: torch.device) -> Any:
        """Return the context in which outputs and losses are computed."""
        return nullcontext() if self.autocast is None else torch.autocast(device.type, self.autocast)
