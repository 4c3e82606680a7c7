"""Real runs whose workers connect: they join, are killed, lose their connection, and come back."""

import logging
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from staged import SECONDS, check_that_it_replays, lost, trained

import nowait as nw
from faulty import Faulty


@dataclass
class Noted(Faulty):
    """Leaves a file for each process that computes, named by worker and process id."""

    folder: str = ""

    def gradient(self, point, sample):
        Path(self.folder, f"{sample.worker}-{os.getpid()}").touch()
        return super().gradient(point, sample)


def processes_of(folder):
    """The process ids of each worker, without this process, which replays."""
    found = {}
    for name in os.listdir(folder):
        worker, process = map(int, name.split("-"))
        if process == os.getpid():
            continue
        found.setdefault(worker, set()).add(process)
    return found


def is_running(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_worker_is_killed_another_joins_one_leaves_and_the_run_replays(setting, when_listening, tmp_path, caplog):
    """One process has one worker each; the modules of the problem come from the server."""
    notes = tmp_path / "notes"
    notes.mkdir()
    ports = []

    def begin(port):
        ports.append(port)
        for _ in range(2):
            setting.worker("--workers", "1", port=port)

    def replace():
        setting.workers[0].kill()
        setting.worker("--workers", "1", port=ports[0])
        return 1, 1, 2

    def leave():
        caplog.clear()
        setting.workers[1].terminate()
        return 1, 0, 1

    when_listening(begin)
    problem = Noted(folder=str(notes), dimension=20_000)
    engine = setting.engine(wire="float16", points_wire="bfloat16")
    run = trained([replace, leave], problem, workers=2, engine=engine, start="together")
    assert run.stats.engine == "listen"
    assert run.trace.started.min() >= 0.0, "the clock starts when both are ready"
    assert run.stats.bytes_up == len(run.trace) * 40_000, "two bytes for each of 20,000 entries"
    assert len(lost(run)) == 2
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    check_that_it_replays(run, problem)
    assert [process.wait(SECONDS) for process in setting.workers] == [-signal.SIGKILL, 143, 0]
    assert sum(len(processes) for processes in processes_of(notes).values()) == 3
    for processes in processes_of(notes).values():
        assert not any(map(is_running, processes)), "nothing is left behind"


def test_a_broken_connection_is_made_again_and_the_same_processes_go_on(setting, when_listening, tmp_path):
    """Workers have a memory, of which the server knows only what it was told."""
    notes = tmp_path / "notes"
    notes.mkdir()

    def begin(port):
        setting.proxy.target = port
        setting.worker("--workers", "2", port=setting.proxy.port)

    def cut():
        setting.proxy.cut()
        return 2, 2, 2

    when_listening(begin)
    problem = nw.problems.Compressed(Noted(folder=str(notes), dimension=20_000), nw.problems.TopK(100))
    run = trained([cut, cut], problem, workers=2, engine=setting.engine())
    assert setting.proxy.accepted == 3
    assert lost(run) == [0, 0, 1, 1]
    check_that_it_replays(run, problem)
    assert {worker: len(processes) for worker, processes in processes_of(notes).items()} == {0: 1, 1: 1}
    [worker] = setting.workers
    assert worker.wait(SECONDS) == 0
    assert len(re.findall("connection lost", setting.output())) == 2
    assert "the run is over" in setting.output()
