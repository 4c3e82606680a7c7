"""Files of runs that grow, are truncated, damaged or replaced while they are followed."""

import json
import os
import shutil

import numpy as np
import pytest

import nowait as nw
from dashboard.written import WrittenRun, events_of, jobs_of_workers, rows_of
from nowait.core.notes import Note
from nowait.dashboard import runs
from nowait.dashboard.follow_metrics import MetricsFollower
from nowait.dashboard.follow_run import FollowedRun
from nowait.dashboard.follow_trace import TraceFollower
from nowait.dashboard.payload import Cursor, details_of
from nowait.dashboard.runs import RunTable, id_of
from nowait.recording.diagnosis import slowest
from nowait.recording.metrics import metrics_line
from nowait.recording.phases import JOINED

ROWS = jobs_of_workers([1.0, 1.0, 20.0], until=100.0)


@pytest.fixture
def written(tmp_path):
    run = WrittenRun(tmp_path / "run")
    yield run
    run.close()


def totals(summary):
    return summary.arrivals, summary.steps, summary.grid.cells.busy.sum(), len(summary.marks.all)


# The trace


def test_a_trace_is_followed_byte_by_byte_without_complaints(written, tmp_path):
    for first in range(0, len(ROWS), 40):
        written.write(ROWS[first : first + 40], events_of((first, JOINED, 1, 0.5)))
    data = (written.folder / "trace.rows").read_bytes()
    growing = tmp_path / "trace.rows"
    follower = TraceFollower(growing)
    assert follower.read()  # there is no file yet
    for length in [*range(0, len(data), 61), len(data)]:
        growing.write_bytes(data[:length])
        assert follower.read()
        assert not follower.problem
    whole = TraceFollower(written.folder / "trace.rows")
    assert whole.read()
    assert totals(follower.summary) == totals(whole.summary)
    assert whole.summary.arrivals == len(ROWS)


def test_decisions_are_followed_and_sent_as_sentences(written):
    written.write(ROWS[:50], notes=[Note(0, 0.0, "waits for", {"waits_for": 3.0, "workers": 3.0})])
    run = FollowedRun(written.folder)
    run.refresh(0.0)
    written.write(ROWS[50:], notes=[Note(60, 55.0, "bucket", {"size": 4.0})])
    run.refresh(1.0)
    assert json.loads(json.dumps(details_of(run, Cursor())["decisions"])) == [
        [0.0, "waits for all 3: times and noise are not known yet"],
        [55.0, "bucket: size 4"],
    ]


def test_a_trace_that_a_resume_truncated_and_wrote_again_is_noticed(written):
    written.write(ROWS[:50])
    position = written.writer.position
    written.write(ROWS[50:])
    follower = TraceFollower(written.folder / "trace.rows")
    assert follower.read()
    written.file.truncate(position.length)
    assert not follower.read()
    written.writer._frames = position.frames
    for _ in range(5):
        written.write(ROWS[60:])  # longer than before: the length tells nothing
    assert not follower.read()


def test_a_damaged_frame_ends_the_trace_with_a_sentence_that_names_the_file(written):
    written.write(ROWS[:50])
    whole = written.file.length
    written.write(ROWS[50:])
    path = written.folder / "trace.rows"
    data = bytearray(path.read_bytes())
    data[whole + 60] ^= 1
    path.write_bytes(data)
    follower = TraceFollower(path)
    assert follower.read()
    assert follower.problem == ""  # it might be being written
    assert follower.read()
    assert follower.problem == f"trace.rows is damaged at byte {whole:,} (a checksum differs): the rest is not shown"
    assert follower.summary.arrivals == 50
    assert not follower.has_more
    assert len(follower.rows_between(0.0, 1e9)) == 50


def test_a_file_that_is_not_a_trace_is_named(tmp_path):
    (tmp_path / "trace.rows").write_bytes(b"something else that is long enough")
    follower = TraceFollower(tmp_path / "trace.rows")
    assert follower.read()
    assert follower.problem == "trace.rows is not a trace that this version can read"
    assert follower.summary is None


def test_a_long_trace_is_read_in_parts(written, monkeypatch):
    monkeypatch.setattr("nowait.dashboard.follow_trace.MOST_BYTES", 1000)
    for first in range(0, len(ROWS), 10):
        written.write(ROWS[first : first + 10])
    follower = TraceFollower(written.folder / "trace.rows")
    assert follower.read()
    assert follower.has_more
    assert 0 < follower.share_read < 1
    while follower.has_more:
        assert follower.read()
    assert follower.summary.arrivals == len(ROWS)


