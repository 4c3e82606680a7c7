"""What is added up from rows and evaluations: exact numbers, in bounded memory."""

import math

import numpy as np
import pytest

import nowait as nw
from dashboard.written import CONFIG, events_of, jobs_of_workers, rows_of
from nowait.dashboard.cells import cells_of
from nowait.dashboard.curve import Curve, Point
from nowait.dashboard.facts import facts_of, goal_of, minimum_of
from nowait.dashboard.frame_index import Entry, FrameIndex
from nowait.dashboard.grid import Grid
from nowait.dashboard.marks import Marks
from nowait.dashboard.recent import HELD, NO_PACE, Recent
from nowait.dashboard.summary import RunSummary, TraceSummary
from nowait.dashboard.timeline import jobs_between, stretch_of_grid, stretch_of_jobs
from nowait.dashboard.workers import WorkerRow, lanes_of, straggler_of
from nowait.recording.phases import JOINED, LOST, RESUMED, Phases
from nowait.recording.rows import OUTCOME_CODES
from nowait.recording.worker_stats import WorkerStats

DROPPED = OUTCOME_CODES[nw.core.Outcome.DROPPED]


# Cells and the grid


def test_a_job_makes_its_worker_busy_in_every_column_that_it_touches():
    cells = cells_of(rows_of((0, 0.5, 2.25, 3), (1, 1.0, 1.5, 1)), np.array([0, 1]), (2, 3), 0.0, 1.0)
    assert cells.busy.tolist() == [[0.5, 1.0, 0.25], [0.0, 0.5, 0.0]]
    assert cells.stale.tolist() == [[1.5, 3.0, 0.75], [0.0, 0.5, 0.0]]
    assert cells.arrivals.tolist() == [[0, 0, 1], [0, 1, 0]]
    assert cells.delay_max.tolist() == [[0, 0, 3], [0, 1, 0]]


def test_jobs_that_reach_beyond_the_columns_are_cut_at_their_edges():
    cells = cells_of(rows_of((0, -5.0, 1.5, 2), (0, 2.5, 9.0, 2)), np.array([0, 0]), (1, 2), 1.0, 1.0)
    assert cells.busy.tolist() == [[0.5, 0.5]]
    assert cells.arrivals.tolist() == [[1, 0]]


def test_gradients_that_were_not_used_are_counted_separately():
    rows = rows_of((0, 0.0, 1.0, 1), (0, 1.0, 2.0, 1))
    rows["outcome"][1] = DROPPED
    assert cells_of(rows, np.array([0, 0]), (1, 2), 0.0, 1.0).unused.tolist() == [[0.0, 1.0]]


def test_a_start_that_is_not_a_number_counts_as_the_time_of_arrival():
    cells = cells_of(rows_of((0, math.nan, 1.5, 1)), np.array([0]), (1, 2), 0.0, 1.0)
    assert (cells.busy.sum(), cells.arrivals.sum()) == (0.0, 1)


