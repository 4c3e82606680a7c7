"""Workers that imitate slower ones."""

import os
from time import monotonic
from types import SimpleNamespace

import pytest

from nowait.fleet.wire.records import ORDER, Instruction, Job
from nowait.fleet.worker.worker import Slowness


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def slow(reading):
    """Imitate a worker that is slower than any test."""
    return Slowness(0, Job(None, 0, 1, "<f8", slowdown={0: 1e9}), SimpleNamespace(began=monotonic(), orders=reading))


def test_an_order_that_comes_while_it_waits_is_the_next_one(pipe):
    """The connection of its host was made again: nobody waits for the ticket, and the order is a new one."""
    reading, writing = pipe
    slowness = slow(reading)
    os.write(writing, ORDER.pack(7, 0, 0, Instruction.HURRY))
    os.write(writing, ORDER.pack(22, 3, 1, Instruction.FORGET))
    slowness.wait(11, 0, monotonic(), 1.0)
    os.write(writing, ORDER.pack(23, 4, 1, Instruction.KEEP))
    read = slowness.reading(os.read)
    orders = [ORDER.unpack(read(reading, ORDER.size))[0] for _ in range(2)]
    assert orders == [22, 23]


def test_a_cancelled_ticket_ends_the_wait(pipe):
    reading, writing = pipe
    slowness = slow(reading)
    os.write(writing, ORDER.pack(11, 0, 0, Instruction.HURRY))
    slowness.wait(11, 0, monotonic(), 1.0)
    os.write(writing, ORDER.pack(12, 0, 0, Instruction.KEEP))
    assert ORDER.unpack(slowness.reading(os.read)(reading, ORDER.size))[0] == 12
