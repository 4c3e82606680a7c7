"""A straggler, a ticket that hangs, and seconds per gradient are the same on every page and in every message."""

import dataclasses
import math
import re
from pathlib import Path

import pytest

import nowait as nw
from nowait.core.messages import Ticket
from nowait.core.notes import Waiting
from nowait.dashboard.summary import TraceSummary
from nowait.dashboard.workers import WorkerRow, rows_of_the_whole_run, straggler_of
from nowait.engines.live import WorkerView, stragglers_first
from nowait.fleet.server.workers import State, Worker
from nowait.recording.diagnosis import diagnosis, slowest
from nowait.recording.phases import Phases
from nowait.recording.worker_stats import (
    HANGS_SECONDS,
    HANGS_TIMES,
    STRAGGLER_TIMES,
    WorkerStats,
    hangs,
    is_straggler,
    stragglers_of,
)
from nowait.reports.limits import Limits
from nowait.reports.timeline import timeline
from nowait.reports.work import mean_seconds

DOCS = Path(__file__).parents[2] / "docs"


def run_of(*seconds):
    problem, method = nw.problems.NoisyQuadratic(dimension=2), nw.AsynchronousSGD(0.1)
    return nw.simulate(problem, method, nw.speeds.Fixed(seconds), seconds=100.5, progress=False)


def rows_of(run):
    """The workers as the dashboard sees them, at the end of the run."""
    summary = TraceSummary(run.trace.initial_workers.tolist())
    summary.add_rows(run.trace.arrivals, len(run.trace))
    return summary.workers(run.trace.seconds)


def views_of(run):
    return [
        WorkerView(one.worker, one.gradients, one.seconds_per_gradient, "", one, computing=0.0)
        for one in run.trace.by_worker()
    ]


def pinned(run):
    lanes = timeline(run.trace, mean_seconds([run]), Limits.of(1))["lanes"]
    return [lane["name"] for lane in lanes if lane["pinned"]]


def test_everything_calls_a_worker_that_is_1_6_times_slower_a_straggler():
    run = run_of(1.0, 1.6, 1.0, 1.0, 1.0)
    workers = run.trace.by_worker()
    assert [one.worker for one in stragglers_of(workers, 3)] == pinned(run) == [1]
    assert slowest(workers).worker.worker == 1
    assert diagnosis(workers).startswith("worker 1 is slow: a gradient takes 1.6 s, 1.6 times as long as usual")
    assert (
        straggler_of(rows_of(run)).worker == straggler_of(rows_of_the_whole_run(rows_of(run)), is_over=True).worker == 1
    )
    assert stragglers_first(views_of(run))[0].worker == 1
    assert "worker 1 is 1.6 times slower" in Waiting(4, 5, before=5, slowest=1, times_slower=1.6).sentence


def test_nothing_calls_a_worker_that_is_1_4_times_slower_a_straggler():
    run = run_of(1.0, 1.4, 1.0, 1.0, 1.0)
    workers = run.trace.by_worker()
    assert stragglers_of(workers, 3) == pinned(run) == []
    assert slowest(workers) is None
    assert diagnosis(workers) == "no worker is much slower than the others"
    assert straggler_of(rows_of(run)) is straggler_of(rows_of_the_whole_run(rows_of(run)), is_over=True) is None
    assert "slower" not in Waiting(4, 5, before=5, slowest=1, times_slower=1.4).sentence


def test_everything_names_a_worker_that_has_delivered_nothing():
    run = run_of(1.0, 1e6, 1.0, 40.0)
    workers = run.trace.by_worker()
    assert pinned(run) == [1, 3]
    assert diagnosis(workers) == "worker 1 is slow: it has delivered no gradient in 100 s"
    assert (
        straggler_of(rows_of(run)).worker == straggler_of(rows_of_the_whole_run(rows_of(run)), is_over=True).worker == 1
    )


def test_a_worker_that_joined_just_before_the_end_is_no_straggler():
    faults = nw.speeds.Faults([(3.0, "leave", 2), (100.0, "join", 2)])
    problem, method = nw.problems.NoisyQuadratic(dimension=2), nw.AsynchronousSGD(0.1)
    speeds = nw.speeds.Fixed([1.0, 1.0, 7.0, 1.0])
    run = nw.simulate(problem, method, speeds, faults=faults, seconds=100.5, progress=False)
    silent = next(one for one in run.trace.by_worker() if one.worker == 2)
    assert (silent.gradients, silent.pace) == (0, pytest.approx(3.5))
    late = dataclasses.replace(silent, phases=Phases(unfinished=0.5))
    others = [one for one in run.trace.by_worker() if one.worker != 2]
    assert stragglers_of([*others, late]) == []


def test_the_median_is_that_of_the_others():
    assert is_straggler(1.5, 1.0)
    assert not is_straggler(1.49, 1.0)
    assert not is_straggler(0.0, 0.0)
    assert not is_straggler(math.inf, math.inf)
    assert pinned(run_of(1.0, 1.6)) == [1]
    assert pinned(run_of(1.0)) == []


def test_seconds_per_gradient_are_from_order_to_arrival_everywhere():
    """Worker 1 gets its orders 2 s late, and its reports take 1 s."""
    run = run_of(1.0, 5.0, 1.0)
    rows = run.trace.arrivals.copy()
    rows["started"][rows["worker"] == 1] += 2.0
    rows["compute_seconds"][rows["worker"] == 1] = 2.0
    run = dataclasses.replace(run, trace=dataclasses.replace(run.trace, source=rows))
    expected = {one.worker: one.seconds_per_gradient for one in run.trace.by_worker()}
    first = 2.0 / 20  # until a process computes for the first time, it starts
    assert expected == pytest.approx({0: 1.0, 1: 5.0 - first, 2: 1.0})
    assert dict(enumerate(mean_seconds([run]))) == pytest.approx(expected)
    assert {row.stats.worker: row.recent for row in rows_of_the_whole_run(rows_of(run))} == pytest.approx(expected)
    assert re.search(r"worker 1</.*?20</.*?4\.9<", run.trace._repr_html_(), re.DOTALL)


@pytest.mark.parametrize("usual", [0.01, 1.0, 4.0])
@pytest.mark.parametrize("computing", [0.5, 1.1, 2.9, 3.1, 11.9, 12.1])
def test_a_ticket_hangs_on_all_pages_or_on_none(computing, usual):
    expected = hangs(computing, usual)
    assert expected == (computing > 3 * usual and computing > 1)
    stats = WorkerStats(0, "", "cpu", 5, 0.1, Phases(computing=1.0), computing)
    worker = Worker(0, State.COMPUTING, ticket=Ticket(0, 0, 0, 0, 0.0))
    assert WorkerView(0, 5, usual, "", computing=computing).hangs == expected
    assert worker.describe(computing, usual).startswith("slow: ") == expected
    assert (WorkerRow(stats, "computing", usual, 1, job_seconds=computing).pace == computing) == expected


def test_the_docs_have_the_same_numbers():
    words = {name: " ".join((DOCS / name).read_text().split()) for name in ("slow-workers.md", "reports.md")}
    assert f"at least {STRAGGLER_TIMES:g} times the median of the others" in words["slow-workers.md"]
    assert f"at least {STRAGGLER_TIMES:g} times as long as the median of the others" in words["reports.md"]
    assert (
        f"more than {HANGS_TIMES:g} times as long as usual, and more than {HANGS_SECONDS:g} second,"
        in words["slow-workers.md"]
    )
