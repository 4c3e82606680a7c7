"""Numbered tensors that the server and its worker processes share, in host memory or on a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, final

import numpy as np
import torch

from nowait.core.memory import MakeSlots, Slots
from nowait.pytorch.cuda_runtime import ALLOCATION_BYTES, HANDLE_BYTES, Allocation
from nowait.pytorch.flat import TENSOR_DTYPES, tensor_of

ALIGNMENT = 256
"""Bytes: what PyTorch aligns its own tensors to."""
ENTRY_BYTES = HANDLE_BYTES + 1
"""An entry of the table: the handle of an allocation, then 1 once the handle is complete."""


class TensorSlots(ABC):
    """Numbered tensors of one size and dtype; ``file`` is what processes share."""

    def __init__(self, length: int, dtype: Any, file: Slots) -> None:
        self.length, self.dtype = length, np.dtype(dtype)
        self._file, self.fd = file, file.fd
        self.views: list[torch.Tensor] = []
        self._allocated = 0

    def __getitem__(self, slot: int) -> torch.Tensor:
        while slot >= len(self.views):
            self._map_more()
        return self.views[slot]

    def allocate(self) -> torch.Tensor:
        """Return a new vector."""
        self._allocated += 1
        return self[self._allocated - 1]

    def close(self) -> None:
        """Close the file. Tensors in host memory must not be used afterwards; those on a GPU keep their memory."""
        self.views = []
        self._file.close()

    @abstractmethod
    def _map_more(self) -> None:
        """Add one or more tensors to ``views``."""


@final
class HostTensorSlots(TensorSlots):
    """Tensors over slots in shared host memory."""

    def __init__(self, make: MakeSlots, length: int, dtype: Any, fd: int | None, *, writeable: bool) -> None:
        super().__init__(length, dtype, make(length, dtype, fd, writeable=writeable))

    def _map_more(self) -> None:
        self.views.append(tensor_of(self._file[len(self.views)]))


@final
class CudaSlots(TensorSlots):
    """Tensors in GPU memory that the server allocates and workers open (CUDA IPC).

    The file that processes share is a table with the handle of every allocation. The server adds an entry before it
    sends the first order that needs it. Nothing is done on the GPU before the first slot is used: the process that
    starts workers must not, because CUDA does not survive a fork.
    """

    def __init__(self, device: torch.device, make: MakeSlots, length: int, dtype: Any, fd: int | None) -> None:
        super().__init__(length, dtype, make(ENTRY_BYTES, np.uint8, fd, writeable=True))
        self._device, self._owned = device, fd is None
        self._slot_bytes = -(-length * self.dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self._per_allocation = max(1, ALLOCATION_BYTES // self._slot_bytes)

    def _map_more(self) -> None:
        """Add the tensors of one more allocation."""
        size = -(-self._per_allocation * self._slot_bytes // ALLOCATION_BYTES) * ALLOCATION_BYTES
        entry = self._file[len(self.views) // self._per_allocation]
        if self._owned:
            allocation = Allocation.new(self._device, size)
            entry[:HANDLE_BYTES] = np.frombuffer(allocation.handle(), np.uint8)
            entry[HANDLE_BYTES] = 1
        elif entry[HANDLE_BYTES] == 1:
            allocation = Allocation.open(self._device, entry[:HANDLE_BYTES].tobytes(), size)
        else:
            raise IndexError(f"the server has not allocated slot {len(self.views)} yet")
        flat = allocation.tensor(TENSOR_DTYPES[self.dtype.type])
        stride = self._slot_bytes // self.dtype.itemsize
        self.views += [flat[place * stride : place * stride + self.length] for place in range(self._per_allocation)]