def test_only_the_frames_of_an_interval_are_read(written, monkeypatch):
    for first in range(0, len(ROWS), 10):
        written.write(ROWS[first : first + 10])
    follower = TraceFollower(written.folder / "trace.rows")
    assert follower.read()
    found = follower.rows_between(50.0, 51.0)
    assert 0 < len(found) <= 40
    inside = (ROWS["time"] >= 50.0) & (ROWS["started"] <= 51.0)
    assert set(ROWS[inside]["time"].tolist()) <= set(found["time"].tolist())
    monkeypatch.setattr("nowait.dashboard.follow_trace.MOST_ROWS", 9)
    assert follower.rows_between(50.0, 51.0) is None


# Metrics


def test_metrics_are_read_line_by_line(written):
    follower = MetricsFollower(written.folder / "metrics.jsonl")
    assert follower.read() == []
    written.evaluate(1, 0.5, 2.0, accuracy=0.5)
    line = metrics_line("", 2, 2, 0.75, 1.0).encode() + b"\n"
    with (written.folder / "metrics.jsonl").open("ab") as file:
        file.write(line[:20])
    assert [(point.step, point.loss, point.metrics) for point in follower.read()] == [(1, 2.0, {"accuracy": 0.5})]
    assert follower.read() == []
    with (written.folder / "metrics.jsonl").open("ab") as file:
        file.write(line[20:])
    assert [point.step for point in follower.read()] == [2]
    assert follower.damaged_lines == 0


def test_a_damaged_line_is_left_out_and_counted(written):
    written.evaluate(1, 0.5, 2.0)
    with (written.folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 2}\n')
    follower = MetricsFollower(written.folder / "metrics.jsonl")
    assert [point.step for point in follower.read()] == [1]
    assert follower.damaged_lines == 1


