"""Addresses where no Ray listens are refused soon. The one where a Ray listens is that of the cluster's tests."""

import contextlib
import socket
import threading

import pytest

import nowait as nw
from faulty import Faulty
from nowait.fleet.sources.ray_cluster import GREETING, check_address

pytest.importorskip("ray")


class Listener:
    """Accepts one connection, and says something to it or nothing."""

    def __init__(self, says=b""):
        self.socket, self.says, self.heard = socket.create_server(("127.0.0.1", 0)), says, b""
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.thread = threading.Thread(target=self.serve)

    def serve(self):
        connection, _ = self.socket.accept()
        with connection, contextlib.suppress(ConnectionResetError):
            connection.sendall(self.says)
            while received := connection.recv(1024):
                self.heard += received

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.thread.join()
        self.socket.close()


def frame(kind):
    return bytes([0, 0, 6, kind, 0, 0, 0, 0, 0]) + bytes(6)


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_a_port_where_nobody_listens_is_refused_before_ray_is_asked():
    address = f"127.0.0.1:{closed_port()}"
    with pytest.raises(ConnectionError, match=rf"no Ray listens at {address} \(Connection refused\): start one"):
        nw.train(Faulty(), nw.AsynchronousSGD(0.05), workers=2, steps=10, engine=nw.RayCluster(address=address))


def test_what_accepts_and_says_nothing_is_refused_after_a_while():
    with Listener() as silent, pytest.raises(ConnectionError, match=r"it did not answer within 0\.05 s"):
        check_address(silent.address, seconds=0.05)


@pytest.mark.parametrize("says", [b"SSH-2.0-OpenSSH_9.6\r\n", frame(kind=7)])
def test_what_speaks_another_protocol_is_refused(says):
    with Listener(says) as other, pytest.raises(ConnectionError, match="something else"):
        check_address(other.address)


def test_what_answers_like_a_grpc_server_is_accepted():
    with Listener(frame(kind=4)) as server:
        check_address(server.address)
    assert GREETING.startswith(server.heard), "it may be gone before all was read"


def test_a_name_that_nobody_knows_is_refused(monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConnectionError, match="Name or service not known"):
        check_address("nowhere.invalid:6379")


def test_a_name_whose_lookup_takes_too_long_is_refused(monkeypatch):
    never = threading.Event()

    def slow(*_, **__):
        never.wait()
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with pytest.raises(ConnectionError, match=r"it did not answer within 0\.05 s"):
        check_address("slow.invalid:6379", seconds=0.05)
    never.set()


@pytest.mark.parametrize("address", ["auto", "local", "cluster://name", "cluster://name:1"])
def test_other_kinds_of_addresses_are_left_to_ray(address):
    check_address(address, seconds=0.0)
