"""PyTorch's global settings that change results: those of the script hold in all processes that compute for it."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Self, final

import torch

logger = logging.getLogger("nowait")

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]
"""Functions that read and write one setting."""
DENORMAL = 5e-324
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
ATTRIBUTES = (
    "utils.deterministic.fill_uninitialized_memory",
    "backends.cudnn.enabled",
    "backends.cudnn.benchmark",
    "backends.cudnn.benchmark_limit",
    "backends.cudnn.deterministic",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_fp16_accumulation",
    "backends.mkldnn.enabled",
    "backends.mkldnn.deterministic",
    "backends.opt_einsum.enabled",
    "backends.opt_einsum.strategy",
    "backends.quantized.engine",
)
NEW_PRECISIONS = tuple(
    f"backends.{name}fp32_precision"
    for name in (
        *("", "cuda.matmul.", "cudnn.", "cudnn.conv.", "cudnn.rnn."),
        *("mkldnn.", "mkldnn.matmul.", "mkldnn.conv.", "mkldnn.rnn."),
    )
)
OLD_PRECISIONS = ("backends.cuda.matmul.allow_tf32", "backends.cudnn.allow_tf32")
PRECISIONS = (OLD_PRECISIONS[1], *NEW_PRECISIONS) if hasattr(torch.backends, "fp32_precision") else OLD_PRECISIONS
"""Where the precision of float32 is set. The new names say all that the old ones do.

But what a script sets by an old name is set by it in workers, too, and first: PyTorch refuses to read an old name after
only the new one was set, and ``torch.backends.cudnn.flags`` reads it. For matrix products, ``float32 matmul precision``
is the old name.
"""
ATTENTION = ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp")


def _attribute(path: str) -> Setting:
    owner, _, name = path.rpartition(".")
    return lambda: attrgetter(path)(torch), lambda value: setattr(attrgetter(owner)(torch), name, value)


def _attention(name: str) -> Setting:
    return _function(f"backends.cuda.{name}_enabled"), _function(f"backends.cuda.enable_{name}")


def _library(name: str) -> Setting:
    library = _function(f"backends.cuda.{name}")

    def name_of_library() -> Any:
        return library().name.lower()

    return name_of_library, library


def _function(path: str) -> Callable[..., Any]:
    """Return a function of PyTorch that this version may not have: then calling it raises an AttributeError."""

    def call(*arguments: Any) -> Any:
        return attrgetter(path)(torch)(*arguments)

    return call


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(mode: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(mode[0], warn_only=mode[1])


def _flushes_denormals() -> bool:
    return float(torch.tensor(DENORMAL, dtype=torch.float64, device="cpu") * 1.0) == 0.0


SETTINGS: dict[str, Setting] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "deterministic algorithms": (_deterministic, _set_deterministic),
    WORKSPACE: (lambda: os.environ.get(WORKSPACE), lambda value: os.environ.update({WORKSPACE: value})),
    "flush denormals": (_flushes_denormals, torch.set_flush_denormal),
    "float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    **{f"torch.{path}": _attribute(path) for path in (*PRECISIONS, *ATTRIBUTES)},
    **{name: _attention(name) for name in ATTENTION},
    **{name: _library(name) for name in ("preferred_linalg_library", "preferred_blas_library")},
}
"""In the order in which they are set: the precision of all matrix products comes before those of some."""


@final
@dataclass(frozen=True)
class GlobalSettings:
    """The values of PyTorch's global settings in one process, by name.

    The numbers of threads are not among them (see ``TorchProblem(threads=)``), and neither are the settings of
    compilers (``torch._dynamo.config``, ``torch._inductor.config``).
    """

    values: dict[str, Any]

    @classmethod
    def of_this_process(cls) -> Self:
        """Read all settings that this version of PyTorch has."""
        values = {name: _read(name) for name in SETTINGS}
        return cls({name: value for name, value in values.items() if value is not None})

    def apply(self) -> None:
        """Set those that are different in this process; the log names any that cannot be set."""
        for name, value in self.values.items():
            if _read(name) == value:
                continue
            try:
                with _without_warnings():
                    SETTINGS[name][1](value)
            except Exception as error:  # another version of PyTorch, or a library that is not on this machine
                logger.warning(
                    "PyTorch's global setting %s is %r in your script, but cannot be set in this process, whose "
                    "gradients may differ (%s: %s)",
                    *(name, value, type(error).__name__, error),
                )


def check_global_settings() -> None:
    """Raise a ValueError if a global setting is on here that is not carried to workers, and changes results."""
    device = torch.get_default_device()
    if device.type != "cpu":
        raise ValueError(
            f"the default device is {str(device)!r}, which workers would not know: remove torch.set_default_device, "
            f"and pass TorchProblem(..., device={str(device)!r})"
        )
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            raise ValueError(
                "autocast is on here, but workers compute outside of it: leave torch.autocast, and pass "
                'TorchProblem(..., autocast="bfloat16")'
            )


def _read(name: str) -> Any:
    """Return the value of a setting; None if this PyTorch does not have it."""
    try:
        with _without_warnings():
            return SETTINGS[name][0]()
    except (AttributeError, TypeError, KeyError, RuntimeError):
        return None


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Ignore the advice to use newer names of the settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
