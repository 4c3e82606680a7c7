"""Runs that start a Ray of their own: how they end, well or not, and that nothing is left of them."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import crashing
import nowait as nw
from faulty import Faulty

ROOT = Path(__file__).parents[1]
MARK = "NOWAIT_TEST_RUN"
"""The environment variable by which the processes of a run are known."""

pytest.importorskip("ray")


def start(arguments, mark):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), MARK: str(mark)}
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def processes_with(mark):
    """Hosts, zygotes and workers that have the mark in their environment. When Ray's own end is up to Ray."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment, command = (folder / "environ").read_bytes(), (folder / "cmdline").read_bytes()
        except OSError:
            continue
        ours = b"nowait.fleet" in command or command.startswith(b"ray::Host")
        if ours and f"{MARK}={mark}".encode() in environment.split(b"\0"):
            found.append(int(folder.name))
    return found


def wait_for_the_end_of(processes):
    """The test waits for the deaths, not for a time."""
    for process in processes:
        try:
            handle = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        assert select.select([handle], [], [], 60)[0], f"process {process} was left behind"
        os.close(handle)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_driver_leaves_nothing_and_its_run_goes_on_elsewhere(tmp_path):
    """It is resumed with processes: another engine than it had."""
    plan = {"folder": str(tmp_path / "run"), "method": "rennala", "steps": 120, "every": 25, "engine": "ray"}
    driver = start([str(ROOT / "crashing.py"), json.dumps(plan | {"die_at": 90, "say": True})], tmp_path)
    assert driver.stdout.readline() == "about to die\n"
    processes = processes_with(tmp_path)
    assert len(processes) == 7, "the host, two zygotes, the evaluator, three workers"
    driver.communicate("\n")
    assert driver.returncode == -signal.SIGKILL
    wait_for_the_end_of(processes)
    run = nw.resume(tmp_path / "run", Faulty(), engine="processes")
    assert run.stats.steps == 120
    assert run.stats.engine == "processes"
    assert len(np.unique(run.trace.ticket)) == len(run.trace), "no gradient is applied twice"
    again = nw.replay(run.trace, Faulty(), crashing.METHODS["rennala"], seed=7)
    assert np.array_equal(again.last, run.last)
    assert nw.load(tmp_path / "run").config["engine"] is None


SCRIPT = """
import os, signal
import nowait as nw
from faulty import Faulty

def interrupt(control):
    if control.steps == 50:
        os.killpg(0, signal.SIGINT)  # as a terminal does

before = signal.getsignal(signal.SIGTERM)
run = nw.train(
    Faulty(), nw.AsynchronousSGD(nw.Constant(0.05)), engine="ray", workers=3, steps=10**9, callbacks=[interrupt]
)
import ray
print(run.stats.engine, run.stats.interrupted, run.stats.steps >= 50, ray.is_initialized())
print(signal.getsignal(signal.SIGTERM) is before, flush=True)
input()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_ends_a_run_well_and_ends_the_ray_it_had_started(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    driver = start([str(script)], tmp_path)
    assert driver.stdout.readline() == "ray True True False\n"
    assert driver.stdout.readline() == "True\n"
    wait_for_the_end_of([process for process in processes_with(tmp_path) if process != driver.pid])
    driver.communicate("\n")
    assert driver.returncode == 0
