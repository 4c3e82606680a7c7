"""The live view: quiet where nobody looks, and what it says where somebody does."""

import contextlib
import io
import os
import subprocess
import sys

import numpy as np
import pytest
import rich.console

import nowait as nw
from faulty import Faulty
from nowait.engines.budget import Budget
from nowait.engines.live import LiveView, WorkerView
from nowait.engines.screens import is_on_terminal
from nowait.recording import TraceRecorder
from nowait.recording.phases import Phases
from nowait.recording.worker_stats import WorkerStats
from nowait.testing import ScriptedWorkers

METHOD = nw.AsynchronousSGD(nw.Constant(0.05))


@pytest.fixture
def view():
    recorder = TraceRecorder([0, 1, 2])
    workers = ScriptedWorkers(METHOD, num_workers=3, log=recorder)
    return LiveView("AsynchronousSGD", Budget(steps=400), recorder, shown=False), workers


def text_of(drawn, width=100):
    console = rich.console.Console(file=io.StringIO(), width=width)
    console.print(drawn)
    return console.file.getvalue()


def test_the_first_lines_say_how_fast_how_good_and_how_late(view):
    live, workers = view
    assert live.lines(workers.server, loss=None)[1].endswith("loss not known yet, no delays yet (M = 3)")
    workers.after(100)
    first, second = live.lines(workers.server, loss=0.25)
    assert first.startswith("AsynchronousSGD: step 100 of 400,")
    assert first.endswith(f"about {3 * workers.server.now:.0f} s left")
    delays = live._recorder.recent("delay", 100)
    assert f"loss 0.25, delay median {np.median(delays):.0f}, maximum {delays.max()} (M = 3)" in second


def test_metrics_have_a_line_of_their_own(view):
    live, workers = view
    lines = live.lines(workers.server, 0.25, {"accuracy": 0.875, "training_loss": 0.5})
    assert lines[2:] == ["accuracy 0.875, training_loss 0.5"]


def test_slow_and_lost_workers_are_named_and_fast_ones_summed_up(view):
    live, workers = view
    views = [WorkerView(worker, 100 - worker, 0.01 + worker / 1000, "") for worker in range(20)]
    views[3] = WorkerView(3, 2, 0.01, "slow: computes for 7.0 s")
    views[4] = WorkerView(4, 5, -1.0, "lost, to be replaced")
    text = text_of(live._drawn(workers.server, 0.5, views))
    assert "slow: computes for 7.0 s" in text
    assert "lost, to be replaced" in text
    assert "and 8 faster workers" in text
    assert "19" in text.split("and 8 workers")[0], "the slowest are shown"


def test_a_worker_that_has_not_delivered_is_not_among_the_fast_ones(view):
    live, workers = view
    views = [WorkerView(worker, 100, 0.01, "") for worker in range(100, 120)] + [WorkerView(7, 0, -1.0, "")]
    rows = text_of(live._drawn(workers.server, 0.5, views)).splitlines()
    assert any(row.split()[:1] == ["7"] for row in rows)


def stats(worker, node="", **seconds):
    return WorkerStats(worker, node, "cpu", 10, 0.1, Phases(**seconds))


def test_it_says_where_time_goes(view):
    live, workers = view
    views = [WorkerView(0, 10, 0.1, "", stats(0, "here", computing=3.0, sending=1.0)), WorkerView(1, 0, -1.0, "waits")]
    header, first, second = text_of(live._drawn(workers.server, 0.5, views)).splitlines()[2:]
    assert header.split() == ["worker", "share", "gradients", "s/gradient", "mostly", "now"]
    assert first.split() == ["0", "100.0%", "10", "0.1", "computing", "75%", "computes"]
    assert second.split() == ["1", "0.0%", "0", "waits"]


def test_nodes_are_shown_if_there_are_several_and_the_view_fits_a_terminal(view):
    live, workers = view
    names = ["here", "node 1a2b3c4d (10.0.0.5)"]
    views = [
        WorkerView(place, 1_000_000, 0.00123, "slow: computes for 12.3 s", stats(place, name, computing=3.0))
        for place, name in enumerate(names)
    ]
    text = text_of(live._drawn(workers.server, 0.5, views), width=80)
    assert "node" in text.splitlines()[2].split()
    assert "node 1a…0.0.5)" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "slow: computes" in text


def test_nothing_is_written_when_the_stream_is_not_a_terminal(capfd):
    nw.train(Faulty(), METHOD, workers=2, steps=50)
    assert capfd.readouterr() == ("", "")


def test_it_is_shown_on_a_terminal():
    ours, theirs = os.openpty()
    code = (
        "import nowait as nw; problem = nw.problems.NoisyQuadratic(dimension=3); "
        "nw.train(problem, nw.AsynchronousSGD(nw.Constant(0.01)), workers=2, seconds=1.0)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=os.environ | {"TERM": "xterm"}) as process:
        os.close(theirs)
        seen = b""
        with contextlib.suppress(OSError):  # the terminal is closed when the process ends
            while part := os.read(ours, 65_536):
                seen += part
    os.close(ours)
    assert process.returncode == 0
    assert b"AsynchronousSGD: step" in seen
    assert b"s/gradient" in seen


def test_without_a_standard_error_stream_nothing_is_shown(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert not is_on_terminal()