def test_columns_double_in_width_and_nothing_is_lost():
    rows = jobs_of_workers([1.0, 2.0, 7.0], until=50.0)
    coarse, fine = Grid(most_columns=8), Grid(most_columns=512)
    for row in range(0, len(rows), 5):
        coarse.add(rows[row : row + 5])
    fine.add(rows)
    factor = round(coarse.width / fine.width)
    assert (coarse.num_columns, coarse.num_workers) == (-(-fine.num_columns // factor), 3)
    assert coarse.num_columns <= 8
    for name in ("arrivals", "delay_sum", "busy", "stale"):
        table = getattr(fine.cells, name)
        padded = np.pad(table, ((0, 0), (0, coarse.num_columns * factor - table.shape[1])))
        sums = padded.reshape(3, -1, factor).sum(axis=2)
        assert getattr(coarse.cells, name) == pytest.approx(sums, rel=1e-5), name
    assert coarse.steps[-1] == fine.steps[-1] == len(rows)
    longest = np.pad(fine.cells.delay_max, ((0, 0), (0, coarse.num_columns * factor - fine.num_columns)))
    assert coarse.cells.delay_max.tolist() == longest.reshape(3, -1, factor).max(axis=2).tolist()


def test_a_grid_says_which_columns_have_changed_since_a_version():
    grid = Grid(most_columns=64)
    grid.add(jobs_of_workers([1.0, 1.0], until=32.0))
    grid.made_steps(np.array([0.0]), np.array([0]))
    seen, width = grid.version, grid.width
    assert grid.first_changed(seen) == grid.num_columns
    grid.add(rows_of((1, 30.0, 33.0, 1)))
    assert grid.first_changed(seen) == int(30.0 / width)
    assert grid.first_changed(-1) == 0


def test_a_jump_in_time_widens_the_columns_at_once():
    grid = Grid(most_columns=4)
    grid.add(rows_of((0, 0.0, 1e-6, 1)))
    grid.add(rows_of((0, 1e6, 2e6, 1)))
    assert grid.cells.arrivals.sum() == 2
    assert grid.num_columns <= 4


# Evaluations and marks


def test_of_too_many_evaluations_every_second_is_kept_and_always_the_latest():
    curve = Curve(most_points=4)
    for step in range(12):
        curve.add(Point(step, step, float(step), 1.0, {}))
    assert [point.step for point in curve.points] == [0, 4, 8]
    assert (curve.latest.step, curve.thinnings) == (11, 2)


def test_neighbouring_marks_of_a_kind_are_merged_and_no_worker_is_lost():
    marks = Marks(most=4)
    marks.add(
        events_of(
            *((0, JOINED, worker, float(worker)) for worker in range(7)), (0, LOST, 3, 9.0), (0, RESUMED, -1, 10.0)
        )
    )
    assert len(marks.all) <= 4
    assert sum(mark.workers for mark in marks.all if mark.kind == "joined") == 7
    assert [mark.kind for mark in marks.all if mark.time >= 9.0] == ["lost", "resumed"]


# Who is slow


def worker(number, *, recent, state="computing", in_flight=0.0, gradients=5):
    stats = WorkerStats(number, "", "cpu", gradients, 0.1, Phases(computing=1.0), in_flight)
    return WorkerRow(stats, state, recent, 1, job_seconds=0.0 if state in ("waiting", "left") else in_flight)


def slowest_first(*rows):
    return sorted(rows, key=lambda row: (row.state == "left", -row.pace))


def test_the_slowest_worker_is_a_straggler_if_the_others_are_much_faster():
    rows = slowest_first(worker(0, recent=1.0), worker(1, recent=20.0), worker(2, recent=1.1))
    assert straggler_of(rows).worker == 1
    assert straggler_of(rows)[1:] == pytest.approx((20, 1.05))
    assert straggler_of(rows).times == pytest.approx(20 / 1.05)
    assert straggler_of(slowest_first(worker(0, recent=1.0), worker(1, recent=1.2))) is None


def test_a_worker_that_has_not_delivered_for_long_is_a_straggler_before_it_delivers():
    silent = worker(2, recent=math.nan, state="starting", in_flight=30.0, gradients=0)
    rows = slowest_first(worker(0, recent=1.0), worker(1, recent=1.0), silent)
    assert straggler_of(rows).worker == 2


def test_workers_that_wait_for_a_step_or_have_left_are_not_slow():
    waiting = worker(0, recent=1.0, state="waiting", in_flight=50.0)
    left = worker(1, recent=90.0, state="left")
    rows = slowest_first(waiting, left, worker(2, recent=1.0), worker(3, recent=1.0))
    assert straggler_of(rows) is None
    assert rows[-1].stats.worker == 1


def test_workers_of_a_synchronous_method_wait_for_its_straggler():
    """Worker 1 takes 10 times as long, and both held gradients are used in a step when it delivers."""
    rows = rows_of(
        *(
            job
            for step in range(5)
            for job in ((0, 10.0 * step, 10.0 * step + 1, 1), (1, 10.0 * step, 10.0 * step + 10, 1))
        )
    )
    rows["outcome"], rows["version"] = HELD, np.arange(10) // 2
    rows["step"], rows["job"] = np.arange(10) // 2 + 1, np.arange(10) // 2
    rows = np.append(rows, rows_of((0, 50.0, 51.0, 1)))
    rows["outcome"][-1], rows["step"][-1], rows["version"][-1], rows["job"][-1] = HELD, 0, 5, 5
    summary = TraceSummary([0, 1])
    summary.add_rows(rows, len(rows))
    slow, waiting = summary.workers(60.0)
    assert (slow.stats.worker, slow.state, slow.job_seconds) == (1, "computing", 10.0)
    assert (waiting.state, waiting.job_seconds, waiting.stats.in_flight) == ("waiting", 0.0, 9.0)
    assert straggler_of([slow, waiting]).worker == 1


def pace_after(*changes):
    """The seconds per gradient of a worker after so many jobs of so many seconds each, one after another."""
    pace, time, jobs = NO_PACE, 0.0, 0
    for number, seconds in changes:
        time, jobs = time + number * seconds, jobs + number
        pace = pace.at(time, np.array([time]), np.array([jobs]))
    return pace.seconds[0]


def test_recent_jobs_count_most_and_a_single_long_one_little():
    assert 3.5 < pace_after(*[(1, 1.0)] * 50, (20, 4.0)) < 4.0
    assert pace_after((5000, 0.001), (1, 0.05)) < 0.0011
    assert pace_after((5000, 0.001), (10, 3.0)) > 0.05


def test_a_short_pause_of_a_fast_worker_is_no_hang_and_a_long_one_is():
    assert worker(0, recent=0.0004, in_flight=0.018).pace == 0.0004
    assert worker(0, recent=0.0004, in_flight=5.0).pace == 5.0
    assert worker(0, recent=2.0, in_flight=5.0).pace == 2.0


def test_a_held_gradient_is_waiting_until_its_step_is_known():
    rows = rows_of((0, 0.0, 1.0, 1), (1, 0.0, 2.0, 1))
    rows["outcome"], rows["step"] = HELD, 0
    recent = Recent()
    recent.add(rows)
    recent.used_in_steps(np.array([0]))
    assert recent.is_held.tolist() == [False, True]


def test_of_many_workers_the_slowest_are_drawn_and_some_of_the_others():
    rows = slowest_first(*(worker(number, recent=1.0 + number / 1000) for number in range(1000)))
    lanes = lanes_of(rows)
    assert (len(lanes), lanes) == (40, sorted(set(lanes)))
    assert set(range(984, 1000)) <= set(lanes)
    assert 0 in lanes


def test_lanes_stay_the_same_until_the_straggler_is_missing():
    summary = RunSummary()
    rows = [worker(number, recent=1.0) for number in range(100)]
    lanes = summary.lanes(rows, None)
    missing = next(number for number in range(100) if number not in lanes)
    assert summary.lanes(rows[1:] + rows[:1], None) == lanes
    rows = [worker(missing, recent=9.0), *(row for row in rows if row.stats.worker != missing)]
    assert missing in summary.lanes(rows, straggler_of(rows))
    assert summary.lane_changes == 2


# Whole runs


@pytest.fixture(scope="module")
def run():
    """A run in which workers leave and join."""
    return nw.simulate(
        nw.problems.NoisyQuadratic(dimension=3),
        nw.AsynchronousSGD(0.05),
        nw.speeds.Exponential([1.0, 1.0, 3.0, 9.0]),
        faults=nw.speeds.Faults([(20.0, "leave", 0), (30.0, "leave", 2), (45.0, "join", 0), (60.0, "join", 2)]),
        seconds=120,
        progress=False,
    )


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_trace_in_pieces_gives_the_phases_of_the_whole(run, size):
    summary = TraceSummary(run.trace.initial_workers.tolist())
    rows, events = run.trace.arrivals, run.trace.events
    assert len(events) >= 4
    for first in range(0, len(rows), size):
        piece = rows[first : first + size]
        summary.add_rows(piece, len(piece))
        now = (events["after"] >= first) & (events["after"] < first + size)
        if now.any():
            summary.add_events(events[now])
    end = run.trace.seconds
    expected = {one.worker: one for one in run.trace.by_worker()}
    found = {row.stats.worker: row.stats for row in summary.workers(end)}
    assert found.keys() == expected.keys()
    for number, one in expected.items():
        assert found[number].gradients == one.gradients
        assert found[number].phases.computing == pytest.approx(one.phases.computing)
        assert found[number].phases.unfinished == pytest.approx(one.phases.unfinished)


def test_events_that_are_written_after_later_rows_still_count():
    rows = jobs_of_workers([1.0, 1.0], until=20.0)
    rows = rows[(rows["worker"] == 0) | (rows["time"] <= 3.0)]
    summary = TraceSummary([0, 1])
    summary.add_rows(rows[:10], 10)
    summary.add_rows(rows[10:], len(rows) - 10)
    summary.add_events(events_of((6, LOST, 1, 3.5)))
    assert {row.stats.worker: row.state for row in summary.workers(20.0)} == {0: "computing", 1: "left"}
    assert summary.workers(20.0)[0].stats.gradients == 20


def test_asking_for_the_workers_changes_nothing(run):
    summary = TraceSummary(run.trace.initial_workers.tolist())
    summary.add_rows(run.trace.arrivals, len(run.trace))
    assert summary.workers(120.0) == summary.workers(120.0)


# Intervals of time


def test_an_index_finds_the_frames_of_an_interval_also_after_merging():
    index = FrameIndex(most=4)
    for number in range(21):
        index.add(Entry(number * 10, number * 10 + 10, number, 5, float(number), number + 1.5))
    assert len(index.entries) <= 4
    assert sum(entry.rows for entry in index.entries) == 105
    found = index.between(7.0, 7.2)
    assert found
    assert found[0].offset <= 60
    assert found[-1].end >= 80
    assert all(one.end == two.offset for one, two in zip(index.entries, index.entries[1:], strict=False))


def test_a_merged_entry_reaches_back_to_the_start_of_its_longest_job():
    index = FrameIndex(most=2)
    index.add(Entry(0, 10, 0, 1, 5.0, 6.0))
    index.add(Entry(10, 20, 1, 1, 1.0, 7.0))
    index.add(Entry(20, 30, 2, 1, 7.0, 8.0))
    assert index.entries[0] == Entry(0, 20, 0, 2, 1.0, 7.0)
    assert index.between(2.0, 3.0) == [index.entries[0]]


def test_a_long_job_is_found_in_an_interval_in_which_nothing_arrives():
    rows = rows_of((0, 0.0, 1.0, 1), (1, 0.5, 9.0, 8), (0, 1.0, 2.0, 1))
    assert jobs_between(rows, [0, 1], 4.0, 5.0)["worker"].tolist() == [1]
    stretch = stretch_of_jobs(jobs_between(rows, [0, 1], 4.0, 5.0), [0, 1], 4.0, 5.0)
    assert stretch.cells.busy.sum(axis=1) == pytest.approx([0.0, 1.0])


def test_the_columns_of_a_grid_can_be_cut_and_workers_without_arrivals_are_empty():
    grid = Grid(most_columns=64)
    grid.add(jobs_of_workers([1.0], until=32.0))
    stretch = stretch_of_grid(grid, [0, 5], 8.0, 16.0)
    assert stretch.cells.busy.shape == (2, round(8.0 / grid.width))
    assert stretch.cells.busy.sum(axis=1) == pytest.approx([8.0, 0.0])


# The configuration


def test_a_run_is_described_in_words():
    assert facts_of(CONFIG) == [
        "Asynchronous SGD, delay adaptive 0.05",
        "Noisy quadratic, dimension 10",
        "3 workers",
        "seed 7",
    ]


def test_facts_of_a_configuration_that_is_not_one_are_left_out():
    assert facts_of({"method": 3, "problem": None, "workers": "x", "budget": []}) == []
    assert goal_of({"budget": {"steps": None, "seconds": 3.0}}) == {"seconds": 3.0}
    assert minimum_of({"labels": {"minimum": 0.25}}) == 0.25
    assert minimum_of({"minimum": "no"}) is None
