"""The portable way, which macOS takes, on Linux: a part of the suite. `make test-portable` runs all of it."""

import errno
import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import nowait as nw
from faulty import Faulty, train_until
from nowait.fleet import platform
from nowait.fleet.platform import (
    DetailsSocket,
    anonymous_file,
    details_sockets,
    is_ready,
    portable,
)
from nowait.fleet.wire.shared import Payload, SharedSlots, unpickle
from nowait.fleet.worker.compute import LONGEST_TEXT
from nowait.fleet.worker.worker import end_with
from nowait.testing import ENGINE_CHECKS

pytestmark = pytest.mark.new_interpreter

CHECKS = (
    "the_trace_replays",
    "callbacks_stop_add_and_remove",
)
ASYNCHRONOUS = nw.AsynchronousSGD(nw.DelayAdaptive(0.05))


@pytest.fixture
def switched(monkeypatch):
    monkeypatch.setenv("NOWAIT_PORTABLE", "1")


# The decision


@pytest.mark.parametrize(
    ("system", "switch", "answer"),
    [("linux", None, False), ("linux", "0", False), ("linux", "", False), ("linux", "1", True), ("darwin", None, True)],
)
def test_linux_takes_the_portable_way_only_if_told_to(system, switch, answer, monkeypatch):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.delenv("NOWAIT_PORTABLE", raising=False)
    if switch is not None:
        monkeypatch.setenv("NOWAIT_PORTABLE", switch)
    assert portable() is answer


def test_a_run_on_ray_says_that_it_needs_linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(RuntimeError, match="engine='ray' needs Linux, this is darwin"):
        nw.train(Faulty(), ASYNCHRONOUS, engine="ray", workers=2, steps=10)


# Its parts


def test_shared_memory_is_a_temporary_file_without_a_name(switched, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fd = anonymous_file("nowait")
    assert os.fstat(fd).st_nlink == 0
    assert os.fstat(fd).st_dev == tmp_path.stat().st_dev
    assert os.listdir(tmp_path) == []
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_slots_in_a_file_are_seen_by_both_sides_and_grow(switched):
    ours = SharedSlots(3, np.float64)
    theirs = SharedSlots(3, np.float64, os.dup(ours.fd), writeable=False)
    for number in range(40):
        ours.allocate()[:] = number
        assert np.array_equal(theirs[number], np.full(3, float(number)))
    ours.close()
    theirs.close()


def test_a_payload_is_mapped_and_what_a_worker_writes_to_it_stays_its_own(switched):
    payload = Payload.of({"data": np.arange(1_000.0)})
    mine, yours = unpickle(payload.fd, payload.sizes), unpickle(payload.fd, payload.sizes)
    mine["data"][:] = -1.0
    assert np.array_equal(yours["data"], np.arange(1_000.0))
    payload.close()


def test_the_longest_traceback_fits_into_a_datagram_and_several_into_the_mailbox():
    server, workers = details_sockets()
    assert workers.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > 2 * LONGEST_TEXT
    assert server.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) > 2 * LONGEST_TEXT
    details = pickle.dumps((0, "x" * LONGEST_TEXT))
    with server, workers:
        DetailsSocket(workers).send(details)
        assert server.recv(2 * len(details)) == details


def test_details_are_sent_again_while_macos_has_no_room_for_it(monkeypatch):
    monkeypatch.setattr(platform, "SECONDS_BETWEEN_TRIES", 0.0)
    full = Full(refusals=3)
    DetailsSocket(full).send(b"news")
    assert full.sent == [b"news"]
    assert full.refusals == 0


class Full:
    """A socket that refuses some datagrams as macOS does."""

    def __init__(self, refusals):
        self.refusals, self.sent = refusals, []

    def send(self, details):
        if self.refusals > 0:
            self.refusals -= 1
            raise OSError(errno.ENOBUFS, "No buffer space available")
        self.sent.append(details)


def test_a_worker_ends_with_its_lifeline_and_not_before():
    lifeline, ours = os.pipe()
    ended = []
    thread = end_with(lifeline, ended.append)
    os.write(ours, b"still there")
    assert thread.is_alive()
    assert ended == []
    os.close(ours)
    thread.join()
    assert ended == [1]
    os.close(lifeline)


