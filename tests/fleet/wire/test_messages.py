"""Messages and file descriptors between the server and a zygote."""

import os
import socket

import pytest

from nowait.fleet.wire.stream import LENGTH, MessageStream


@pytest.fixture(params=[socket.SOCK_STREAM, socket.SOCK_SEQPACKET], ids=["stream", "packets"])
def ends(request):
    ours, theirs = socket.socketpair(socket.AF_UNIX, request.param)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def stream():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        yield ours, theirs


def never():
    raise AssertionError("there is room")


def receive(channel, count):
    while len(channel.messages) < count:
        assert channel.receive()
    return [channel.messages.popleft() for _ in range(count)]


def test_messages_arrive_in_order_each_with_its_descriptors(ends):
    ours, theirs = MessageStream(ends[0]), MessageStream(ends[1])
    pipes = [os.pipe() for _ in range(3)]
    assert ours.send(("none",), (), never)
    assert ours.send(("two", 2), [pipes[0][1], pipes[1][1]], never)
    assert ours.send(("one", 1), [pipes[2][1]], never)
    assert receive(theirs, 3) == [("none",), ("two", 2), ("one", 1)]
    assert len(theirs.descriptors) == 3
    for number, (reader, writer) in enumerate(pipes):
        received = theirs.descriptors.popleft()
        assert not os.get_inheritable(received)
        os.write(received, b"%d" % number)
        assert os.read(reader, 10) == b"%d" % number
        for fd in (received, reader, writer):
            os.close(fd)


def test_a_message_that_arrives_byte_by_byte_is_one_message(stream):
    channel = MessageStream(stream[1])
    whole = _bytes_of(("died", 3, -9))
    for place in range(len(whole)):
        assert not channel.messages
        stream[0].send(whole[place : place + 1])
        assert channel.receive()
    assert list(channel.messages) == [("died", 3, -9)]


def test_a_message_larger_than_the_buffer_is_sent_in_parts_while_the_other_side_reads(stream):
    ours, theirs = MessageStream(stream[0]), MessageStream(stream[1])
    stream[0].setblocking(False)
    reader, writer = os.pipe()
    waits = []

    def wait():
        waits.append(theirs.receive())

    message = ("failed", "x" * 3_000_000)
    assert ours.send(message, [writer], wait)
    assert receive(theirs, 1) == [message]
    assert len(waits) > 0
    assert len(theirs.descriptors) == 1, "sent with the first part only"
    for fd in (reader, writer, theirs.descriptors[0]):
        os.close(fd)


def test_the_end_and_a_closed_other_side_are_told_apart_from_silence(ends):
    ours, theirs = MessageStream(ends[0]), MessageStream(ends[1])
    ends[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        ours.receive()
    theirs.send(("last",), (), never)
    ends[1].close()
    assert receive(ours, 1) == [("last",)]
    assert ours.receive() is False
    assert ours.send(("nobody",), (), never) is False


def _bytes_of(message):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        MessageStream(ours).send(message, (), never)
        data = theirs.recv(1000)
    assert LENGTH.unpack_from(data)[0] == len(data) - LENGTH.size
    return data
