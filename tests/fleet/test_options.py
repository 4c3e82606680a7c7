"""The settings of ``nw.Listen``."""

import pytest

import nowait as nw


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"port": 70_000}, ValueError),
        ({"port": -1}, ValueError),
        ({"port": "7070"}, ValueError),
        ({"host": ""}, TypeError),
        ({"key_file": b"the key itself"}, TypeError),
        ({"encrypt": 1}, TypeError),
        ({"start_seconds": 0}, ValueError),
        ({"heartbeat_seconds": 1}, ValueError),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_without_showing_a_key(wrong, error):
    with pytest.raises(error) as caught:
        nw.Listen(**{"port": 7070, "key_file": "key"} | wrong)
    assert "the key itself" not in str(caught.value)


def test_the_description_of_a_run_has_no_key():
    listen = nw.Listen(port=7070, key_file="the-key-file", workers=(2, 4))
    assert listen.described() == {
        "type": "Listen",
        "port": 7070,
        "host": "0.0.0.0",
        "encrypt": True,
        "start_seconds": None,
        "heartbeat_seconds": 15.0,
        "wire": None,
        "points_wire": None,
    }


def test_workers_are_given_once_or_twice_the_same(tmp_path):
    engine = nw.Listen(port=0, key_file=tmp_path / "key", workers=(2, 4))
    with pytest.raises(ValueError, match=r"workers=3 differs from nw.Listen\(workers=\(2, 4\)\)"):
        nw.train(
            nw.problems.NoisyQuadratic(dimension=2), nw.AsynchronousSGD(nw.Constant(0.1)), workers=3, engine=engine
        )
