"""The timeline of a report: it covers the whole run, the straggler comes first, and its size is bounded."""

import dataclasses

import numpy as np
import pytest

import nowait as nw
from nowait.reports.limits import Limits
from nowait.reports.timeline import KINDS, busy_seconds, events, timeline
from nowait.reports.work import mean_seconds

PROBLEM = nw.problems.NoisyQuadratic(dimension=4, sigma=0.1)
SPEEDS = nw.speeds.Exponential([1.0, 1.0, 12.0, 2.0])
LIMITS = Limits.of(1)
FEW = LIMITS._replace(jobs=100, columns=50)


@pytest.fixture(scope="module")
def run():
    return nw.simulate(PROBLEM, nw.RingmasterASGD(nw.Constant(0.1), max_delay=6), SPEEDS, gradients=500, progress=False)


def test_stragglers_are_the_first_lanes_and_pinned(run):
    lanes = timeline(run.trace, mean_seconds([run]), LIMITS)["lanes"]
    assert [lane["name"] for lane in lanes[:2]] == [2, 3], "worker 2 takes 12 times as long as usual, 3 twice as long"
    assert [lane["pinned"] for lane in lanes] == [True, True, False, False]


def test_a_worker_that_delivered_nothing_is_the_first_lane(run):
    trace = dataclasses.replace(run.trace, source=run.trace.arrivals[run.trace.worker != 0])
    lanes = timeline(trace, mean_seconds([dataclasses.replace(run, trace=trace)]), LIMITS)["lanes"]
    assert lanes[0] == {"name": 0, "pinned": True, "note": "nothing"}


def test_few_jobs_are_all_kept(run):
    made = timeline(run.trace, mean_seconds([run]), LIMITS)
    assert sum(KINDS[kind] != "open" for kind in made["jobs"]["kind"]) == len(run.trace)
    assert (made["bins"], made["detail"], made["exact"]) == (None, None, [True] * 4)
    assert made["end"] == run.trace.seconds


def test_of_many_jobs_the_stragglers_are_all_kept_and_columns_cover_the_whole_run(run):
    made = timeline(run.trace, mean_seconds([run]), FEW)
    assert made["exact"] == [True, False, False, False]
    lanes = np.array(made["jobs"]["lane"])[np.array(made["jobs"]["kind"]) < KINDS.index("open")]
    assert np.sum(lanes == 0) == np.sum(run.trace.worker == 2)
    assert len(lanes) <= 100 + 4
    assert {name: np.shape(rows) for name, rows in made["bins"]["parts"].items()} == {
        "applied": (4, 50),
        "dropped": (4, 50),
    }
    busy = np.sum(list(made["bins"]["parts"].values()), axis=0)[1:, :-2]
    assert np.all(np.abs(busy - 100) <= 2)  # these workers never wait


def test_in_the_first_part_the_jobs_of_all_lanes_are_kept(run):
    made = timeline(run.trace, mean_seconds([run]), FEW)
    start, end = made["detail"]
    inside = (run.trace.started <= end) & (run.trace.time >= start)
    jobs = zip(made["jobs"]["started"], made["jobs"]["time"], strict=True)
    assert sum(time >= start and begun <= end + 1e-4 for begun, time in jobs) == inside.sum()


def test_jobs_are_ordered_by_lane_and_time(run):
    jobs = timeline(run.trace, mean_seconds([run]), FEW)["jobs"]
    assert sorted(zip(jobs["lane"], jobs["time"], strict=True)) == list(zip(jobs["lane"], jobs["time"], strict=True))


def test_seconds_of_jobs_are_divided_among_the_columns(run):
    rows = run.trace.arrivals[:3].copy()
    rows["started"], rows["time"] = [0.0, 1.5, 9.0], [0.5, 8.0, 10.0]
    found = busy_seconds(rows, np.array([0, 1, 1]), 2, (0.0, 10.0), 10)
    assert found.tolist() == [[0.5] + [0.0] * 9, [0.0, 0.5, 1, 1, 1, 1, 1, 1, 0.0, 1.0]]


def test_delays_over_time_are_those_of_the_trace(run):
    made = timeline(run.trace, mean_seconds([run]), LIMITS)
    table = np.array(made["delays"], dtype=float)
    assert np.nanmax(table) == run.trace.delay.max()
    assert np.nanmax(table[0]) == run.trace.delay[run.trace.worker == 2].max()
    assert np.isfinite(table[0]).mean() > 0.9  # the straggler computes all the time


def test_joins_and_deaths_are_events():
    faults = nw.speeds.Faults([(5.0, "leave", 0), (9.0, "join", 0)])
    run = nw.simulate(PROBLEM, nw.AsynchronousSGD(nw.Constant(0.1)), SPEEDS, gradients=50, faults=faults)
    assert [(kind, worker) for _, kind, worker in events([run.trace])] == [("death", 0), ("join", 0)]


def test_a_thousand_workers_and_twenty_runs_make_a_small_file(tmp_path):
    speeds = nw.speeds.Fixed([1.0] * 999 + [50.0])
    run = nw.simulate(PROBLEM, nw.AsynchronousSGD(nw.Constant(1e-3)), speeds, gradients=20_000, progress=False)
    assert nw.report({"one": run}, tmp_path / "one.html").stat().st_size < 400_000
    assert nw.report({f"run {place}": run for place in range(20)}, tmp_path / "all.html").stat().st_size < 1_200_000


def open_jobs(run):
    made = timeline(run.trace, mean_seconds([run]), LIMITS)
    jobs = [made["jobs"][name] for name in ("lane", "kind", "started", "time")]
    return {made["lanes"][lane]["name"]: span for lane, kind, *span in zip(*jobs, strict=True) if KINDS[kind] == "open"}


def test_a_straggler_that_was_computing_when_the_run_ended_has_an_open_bar():
    speeds = nw.speeds.Fixed([1.0, 1.0, 40.0, 1e6])
    run = nw.simulate(PROBLEM, nw.AsynchronousSGD(nw.Constant(0.1)), speeds, seconds=100.5, progress=False)
    assert open_jobs(run) == {2: [80, 100.5], 3: [0, 100.5]}


def test_a_worker_that_was_lost_has_no_open_bar_and_one_that_joined_has_it_from_then():
    speeds = nw.speeds.Fixed([1.0, 50.0, 50.0])
    faults = nw.speeds.Faults([(5.0, "leave", 1), (7.0, "join", 2)])
    method = nw.AsynchronousSGD(nw.Constant(0.1))
    run = nw.simulate(PROBLEM, method, speeds, seconds=40.5, faults=faults, progress=False)
    assert open_jobs(run) == {2: [7, 40.5]}


def test_a_worker_that_was_replaced_has_an_open_bar_only_after_its_last_arrival():
    speeds = nw.speeds.Fixed([1.0, 1.0])
    faults = nw.speeds.Faults([(5.2, "leave", 1), (5.2, "join", 1)])
    method = nw.AsynchronousSGD(nw.Constant(0.1))
    run = nw.simulate(PROBLEM, method, speeds, seconds=60.5, faults=faults, progress=False)
    assert (run.trace.time[run.trace.worker == 1] > 5.2).sum() > 50
    assert open_jobs(run) == {}
