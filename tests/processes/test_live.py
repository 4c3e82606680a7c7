"""The live view: quiet where nobody looks, and what it says where somebody does."""

import contextlib
import io
import os
import subprocess
import sys
import types

import numpy as np
import pytest
import rich.console

import nowait as nw
from faulty import Faulty
from nowait.engines import progress
from nowait.engines.budget import Budget
from nowait.engines.live import LiveView, WorkerView, others_line, stragglers_first
from nowait.engines.progress import titled
from nowait.engines.screens import TerminalBar, is_on_terminal
from nowait.recording import TraceRecorder
from nowait.recording.phases import Phases
from nowait.recording.worker_stats import WorkerStats
from nowait.testing import ScriptedWorkers

EQUAL = nw.speeds.Fixed(1.0, workers=4)
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
    assert live.lines(workers.server, loss=None, now=0.0)[1].endswith("loss not known yet, no delays yet (M = 3)")
    workers.after(100)
    first, second = live.lines(workers.server, loss=0.25, now=workers.server.now)
    assert first.startswith("AsynchronousSGD: step 100 of 400,")
    assert first.endswith(f"about {3 * workers.server.now:.0f} s left")
    delays = live._recorder.recent("delay", 100)
    assert f"loss 0.25, delay median {np.median(delays):.0f}, maximum {delays.max()} (M = 3)" in second


def test_metrics_have_a_line_of_their_own(view):
    live, workers = view
    lines = live.lines(workers.server, 0.25, {"accuracy": 0.875, "training_loss": 0.5}, now=1.0)
    assert lines[2:] == ["accuracy 0.875, training_loss 0.5"]


def test_the_latest_decision_of_the_method_has_a_line_of_its_own(view):
    live, workers = view
    workers.server.note("waits for", {"waits_for": 2, "workers": 3})
    lines = live.lines(workers.server, 0.25, {"accuracy": 0.875}, now=1.0)
    assert lines[2:] == ["waits for 2 of 3", "accuracy 0.875"]


def test_a_simulation_shows_the_latest_decision_beside_its_bar(monkeypatch):
    shown = []
    monkeypatch.setattr(progress, "SECONDS_BEFORE_SHOWING", 0.0)
    monkeypatch.setattr(progress, "EVENTS_BETWEEN_UPDATES", 50)
    monkeypatch.setattr(progress, "report_compiling", lambda: None)  # it would report for the rest of the process
    bar = types.SimpleNamespace(show=lambda share, words: shown.append(words), close=lambda: None)
    monkeypatch.setattr(progress, "open_bar", lambda label: bar)
    problem, speeds = nw.problems.NoisyQuadratic(dimension=4), nw.speeds.Fixed([1.0, 1.0, 1.0, 1e4])
    run = nw.simulate(problem, nw.Auto(0.05), speeds, steps=60, progress=True)
    assert shown[-1] == run.trace.notes[-1].short == "waits for 2 of 4"
    nw.simulate(problem, nw.MinibatchSGD(0.05), EQUAL, steps=60, engine="reference", progress=True)
    assert shown[-1] == ""


def test_a_note_is_no_markup_of_the_bar(capsys):
    bar = TerminalBar("label [red]")
    bar.show(0.5, "a [/b]")
    bar.close()


def test_the_clock_moves_while_nothing_arrives(view):
    live, workers = view
    workers.after(100)
    first = live.lines(workers.server, loss=0.25, now=400.0)[0]
    later = live.lines(workers.server, loss=0.25, now=460.0)
    assert "400 s, about 1200 s left" in first
    assert "460 s, about 1380 s left" in later[0]
    assert later[1].startswith("0 steps/s")


def test_a_study_gives_its_runs_a_title():
    with titled("Race, 2 of 3: Asynchronous SGD, constant"):
        live = LiveView("AsynchronousSGD", Budget(steps=400), TraceRecorder([0]), shown=False)
    assert live.title == "Race, 2 of 3: Asynchronous SGD, constant"
    assert LiveView("AsynchronousSGD", Budget(steps=400), TraceRecorder([0]), shown=False).title == "AsynchronousSGD"


