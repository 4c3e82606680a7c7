"""``nw.watch``, ``nw.train(..., watch=True)`` and ``nowait watch``."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

import nowait as nw
from nowait.cli.main import app
from nowait.dashboard import shared, watcher
from nowait.dashboard.follow_run import FollowedRun
from nowait.dashboard.payload import Cursor, details_of

PROBLEM = nw.problems.NoisyQuadratic(dimension=4, sigma=0.1)
METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(0.05))


def update_of(url):
    base, _, token = url.partition("?token=")
    with urllib.request.urlopen(f"{base}api/update?token={token}", timeout=10) as answer:
        return json.loads(answer.read())


@pytest.fixture
def closed_at_the_end():
    yield
    shared.close_shared()


def test_a_training_can_be_watched_and_its_page_stays_until_it_is_closed(
    tmp_path, monkeypatch, capsys, closed_at_the_end
):
    monkeypatch.chdir(tmp_path)
    for folder in ("mine", None):
        run = nw.train(PROBLEM, METHOD, workers=1, steps=50, folder=folder, watch=True, progress=False)
    assert [path.as_posix() for path in Path("runs").iterdir()] == ["runs/train-1"]  # without a folder, a new one
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Watch this run at http://127.")]
    assert len(lines) == 2
    assert lines[0] == lines[1]  # one page for all runs of the process
    found = update_of(lines[0].removeprefix("Watch this run at "))
    assert [(run["name"], run["state"]) for run in found["runs"]] == [("mine", "finished"), ("train-1", "finished")]
    assert {run["steps"] for run in found["shown"].values()} == {run.stats.steps}
    shared.close_shared()
    with pytest.raises(OSError, match="refused"):
        update_of(lines[0].removeprefix("Watch this run at "))


@pytest.mark.new_interpreter
def test_a_run_that_was_killed_is_shown_up_to_its_last_write(tmp_path):
    plan = {
        "method": "asynchronous",
        "folder": str(tmp_path / "run"),
        "steps": 90,
        "die_at": 30,
        "every": 10,
    }
    script = Path(__file__).parents[1] / "crashing.py"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, script, json.dumps(plan)], env=environment, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    run = FollowedRun(tmp_path / "run")
    run.refresh(0.0)
    details = details_of(run, Cursor())
    assert details["words"] == f"killed at step {details['steps']}"
    assert details["steps"] >= max(details["checkpoints"]) >= 20
    assert details["problems"] == []


# The watcher


def test_folders_may_be_one_or_several_and_need_not_exist(tmp_path):
    with (
        nw.watch(str(tmp_path / "later"), open_browser=False) as one,
        nw.watch([tmp_path, "x"], open_browser=False) as two,
    ):
        assert update_of(one.url)["watched"] == [str(tmp_path / "later")]
        assert len(update_of(two.url)["watched"]) == 2
        assert repr(one) == f"Watcher('{one.url}')"
        assert f'<a href="{one.url}"' in one._repr_html_()
    one.close()  # a second time does nothing
    one.wait()  # returns at once


def test_wrong_arguments_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file: give a run folder"):
        nw.watch(tmp_path / "file")
    with pytest.raises(ValueError, match="there is no folder to watch"):
        nw.watch([])
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError, match="port 0 chooses a free one"):
        nw.watch(tmp_path, port=other.getsockname()[1], open_browser=False)


def test_a_browser_is_opened_where_the_user_sees_it(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with nw.watch(tmp_path, open_browser=True) as shown, nw.watch(tmp_path, open_browser=False):
        assert opened == [shown.url]
    monkeypatch.setattr(watcher.sys, "stderr", None)
    assert not watcher.has_screen()


def test_a_screen_needs_a_terminal_a_display_and_no_ssh(monkeypatch):
    class Terminal:
        def isatty(self):
            return True

    monkeypatch.setattr(watcher.sys, "stderr", Terminal())
    monkeypatch.setattr(watcher.sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    assert not watcher.has_screen()
    monkeypatch.setenv("DISPLAY", ":0")
    assert watcher.has_screen()
    monkeypatch.setenv("SSH_CONNECTION", "a b c d")
    assert not watcher.has_screen()


# The command


def test_the_command_prints_the_address_and_ends_at_ctrl_c(tmp_path, monkeypatch):
    urls = []

    def pressed(self):
        urls.append(self.url)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(nw.Watcher, "wait", pressed)
    result = CliRunner().invoke(app, ["watch", str(tmp_path / "no"), "--no-browser", "--token", "from-the-command"])
    assert result.exit_code == 130
    assert result.stderr.endswith("\nStopped watching.\n")
    assert urls[0] in result.stdout
    assert urls[0].endswith("?token=from-the-command")
    assert "does not exist yet" in " ".join(result.stderr.split())
    assert "Other machines" not in result.stderr
    with pytest.raises(OSError, match="refused"):
        update_of(urls[0])


def test_the_command_warns_if_other_machines_can_open_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(nw.Watcher, "wait", lambda self: None)
    result = CliRunner().invoke(app, ["watch", str(tmp_path), "--host", "0.0.0.0", "--no-browser"])
    assert result.exit_code == 0
    assert "Other machines can open this page, and it is not encrypted" in " ".join(result.stderr.split())


def test_train_has_the_option(monkeypatch, tmp_path):
    given = {}
    monkeypatch.setattr("nowait.cli.runs.nw.train", lambda *_, **options: given.update(options) or 1 / 0)
    result = CliRunner().invoke(
        app, ["train", "--watch", "--stepsize", "0.1", "--steps", "1", "--folder", str(tmp_path / "x")]
    )
    assert isinstance(result.exception, ZeroDivisionError)
    assert given["watch"] is True
