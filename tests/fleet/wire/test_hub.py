"""The event loop's view of file descriptors: handlers are called for those that are ready, and for no others."""

import os
import socket

import pytest

from nowait.fleet.wire.hub import Hub


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


@pytest.fixture(params=[0.0, 0.001], ids=["sleeps", "spins"])
def hub(request):
    return Hub(request.param)


def fill(connected):
    """Send until the system takes no more."""
    try:
        while connected.send(bytes(1 << 16)):
            pass
    except BlockingIOError:
        pass


def drain(connected):
    connected.setblocking(False)
    try:
        while connected.recv(1 << 20):
            pass
    except BlockingIOError:
        pass


def test_a_handler_is_called_whenever_there_is_something_to_read(hub, ends):
    ours, theirs = ends
    calls = []
    hub.add(ours.fileno(), lambda: calls.append(ours.recv(10)))
    hub.wait(0.0)
    theirs.send(b"1")
    hub.wait(60.0)
    hub.wait(0.0)
    theirs.send(b"2")
    hub.wait(60.0)
    assert calls == [b"1", b"2"]
    hub.remove(ours.fileno())
    hub.remove(ours.fileno())
    theirs.send(b"3")
    hub.wait(0.0)
    assert calls == [b"1", b"2"]


def test_the_end_of_a_connection_is_something_to_read(hub, ends):
    ours, theirs = ends
    calls = []
    hub.add(ours.fileno(), lambda: calls.append(ours.recv(10)))
    theirs.close()
    hub.wait(60.0)
    assert calls == [b""]


def test_a_handler_may_remove_another_that_is_ready_as_well(hub):
    pipes = [os.pipe() for _ in range(2)]
    calls = []

    def handler(number):
        calls.append(number)
        hub.remove(pipes[1 - number][0])

    for number, (reading, writing) in enumerate(pipes):
        hub.add(reading, lambda number=number: handler(number))
        os.write(writing, b"x")
    hub.wait(60.0)
    for pipe in pipes:
        for fd in pipe:
            os.close(fd)
    assert len(calls) == 1


def test_a_handler_is_told_when_its_descriptor_can_be_written_to_until_it_has_nothing_to_write(hub, ends):
    ours, theirs = ends
    fd, calls = ours.fileno(), []

    def write():
        calls.append("write")
        hub.writable(fd, None)

    hub.add(fd, lambda: calls.append(ours.recv(10)))
    fill(ours)
    hub.writable(fd, write)
    hub.wait(0.0)
    assert calls == []
    drain(theirs)
    hub.wait(60.0)
    assert calls == ["write"]
    hub.wait(0.0)
    theirs.send(b"1")
    hub.wait(60.0)
    assert calls == ["write", b"1"]


def test_what_waits_to_write_is_still_told_what_it_can_read(hub, ends):
    ours, theirs = ends
    calls = []
    hub.add(ours.fileno(), lambda: calls.append(ours.recv(10)))
    fill(ours)
    hub.writable(ours.fileno(), lambda: calls.append("write"))
    theirs.send(b"1")
    hub.wait(60.0)
    assert calls == ["write", b"1"]


def test_a_handler_that_writes_may_remove_its_descriptor(hub, ends):
    ours, theirs = ends
    fd, calls = ours.fileno(), []
    hub.add(fd, lambda: calls.append("read"))
    hub.writable(fd, lambda: hub.remove(fd))
    theirs.send(b"1")
    hub.wait(60.0)
    hub.wait(0.0)
    assert calls == []


def test_an_unfinished_handler_is_called_once_more_without_waiting(hub, ends):
    ours, theirs = ends
    calls = []

    def read():
        calls.append(len(calls))
        if len(calls) < 3:
            hub.again(read)
            hub.again(read)

    hub.add(ours.fileno(), lambda: (ours.recv(10), read()))
    theirs.send(b"1")
    for _ in range(3):
        hub.wait(60.0)  # the second and the third do not wait
    hub.wait(0.0)
    assert calls == [0, 1, 2]


def test_what_was_collected_is_sent_before_the_wait(hub, ends):
    ours, theirs = ends
    sent = []

    class Host:
        def flush(self):
            sent.append("flush")

    hub.add(ours.fileno(), lambda: sent.append(ours.recv(10)))
    theirs.send(b"1")
    hub.dirty.append(Host())
    hub.again(lambda: hub.dirty.append(Host()))
    hub.wait(60.0)
    assert sent == ["flush", "flush", b"1"]
    hub.wait(0.0)
    assert sent == ["flush", "flush", b"1"]
