"""``nowait serve``, ``nowait worker`` and ``nowait resume --listen``, as a user calls them."""

import logging
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("cryptography")

import nowait as nw
from faulty import Faulty
from nowait.cli import app
from nowait.fleet.wire.secure import make_key_file, read_host_key

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def logging_as_before():
    logger = logging.getLogger("nowait.listen")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.handlers = handlers
    logger.setLevel(level)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("serve --key-file key --listen 7070 --steps 1", "--listen must be HOST:PORT, as in 0.0.0.0:7070, got '7070'"),
        ("serve --key-file key --listen host:99999 --steps 1", "--listen must be HOST:PORT"),
        ("serve --steps 1", "Missing option '--key-file'"),
        ("worker --connect server: --key-file key", "--connect must be HOST:PORT"),
        ("worker --connect server:7070", "Missing option '--key-file'"),
        ("worker --connect server:7070 --key-file key --workers 0", "--workers"),
        ("resume . --listen 0.0.0.0:7070", "--listen needs --key-file"),
        ("resume . --listen 0.0.0.0:7070 --key-file key --engine ray", "--listen is an engine of its own"),
    ],
    ids=str,
)
def test_wrong_options_end_with_status_2(command, words):
    result = RUNNER.invoke(app, command.split(), env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert words in result.output


def test_a_worker_refuses_a_key_file_that_others_may_read(tmp_path):
    make_key_file(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    result = RUNNER.invoke(app, ["worker", "--connect", "127.0.0.1:1", "--key-file", str(tmp_path / "key")])
    assert "chmod 600" in result.stderr


def test_a_worker_waits_for_a_key_file_that_the_server_has_not_made_yet(tmp_path, monkeypatch, caplog):
    """The server makes the file during the third pause; empty is not yet whole."""
    caplog.set_level("INFO", logger="nowait.listen")
    path, pauses, started = tmp_path / "key", [], []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 2:
            path.touch(mode=0o600)
        if len(pauses) == 3:
            path.unlink()
            make_key_file(path)

    monkeypatch.setattr("nowait.cli.commands.network.sleep", sleep)
    monkeypatch.setattr("nowait.cli.worker.run_worker", lambda options, problem: started.append(options))
    result = RUNNER.invoke(app, ["worker", "--connect", "127.0.0.1:1", "--key-file", str(path)])
    assert result.exit_code == 0, result.output
    assert pauses == [0.2, 0.4, 0.8]
    assert started[0].key == read_host_key(path)
    assert repr(started[0].key.secret) not in repr(started[0])
    assert f"there is no key file {path}: looking for it again in 0.2 s" in caplog.text


def test_a_worker_looks_for_its_key_file_only_as_long_as_it_tries_to_connect(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("nowait.cli.commands.network.monotonic", lambda: now[0])
    monkeypatch.setattr("nowait.cli.commands.network.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    options = ["worker", "--connect", "127.0.0.1:1", "--key-file", str(tmp_path / "key"), "--retry-seconds", "2"]
    result = RUNNER.invoke(app, options, env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert f"the key file {tmp_path / 'key'} did not appear within 2 s: the server makes it" in result.output
    assert now[0] == pytest.approx(2.0)


def test_a_server_whose_port_is_in_use_says_so_before_it_makes_a_folder(tmp_path, setting):
    data = Path(__file__).parents[1] / "small.libsvm"
    options = ["serve", str(data), "--key-file", str(tmp_path / "new"), "--listen", f"127.0.0.1:{setting.proxy.port}"]
    result = RUNNER.invoke(app, [*options, "--steps", "1", "--stepsize", "0.1", "--folder", str(tmp_path / "run")])
    assert isinstance(result.exception, OSError)
    assert "cannot listen at 127.0.0.1" in str(result.exception)
    assert (tmp_path / "new").exists()
    assert not (tmp_path / "run").exists()


def test_a_run_is_served_and_resumed(tmp_path, setting, when_listening, monkeypatch):
    """The worker stays for the second run."""
    (tmp_path / "served.py").write_text("from faulty import Faulty\n\ndef problem():\n    return Faulty()\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    ports = []

    def begin(port):
        if not ports:
            setting.worker("--workers", "1", "--stay", port=setting.proxy.port)
        setting.proxy.target = port
        ports.append(port)

    when_listening(begin)
    folder, key = str(tmp_path / "run"), ["--listen", "127.0.0.1:0", "--key-file", str(setting.key)]
    command = ["serve", f"{tmp_path}/served.py:problem", *key, "--stepsize", "0.05", "--seed", "3"]
    result = RUNNER.invoke(app, [*command, "--steps", "20", "--folder", folder])
    assert result.exit_code == 0, result.output
    assert nw.load(folder).stats.engine == "listen"
    with pytest.raises(ValueError, match=r"pass engine=nw.Listen\(port=..., key_file=...\) again"):
        nw.resume(folder, Faulty(), steps=40)
    result = RUNNER.invoke(app, ["resume", folder, "--problem", f"{tmp_path}/served.py:problem", *key, "--steps", "40"])
    assert result.exit_code == 0, result.output
    run = nw.load(folder)
    assert run.stats.steps == 40
    assert len(ports) == 2
    assert setting.workers[0].poll() is None, "it waits for the next run"
    replayed = nw.replay(run.trace, Faulty(), nw.AsynchronousSGD(nw.DelayAdaptive(0.05)), seed=3)
    assert (replayed.last == run.last).all()
