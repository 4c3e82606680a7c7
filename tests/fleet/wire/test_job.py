"""The source code and the job that travel to hosts."""

import json
import os
import sys
from types import ModuleType

import pytest

pytest.importorskip("cryptography")

import nowait as nw
from nowait.fleet.wire.job import Download, Offer, Requests, to_bytes, user_sources, write_sources
from nowait.fleet.wire.messages import PIECE_BYTES, PIECE_REQUEST
from nowait.fleet.wire.secure import ProtocolError
from nowait.fleet.wire.shared import Payload

# Source code


def a_module(name, file, *, package=False):
    module = ModuleType(name)
    module.__file__ = str(file)
    if package:
        module.__path__ = [str(file.parent)]
    return module


def test_the_users_own_modules_are_sent_and_written(tmp_path):
    files = {"mine.py": b"A = 1\n", "pack/__init__.py": b"", "pack/inner.py": b"# \xff\n"}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "script.py").write_bytes(b"")
    (tmp_path / "target" / "numba.dist-info").mkdir(parents=True)
    (tmp_path / "target" / "lib").mkdir()
    (tmp_path / "target" / "lib" / "__init__.py").write_bytes(b"")
    modules = {
        "mine": a_module("mine", tmp_path / "mine.py"),
        "pack": a_module("pack", tmp_path / "pack" / "__init__.py", package=True),
        "pack.inner": a_module("pack.inner", tmp_path / "pack" / "inner.py"),
        "__main__": a_module("__main__", tmp_path / "script.py"),
        "renamed": a_module("renamed", tmp_path / "mine.py"),
        "gone": a_module("gone", tmp_path / "gone.py"),
        "lib": a_module("lib", tmp_path / "target" / "lib" / "__init__.py", package=True),
        "nowait": nw,
        "json": json,
        "pytest": pytest,
        "builtins": sys.modules["builtins"],
    }
    sources = user_sources(modules)
    assert sources == files
    target = tmp_path / "there"
    assert write_sources(to_bytes(sources), target) == 3
    assert {name: (target / name).read_bytes() for name in files} == files


@pytest.mark.parametrize("name", ["/etc/x.py", "../x.py", "a/../../x.py", "x.so", "x"])
def test_source_code_is_written_nowhere_else(tmp_path, name):
    with pytest.raises(ProtocolError):
        write_sources(to_bytes({name: b""}), tmp_path)
    assert list(tmp_path.iterdir()) == []


# The job


@pytest.fixture
def payloads():
    large = os.urandom(2 * PIECE_BYTES + 100)
    made = [Payload([memoryview(b"code")]), Payload([memoryview(b"pickle"), memoryview(large), memoryview(b"")])]
    yield made
    for payload in made:
        payload.close()


def transferred(offer, missing, tamper=lambda piece: piece):
    """Let a host ask for parts; returns its download and the requests."""
    waiting, requests = [], []
    checks = Requests()
    download = Download(missing, waiting.append)
    download.begin()
    while not download.complete:
        requests.append(checks.read(waiting.pop(0)))
        download.received(tamper(offer.piece(requests[-1])))
    return download, requests


def test_the_job_travels_in_pieces_that_the_host_asks_for(payloads):
    offer = Offer(payloads)
    download, requests = transferred(offer, list(enumerate(offer.parts)))
    assert requests == [(0, 0), (1, 0), (1, PIECE_BYTES), (1, 2 * PIECE_BYTES)]
    for number, payload in enumerate(payloads):
        assert download.payloads[number].sizes == payload.sizes
        assert [bytes(part) for part in download.payloads[number].parts()] == [bytes(part) for part in payload.parts()]
    download.close()


def test_only_missing_parts_are_asked_for(payloads):
    offer = Offer(payloads)
    assert transferred(offer, [])[1] == []
    download, requests = transferred(offer, [(0, offer.parts[0])])
    assert requests == [(0, 0)]
    download.close()


def test_a_job_that_was_altered_is_not_used(payloads):
    offer = Offer(payloads)
    with pytest.raises(ProtocolError, match="digest"):
        transferred(offer, [(0, offer.parts[0])], tamper=lambda piece: piece[:-1] + b"!")
    with pytest.raises(ProtocolError, match="bytes"):
        transferred(offer, [(0, offer.parts[0])], tamper=lambda piece: piece[:-1])
    with pytest.raises(ProtocolError, match="not asked for"):
        transferred(offer, [(0, offer.parts[0])], tamper=lambda piece: PIECE_REQUEST.pack(1, 0) + piece[16:])


@pytest.mark.parametrize("request_", [(2, 0), (-1, 0), (0, -PIECE_BYTES), (0, 2**50), (1, 7)])
def test_a_host_cannot_ask_for_what_there_is_not(payloads, request_):
    offer = Offer(payloads)
    with pytest.raises(ProtocolError):
        offer.piece(Requests().read(PIECE_REQUEST.pack(*request_)))


def test_a_host_cannot_ask_for_the_same_piece_again():
    requests = Requests()
    requests.read(PIECE_REQUEST.pack(0, 0))
    requests.read(PIECE_REQUEST.pack(1, PIECE_BYTES))
    for wrong in [PIECE_REQUEST.pack(1, PIECE_BYTES), PIECE_REQUEST.pack(0, 0), b"", b"x" * 17]:
        with pytest.raises(ProtocolError):
            requests.read(wrong)
