"""Which mode of encryption is chosen."""

import pytest

pytest.importorskip("cryptography")

from cryptography.exceptions import UnsupportedAlgorithm

from nowait.engines.network import fastest
from nowait.engines.network.handshake import Mode


def test_the_faster_mode_is_chosen(monkeypatch):
    monkeypatch.setattr(fastest, "best_mode", lambda: Mode.OCB)
    for seconds, expected in (({Mode.GCM: 1.0, Mode.OCB: 2.0}, Mode.GCM), ({Mode.GCM: 2.0, Mode.OCB: 1.0}, Mode.OCB)):
        monkeypatch.setattr(fastest, "_seconds", seconds.__getitem__)
        assert fastest.fastest_mode.__wrapped__() == expected


def test_a_mode_that_openssl_does_not_have_is_not_chosen(monkeypatch):
    def unsupported(key):
        raise UnsupportedAlgorithm("OCB3 was left out")

    monkeypatch.setattr(fastest, "best_mode", fastest.best_mode.__wrapped__)
    monkeypatch.setattr(fastest, "AESOCB3", unsupported)
    assert fastest.best_mode() == Mode.GCM
    assert fastest.fastest_mode.__wrapped__() == Mode.GCM


def test_measuring_returns_a_mode_that_encrypts():
    assert fastest.fastest_mode.__wrapped__() in (Mode.GCM, Mode.OCB)
