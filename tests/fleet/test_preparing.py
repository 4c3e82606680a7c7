"""The key files that a run makes before it listens."""

import pytest

pytest.importorskip("cryptography")

import nowait as nw
from nowait.fleet.preparing import prepare_to_listen
from nowait.fleet.wire.secure import read_drain_key, read_server_key


def test_the_drain_key_is_a_second_file_and_a_run_goes_on_without_it(tmp_path, caplog, monkeypatch):
    listen = nw.Listen(port=0, host="127.0.0.1", key_file=tmp_path / "key")
    prepare_to_listen(listen)
    key, drain_key = read_server_key(tmp_path / "key"), read_drain_key(tmp_path / "key")
    assert len(drain_key) == 32
    assert drain_key not in (key.secret, key.private.private_bytes_raw())
    assert "key: workers need a copy of it, and must not get" in caplog.text
    assert f"made the drain key file {tmp_path / 'key.drain'}: nowait drain needs it, workers do not" in caplog.text
    (tmp_path / "key.drain").unlink()
    with pytest.raises(FileNotFoundError, match=r"no drain key file .*key\.drain: the server makes it"):
        read_drain_key(tmp_path / "key")
    (tmp_path / "key.drain").symlink_to(tmp_path / "missing" / "folder")
    prepare_to_listen(listen)
    assert "nowait drain cannot be used for this run" in caplog.text