# The engine


@pytest.mark.parametrize("name", CHECKS)
def test_the_contract_of_engines(switched, name, caplog):
    {check.__name__: check for check in ENGINE_CHECKS}[name](nw.train)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_are_fresh_interpreters_that_start_with_nothing_of_the_zygote(switched, tmp_path):
    class Said(Faulty):
        def gradient(self, point, sample):
            if sample.job == 0:
                with open("/proc/self/cmdline", "rb") as file:
                    print(b"worker.worker import main" in file.read())  # noqa: T201
            return super().gradient(point, sample)

    nw.train(Said(), ASYNCHRONOUS, workers=2, steps=40, folder=tmp_path / "run")
    assert "True" in (tmp_path / "run" / "workers.log").read_text()


class KillTheZygote(Faulty):
    """Worker 0 kills the zygote, once, when worker 1 has been killed and replaced."""

    folder = ""

    def gradient(self, point, sample):
        replaced, killed = f"{self.folder}/replaced", f"{self.folder}/killed"
        if sample.worker == 1 and sample.job > 3:
            open(replaced, "w").close()
        if sample.worker == 0 and os.path.exists(replaced) and not os.path.exists(killed):
            open(killed, "w").close()
            os.kill(os.getppid(), signal.SIGKILL)
        return super().gradient(point, sample)


class Joins(nw.Callback):
    def __init__(self):
        self.workers = []

    def on_worker_join(self, control, worker):
        self.workers.append(worker)


def test_killed_workers_and_a_killed_zygote_are_replaced_and_the_run_replays(switched, tmp_path, caplog):
    problem, joins = KillTheZygote({(1, 3): "kill"}), Joins()
    problem.folder = str(tmp_path)
    run = train_until(lambda jobs: len(joins.workers) == 3, problem, ASYNCHRONOUS, [joins], workers=2)
    assert joins.workers[0] == 1
    assert sorted(joins.workers[1:]) == [0, 1]
    assert "worker 1 was killed by signal 9: it is replaced" in caplog.text
    assert "and workers [0, 1] with it: they are replaced" in caplog.text
    assert np.array_equal(nw.replay(run.trace, Faulty(), ASYNCHRONOUS).last, run.last)


def test_a_run_whose_server_was_killed_is_resumed(switched, tmp_path):
    plan = f'{{"folder": "{tmp_path}/run", "method": "asynchronous", "steps": 60, "every": 10, "die_at": 35}}'
    script = str(Path(__file__).parents[2] / "crashing.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, script, plan]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == -signal.SIGKILL, result.stderr
    run = nw.resume(tmp_path / "run", Faulty())
    assert run.stats.steps == 60
    assert np.array_equal(nw.replay(run.trace, Faulty(), ASYNCHRONOUS, seed=7).last, run.last)


ORPHANS = """
    import os, signal
    import nowait as nw
    from faulty import Faulty

    class Hangs(Faulty):
        def gradient(self, point, sample):
            if (sample.worker, sample.job) == (1, 1):
                with open({pids!r}, "w") as file:
                    print(os.getpid(), os.getppid(), file=file, flush=True)
                signal.pause()
            return super().gradient(point, sample)

    def die(control):
        if os.path.exists({pids!r}) and os.path.getsize({pids!r}):
            worker, zygote = open({pids!r}).read().split()
            print(worker, flush=True)
            input()
            os.kill(int(zygote), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    nw.train(Hangs(), nw.AsynchronousSGD(nw.Constant(0.01)), workers=2, steps=10**9, callbacks=[die])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pidfd_open is Linux's")
@pytest.mark.parametrize("switch", ["0", "1"])
def test_a_worker_that_hangs_ends_although_zygote_and_server_were_killed_at_once(switch, tmp_path):
    script = textwrap.dedent(ORPHANS.format(pids=str(tmp_path / "pids")))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment["NOWAIT_PORTABLE"] = switch
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        worker = os.pidfd_open(int(process.stdout.readline()))
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.wait()
        ended = is_ready(worker, seconds=30.0)  # a pidfd becomes readable when its process ends
        os.close(worker)
    assert ended
