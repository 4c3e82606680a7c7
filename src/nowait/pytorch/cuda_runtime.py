"""The few functions of the CUDA runtime that PyTorch does not offer: memory that other processes can open, and more.

Memory from PyTorch's own allocator could be shared as well, but then PyTorch counts its users in every process, and a
process that is killed never gives its count back. Here the process that allocates owns the memory, whatever others do.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterator
from functools import cache
from typing import Any, final

import numpy as np
import torch

PAGE_BYTES = mmap.PAGESIZE
OUT_OF_MEMORY = 2
HANDLE_BYTES = 64
ALLOCATION_BYTES = 1 << 21
"""CUDA allocates in units of this size, and a handle exports whole units: memory that is shared takes whole ones."""
REGISTER_PORTABLE, REGISTER_READ_ONLY = 1, 8
"""Flags of ``cudaHostRegister``: pinned for all GPUs; memory that this process must not write to."""
LAZY_PEER_ACCESS = 1
"""A flag of ``cudaIpcOpenMemHandle``: memory of another GPU becomes readable if the two can reach each other."""


class Handle(ctypes.Structure):
    """Names an allocation in other processes."""

    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


@final
class Allocation:
    """Memory on a GPU that this process allocated or opened; it is released with the last tensor that uses it."""

    def __init__(self, device: torch.device, address: int, size: int, *, owned: bool) -> None:
        self._device, self._address, self._size, self._owned = device, address, size, owned

    @classmethod
    def new(cls, device: torch.device, size: int) -> Allocation:
        """Allocate this many bytes, a multiple of ``ALLOCATION_BYTES`` if other processes shall open them."""
        address = ctypes.c_void_p()
        with torch.cuda.device(device):
            code = _runtime().cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size))
        if code == OUT_OF_MEMORY:
            _runtime().cudaGetLastError()  # resets the error, which is not fatal
            free, total = torch.cuda.mem_get_info(device)
            raise MemoryError(
                f"{device} has no room for {size / 2**20:,.0f} MiB more of params and gradients: "
                f"{free / 2**20:,.0f} of its {total / 2**20:,.0f} MiB are free. Use fewer workers or a smaller model"
            )
        _check(code, "cudaMalloc")
        return cls(device, address.value or 0, size, owned=True)

    @classmethod
    def open(cls, device: torch.device, handle: bytes, size: int) -> Allocation:
        """Open the memory of another process."""
        address, named = ctypes.c_void_p(), Handle.from_buffer_copy(handle)
        with torch.cuda.device(device):
            code = _runtime().cudaIpcOpenMemHandle(ctypes.byref(address), named, ctypes.c_uint(LAZY_PEER_ACCESS))
        _check(code, "cudaIpcOpenMemHandle")
        return cls(device, address.value or 0, size, owned=False)

    def handle(self) -> bytes:
        """Return the handle by which other processes open the memory."""
        handle = Handle()
        with torch.cuda.device(self._device):
            code = _runtime().cudaIpcGetMemHandle(ctypes.byref(handle), ctypes.c_void_p(self._address))
        _check(code, "cudaIpcGetMemHandle")
        return bytes(handle)

    def tensor(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the memory as a tensor, which keeps it allocated."""
        count = self._size // dtype.itemsize
        view = _View(self, {"shape": (count,), "typestr": f"<f{dtype.itemsize}", "data": (self._address, False)})
        return torch.as_tensor(view, device=self._device)

    def __del__(self) -> None:
        with contextlib.suppress(Exception), torch.cuda.device(self._device):  # the interpreter may be exiting
            release = _runtime().cudaFree if self._owned else _runtime().cudaIpcCloseMemHandle
            release(ctypes.c_void_p(self._address))


@final
class _View:
    """Describes memory on a GPU to PyTorch; the tensor made of it keeps this object, and so the allocation."""

    def __init__(self, allocation: Allocation, description: dict[str, Any]) -> None:
        self._allocation = allocation
        self.__cuda_array_interface__ = description | {"version": 3, "strides": None}


@final
class PinnedArrays:
    """Pins the memory of NumPy arrays, so that a GPU copies it at full speed, where that is possible.

    Only for arrays that stay where they are as long as the process exists: the slots of a worker.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[int, bool] = {}

    def pin(self, array: np.ndarray) -> bool:
        """Return True if the array is in pinned memory. The first call for an array tries to pin it."""
        if array.flags.owndata:
            return False  # slots are views of shared memory
        address = array.ctypes.data
        if address not in self._known:
            with torch.cuda.device(self._device):
                self._known[address] = _register(address, array.nbytes, read_only=not array.flags.writeable)
        return self._known[address]


def _register(address: int, size: int, *, read_only: bool) -> bool:
    """Pin host memory; returns False if that is not possible."""
    if address % PAGE_BYTES != 0:
        return False
    flags = ctypes.c_uint(REGISTER_PORTABLE | (REGISTER_READ_ONLY if read_only else 0))
    code = _runtime().cudaHostRegister(ctypes.c_void_p(address), ctypes.c_size_t(size), flags)
    if code != 0:
        _runtime().cudaGetLastError()
    return bool(code == 0)


@contextlib.contextmanager
def clear_memory_errors() -> Iterator[None]:
    """Raise a MemoryError with advice if a GPU or the machine runs out of memory."""
    try:
        yield
    except RuntimeError as error:
        if "DefaultCPUAllocator" in str(error):
            raise MemoryError(f"{error}. Use fewer workers, or a smaller batch_size with accumulate=") from None
        if "out of memory" not in str(error):
            raise
        torch.cuda.empty_cache()  # other processes may need what this one only keeps
        said = str(error).partition(". GPU")[0].splitlines()[0]
        raise MemoryError(
            f"{said}. All workers on a GPU share its memory: use fewer, or a smaller batch_size with accumulate="
        ) from None


@cache
def _runtime() -> Any:
    """Load the runtime library that PyTorch uses."""
    version = torch.version.cuda
    if version is None:
        raise RuntimeError("this PyTorch was built without CUDA")
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return ctypes.CDLL(f"libcudart.so.{version.split('.')[0]}")


def _check(code: int, function: str) -> None:
    if code != 0:
        _runtime().cudaGetLastError()
        describe = _runtime().cudaGetErrorString
        describe.restype = ctypes.c_char_p
        raise RuntimeError(f"{function}: {describe(code).decode()}")
