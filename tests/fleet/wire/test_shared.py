"""Slots of vectors in shared memory."""

import mmap
import os

import numpy as np
import pytest

from nowait.fleet.wire.shared import LARGE_SLOT_BYTES, SharedSlots, slot_bytes


@pytest.mark.parametrize("length", [LARGE_SLOT_BYTES // 4, LARGE_SLOT_BYTES // 4 + 1, 300_000])
def test_large_slots_start_at_page_boundaries_and_do_not_overlap(length):
    slots = SharedSlots(length, np.float32)
    others = SharedSlots(length, np.float32, os.dup(slots.fd), writeable=False)
    vectors = [slots.allocate() for _ in range(10)]
    for number, vector in enumerate(vectors):
        vector[:] = number
    assert all(vector.ctypes.data % mmap.PAGESIZE == 0 for vector in vectors)
    assert [vector[0] for vector in vectors] == [vector[-1] for vector in vectors] == list(range(10))
    assert [others[number][-1] for number in range(10)] == list(range(10))
    slots.close()
    others.close()


@pytest.mark.parametrize(("length", "expected"), [(1, 64), (16, 64), (17, 128), (LARGE_SLOT_BYTES // 4 - 1, 1 << 20)])
def test_small_slots_start_at_cache_lines(length, expected):
    assert slot_bytes(length, np.dtype(np.float32)) == expected


def test_huge_pages_that_the_system_refuses_are_not_an_error(monkeypatch):
    if hasattr(mmap, "MADV_HUGEPAGE"):
        monkeypatch.setattr(mmap, "MADV_HUGEPAGE", -12345)  # the kernel answers EINVAL
    slots = SharedSlots(LARGE_SLOT_BYTES, np.float32)
    slots.allocate()[:] = 1
    assert slots[0].min() == 1
    slots.close()