def busy(worker, seconds=-1.0, computing=0.0, state=""):
    return WorkerView(worker, 10, seconds, state, computing=computing)


def idle(worker, seconds):
    return WorkerView(worker, 10, seconds, "waits")


def order(*views):
    return [view.worker for view in stragglers_first(views)]


def test_the_slowest_worker_is_first():
    assert order(busy(0, 0.1), busy(1, 0.3), busy(2, 0.2)) == [1, 2, 0]


def test_those_that_others_wait_for_come_before_slower_ones_that_wait():
    assert order(idle(0, 5.0), busy(1, 0.1), busy(2, 0.2), idle(3, 9.0)) == [2, 1, 3, 0]


def test_a_worker_that_has_not_delivered_counts_with_the_time_it_has_computed():
    assert order(busy(0, 0.1), busy(1, computing=0.05), busy(2, computing=7.0)) == [2, 0, 1]


def test_a_gradient_that_takes_longer_than_usual_counts_with_its_own_time():
    assert order(busy(0, 0.5), busy(1, 0.1, computing=3.0)) == [1, 0]


def test_lost_workers_are_named_before_those_that_compute():
    lost = WorkerView(3, 10, -1.0, "lost, to be replaced", present=False)
    assert order(busy(0, 5.0), lost) == [3, 0]
    assert order(busy(0, 5.0), lost, idle(1, 0.1)) == [0, 3, 1]


def test_the_last_line_says_faster_only_if_that_is_so():
    assert others_line([busy(0, 0.5)], []) == ""
    assert others_line([busy(0, 0.5), busy(1, 0.2)], [busy(2, 0.2)]) == "and 1 faster worker"
    assert others_line([busy(0, 0.5), busy(1, 0.2)], [busy(2, 0.3), busy(3, 0.1)]) == "and 2 more workers"
    assert others_line([busy(0, 0.5)], [busy(2, computing=0.6)]) == "and 1 more worker"


def test_the_straggler_is_the_first_row_and_fast_workers_are_summed_up(view):
    live, workers = view
    views = [idle(worker, 0.01) for worker in range(20)]
    views[17] = WorkerView(17, 0, -1.0, "computes for 7.0 s", computing=7.0)
    lines = text_of(live._drawn(workers.server, 0.5, views, now=9.0)).splitlines()
    assert lines[3].split()[:5] == ["17", "0.0%", "0", ">", "7"]
    assert lines[3].endswith("computes for 7.0 s, others wait")
    assert lines[-1].strip() == "and 8 faster workers"


def stats(worker, node="", **seconds):
    return WorkerStats(worker, node, "cpu", 10, 0.1, Phases(**seconds))


def test_it_says_where_time_goes(view):
    live, workers = view
    views = [WorkerView(0, 10, 0.1, "", stats(0, "here", computing=3.0, sending=1.0), computing=0.0), idle(1, 0.05)]
    header, first, second = text_of(live._drawn(workers.server, 0.5, views, now=1.0)).splitlines()[2:]
    assert header.split() == ["worker", "share", "gradients", "s/gradient", "mostly", "now"]
    assert first.split() == ["0", "50.0%", "10", "0.1", "computing", "75%", "computes,", "others", "wait"]
    assert second.split() == ["1", "50.0%", "10", "0.05", "waits"]


def test_nodes_are_shown_if_there_are_several_and_the_view_fits_a_terminal(view):
    live, workers = view
    names = ["here", "node 1a2b3c4d (10.0.0.5)"]
    views = [
        WorkerView(place, 1_000_000, 0.00123, "slow: computes for 12.3 s", stats(place, name, computing=3.0))
        for place, name in enumerate(names)
    ]
    text = text_of(live._drawn(workers.server, 0.5, views, now=1.0), width=80)
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


def test_workers_are_sorted_by_the_seconds_that_are_shown():
    """A ticket that takes a little longer than usual changes nothing; one that hangs is shown as it is."""
    views = [busy(0, 0.002, 0.5), busy(1, 0.004, 0.0), busy(2, 0.001, 8.0)]
    assert [(view.worker, view.slowness) for view in stragglers_first(views)] == [(2, 8.0), (1, 0.004), (0, 0.002)]
