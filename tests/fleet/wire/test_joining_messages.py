"""What a host says when it joins, and what the server answers."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("cryptography")

from nowait.engines.fingerprint import Fingerprint
from nowait.fleet.wire.messages import Joining, Part, Shapes, Welcome
from nowait.fleet.wire.secure import ProtocolError

SHAPES = Shapes((10, "<f8"), (24, "|u1"), encoded=True)
JOINING = Joining("1.2.3", "3.11", "abc", "a machine", 8)
PRINT = {"size": 5, "dtype": "float64", "gradient_norm": 1.0, "direction": [0.5] * 8}


def test_a_host_says_who_it_is_and_the_server_what_it_needs():
    welcome = Welcome("run", SHAPES, (Part("12", (3, 4), 128),))
    assert Joining.read(JOINING.to_bytes()) == JOINING
    own = replace(JOINING, problem=Fingerprint(5, "float64", 1.5, (0.5,) * 8))
    assert Joining.read(own.to_bytes()) == own
    assert Welcome.read(welcome.to_bytes()) == welcome


@pytest.mark.parametrize(
    "changes",
    [
        {"workers": 0},
        {"workers": True},
        {"workers": "8"},
        {"workers": 2**40},
        {"name": ""},
        {"name": "x" * 1000},
        {"name": "two\nlines"},
        {"process": None},
        {"nowait": 3},
        {"problem": 3},
        {"problem": {"size": 0, "dtype": "float64", "gradient_norm": 1.0, "direction": [0.5] * 8}},
        {"problem": PRINT | {"gradient_norm": -1.0}},
        {"problem": PRINT | {"gradient_norm": float("nan")}},
        {"problem": PRINT | {"direction": None}},
        {"problem": PRINT | {"direction": [0.5] * 7}},
        {"problem": PRINT | {"direction": [0.5] * 7 + [float("inf")]}},
        {"problem": PRINT | {"gradient_norm": None}},
    ],
    ids=str,
)
def test_a_host_that_says_something_else_is_in_error(changes):
    content = json.dumps(json.loads(JOINING.to_bytes()) | changes).encode()
    with pytest.raises(ProtocolError):
        Joining.read(content)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"a": "' + b"x" * 200_000 + b'"}'])
def test_what_is_not_json_with_entries_is_in_error(content):
    for kind in (Joining, Welcome):
        with pytest.raises(ProtocolError):
            kind.read(content)


@pytest.mark.parametrize(
    "changes",
    [
        {"shapes": None},
        {"shapes": [[10, "<f8"], [5, "<f8"]]},
        {"shapes": [[10, "<f8"], [5, "nonsense"], False]},
        {"shapes": [[0, "<f8"], [5, "<f8"], False]},
        {"shapes": [[10.5, "<f8"], [5, "<f8"], False]},
        {"parts": 3},
        {"parts": [{"sizes": [-1]}]},
    ],
    ids=str,
)
def test_a_wrong_welcome_is_in_error(changes):
    content = json.loads(Welcome("run", SHAPES, ()).to_bytes()) | changes
    with pytest.raises(ProtocolError):
        Welcome.read(json.dumps(content).encode())


def test_other_versions_are_refused_with_both_named():
    assert JOINING.reason_to_refuse("1.2.3", "3.11") == ""
    reason = JOINING.reason_to_refuse("1.2.4", "3.11")
    assert "1.2.3" in reason
    assert "1.2.4" in reason
    reason = JOINING.reason_to_refuse("1.2.3", "3.12")
    assert "3.11" in reason
    assert "3.12" in reason