def test_metrics_that_were_replaced_by_others_are_noticed_and_by_the_same_are_not(written):
    path = written.folder / "metrics.jsonl"
    for step in range(4):
        written.evaluate(step, float(step), 1.0 / (step + 1))
    follower = MetricsFollower(path)
    assert len(follower.read()) == 4
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    assert follower.read() == []
    path.write_bytes(data[: len(data) // 2])
    assert follower.read() is None


# Runs


def test_a_run_is_followed_from_before_it_begins_until_after_it_was_killed(tmp_path):
    run = FollowedRun(tmp_path / "later")
    run.refresh(0.0)
    assert (run.state.value, run.summary.steps) == ("not a run", 0)
    written = WrittenRun(tmp_path / "later")
    run.refresh(0.0)
    assert run.state.value == "running"
    written.write(ROWS)
    written.evaluate(9, 5.0, 0.5)
    written.checkpoint(7)
    run.refresh(0.0)
    assert (run.summary.steps, run.checkpoints, run.config["seed"]) == (len(ROWS), [7], 7)
    written.close()
    run.refresh(0.0)
    details = details_of(run, Cursor())
    assert details["words"] == f"killed at step {len(ROWS)}"
    assert details["straggler"]["worker"] == 2
    shutil.rmtree(tmp_path / "later")
    run.refresh(0.0)
    assert run.state.value == "not a run"


def test_a_silent_run_gets_older_and_a_run_that_writes_does_not(written):
    written.write(ROWS)
    for name in ("trace.rows", "config.json"):
        os.utime(written.folder / name, (1000.0, 1000.0))
    run = FollowedRun(written.folder)
    run.refresh(1001.0)
    assert run.present == 100.0
    run.refresh(1063.0)
    assert run.present == 160.0
    written.close()
    run.refresh(1063.0)
    assert run.present == 100.0


def test_a_resumed_run_begins_again_with_another_epoch(written):
    written.write(ROWS[:50])
    position = written.writer.position
    written.write(ROWS[50:])
    run = FollowedRun(written.folder)
    run.refresh(0.0)
    before = run.epoch
    written.file.truncate(position.length)
    written.writer._frames, written.arrivals = position.frames, 50
    written.write(ROWS[51:])
    run.refresh(0.0)
    assert run.epoch != before
    assert run.summary.trace.arrivals == len(ROWS) - 1


def test_only_what_is_new_is_sent(written):
    written.write(ROWS[:150])
    written.evaluate(1, 1.0, 3.0)
    run = FollowedRun(written.folder)
    run.refresh(0.0)
    first = details_of(run, Cursor())
    written.write(ROWS[150:155])
    written.evaluate(2, float(ROWS[154]["time"]), 2.0)
    run.refresh(0.0)
    second = details_of(run, Cursor(first["epoch"], 1, first["grid"]["version"]))
    assert second["points"]["loss"] == [2.0]
    assert second["grid"]["first"] > 0.8 * second["grid"]["columns"]
    columns = second["grid"]["columns"] - second["grid"]["first"]
    assert len(second["grid"]["steps"]) == len(second["grid"]["used"][0]) == columns
    again = details_of(run, Cursor("another epoch", 2, 10**9))
    assert (again["points"]["first"], again["grid"]["first"]) == (0, 0)


def test_payloads_are_bounded_for_a_thousand_workers(tmp_path):
    written = WrittenRun(tmp_path / "run", workers=1000)
    periods = np.ones(1000)
    for second in range(30):
        jobs = ((worker, float(second), second + float(periods[worker]), 1000) for worker in range(1000))
        written.write(rows_of(*jobs))
    run = FollowedRun(written.folder)
    run.refresh(0.0)
    details = details_of(run, Cursor())
    assert len(details["lanes"]) == len(details["grid"]["delays"]) == 40
    assert len(details["workers"]["rows"]) == 60
    assert details["workers"]["total"] == 1000
    assert len(json.dumps(details)) < 300_000
    written.close()


def test_finished_runs_have_their_results(tmp_path):
    problem = nw.problems.NoisyQuadratic(dimension=2)
    method = nw.MinibatchSGD(nw.Constant(0.1))
    saved = nw.simulate(problem, method, nw.speeds.Fixed([1.0, 5.0]), steps=30, progress=False)
    saved.save(tmp_path / "run")
    run = FollowedRun(tmp_path / "run")
    run.refresh(0.0)
    details = details_of(run, Cursor())
    assert (details["words"], details["steps"], details["live_workers"]) == ("finished", 30, 2)
    assert details["points"]["loss"] == saved.history.loss.tolist()
    found = slowest(saved.trace.by_worker())
    numbers = found.times, found.worker.seconds_per_gradient
    assert details["straggler"]["worker"] == found.worker.worker == 1
    assert (details["straggler"]["times"], details["straggler"]["pace"]) == pytest.approx(numbers)
    assert details["workers"]["rows"][0]["pace"] == pytest.approx(found.worker.seconds_per_gradient)


# Folders


def names(table, wall):
    table.search(wall)
    return [listed.name for listed in table.listed.values()]


def test_new_runs_in_a_folder_appear(tmp_path):
    table = RunTable([tmp_path / "runs"])
    assert names(table, 0.0) == []
    first = WrittenRun(tmp_path / "runs" / "a")
    WrittenRun(tmp_path / "runs" / ".hidden.creating").close()
    WrittenRun(tmp_path / "runs" / "race" / "b").close()
    (tmp_path / "runs" / "race" / "config.json").write_text("{}")
    assert names(table, 10.0) == ["a", "race/b"]
    assert [listed.state.value for listed in table.listed.values()] == ["running", "killed"]
    assert table.listed[id_of(tmp_path / "runs" / "a")].folder == tmp_path / "runs" / "a"
    first.close()
    shutil.rmtree(tmp_path / "runs" / "race")
    assert names(table, 20.0) == ["a"]


def test_a_run_folder_itself_can_be_watched(tmp_path):
    WrittenRun(tmp_path / "mine").close()
    assert names(RunTable([tmp_path / "mine"]), 0.0) == ["mine"]


def test_runs_with_the_same_name_are_told_apart(tmp_path):
    for parent in ("x", "y"):
        WrittenRun(tmp_path / parent / "a").close()
    assert names(RunTable([tmp_path / "x", tmp_path / "y"]), 0.0) == [str(tmp_path / one / "a") for one in "xy"]


def test_of_too_many_runs_the_newest_are_listed_and_few_are_kept_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "MOST_RUNS", 3)
    monkeypatch.setattr(runs, "MOST_FOLLOWED", 2)
    for number in range(5):
        WrittenRun(tmp_path / f"r{number}").close()
        os.utime(tmp_path / f"r{number}" / "trace.rows", (number, number))
    table = RunTable([tmp_path])
    assert names(table, 10.0) == ["r2", "r3", "r4"]
    assert len(table.followed(table.listed, 10.0)) == 3
    assert len(table._followed) == 2
    assert table.followed(["no such run"], 10.0) == {}
