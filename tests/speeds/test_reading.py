"""Recorded jobs from files: tables, profiler traces, folders of runs, and damaged ones."""

import gzip
import json
import lzma
import sys

import numpy as np
import pytest

import nowait as nw
from nowait.speeds import Recorded

ROWS = "worker,duration\n1,2.5\n0,1\n1,3\n0,1.5\n"
EXPECTED = [[1.0, 1.5], [2.5, 3.0]]


def lists(recorded):
    return [mine.tolist() for mine in recorded.seconds]


def written(folder, text, name="job.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_table_has_the_times_of_every_worker_in_the_order_of_its_rows(tmp_path):
    recorded = Recorded.read(written(tmp_path, ROWS))
    assert lists(recorded) == EXPECTED
    assert repr(recorded) == "Recorded(job.csv: 2 workers, 4 times)"


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters_and_a_byte_order_mark_are_known(tmp_path, delimiter):
    path = written(tmp_path, "\ufeff" + ROWS.replace(",", delimiter))
    assert lists(Recorded.read(str(path))) == EXPECTED


def test_compressed_tables_are_read(tmp_path):
    for ending, module in ((".gz", gzip), (".xz", lzma)):
        path = tmp_path / f"job.csv{ending}"
        path.write_bytes(module.compress(ROWS.encode()))
        assert lists(Recorded.read(path)) == EXPECTED


def test_columns_may_have_any_names_and_units(tmp_path):
    path = written(tmp_path, "host,ms,began\nb,2000,7\na,1500,9\na,1000,3\n")
    recorded = Recorded.read(path, worker="host", seconds="ms", start="began", unit="ms")
    assert lists(recorded) == [[1.0, 1.5], [2.0]], "the times of a worker are in the order of their starts"
    assert recorded.times.names == ("a", "b")


def test_steps_order_the_times_and_copies_of_rows_count_once(tmp_path):
    path = written(tmp_path, "rank,seconds,step\n0,3,12\n0,1,2\n1,5,2\n0,1,2\n")
    recorded = Recorded.read(path)
    assert lists(recorded) == [[1.0, 3.0], [5.0]]
    assert recorded.times.steps.tolist() == [2, 12, 2]


def test_starts_that_are_no_numbers_are_ignored_unless_they_are_asked_for(tmp_path):
    path = written(tmp_path, "worker,seconds,start\n0,2,2024-05-02T10:00\n0,1,2024-05-01T10:00\n")
    assert lists(Recorded.read(path)) == [[2.0, 1.0]]
    with pytest.raises(ValueError, match="column 'start' must be a number, got '2024-05-02T10:00' in row 1"):
        Recorded.read(path, start="start")


def test_a_start_is_not_needed_where_there_are_steps(tmp_path):
    path = written(tmp_path, "worker,seconds,start,step\n0,2,5.0,2\n0,1,,1\n")
    assert lists(Recorded.read(path)) == [[1.0, 2.0]]


def test_columns_without_a_name_are_harmless(tmp_path):
    path = written(tmp_path, "worker,seconds,,\n0,2,,\n")
    assert lists(Recorded.read(path)) == [[2.0]]


def test_workers_with_numbers_are_in_their_order(tmp_path):
    recorded = Recorded.read(written(tmp_path, "worker,seconds\n10,1\n9,2\n"))
    assert recorded.times.names == ("9", "10")


ALIBABA = ",worker,gpu,time,batch_time_norm\n0,0,25,11,476\n1,1,25,1,1000\n2,0,25,1,509\n"


def test_a_table_of_alibaba_is_known_by_its_columns(tmp_path):
    recorded = Recorded.read(written(tmp_path, ALIBABA))
    assert lists(recorded) == [[0.509, 0.476], [1.0]]
    assert recorded.times.steps.tolist() == [1, 11, 1]


def test_a_table_of_alibaba_with_named_columns_is_read_like_any_other(tmp_path):
    path = written(tmp_path, ALIBABA)
    recorded = Recorded.read(path, worker="worker", seconds="batch_time_norm", unit="min")
    assert lists(recorded) == [[476 * 60.0, 509 * 60.0], [60_000.0]]


BYTEDANCE = """dp_rank,stage,rank,step,optype,start_ts,duration
0,0,0,7,forward-compute,0.5,1.0
0,1,4,7,forward-compute,2.0,1.0
0,1,4,7,backward-compute,3.0,2.0
0,0,0,7,backward-compute,5.5,2.0
0,0,0,7,grads-reduce-scatter,7.5,30.0
1,0,8,7,forward-compute,0.5,10.0
1,0,8,7,backward-compute,10.5,20.0
"""


def test_of_a_pipeline_a_worker_is_a_data_parallel_rank_from_its_first_to_its_last_pass(tmp_path):
    recorded = Recorded.read(written(tmp_path, BYTEDANCE))
    assert lists(recorded) == [[7.0], [30.0]], "waiting for the other rank, in the reduction, does not count"
    assert recorded.times.steps.tolist() == [7, 7]


def test_parquet_is_read_like_csv(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"rank": [1, 0, 1, 0], "took": [2500, 1000, 3000, 1500], "note": ["a", None, "b", "c"]})
    parquet.write_table(table, tmp_path / "job.parquet")
    assert lists(Recorded.read(tmp_path / "job.parquet", seconds="took", unit="ms")) == EXPECTED
    with pytest.raises(ValueError, match=r"job.parquet: column 'note' must be a number, got 'a' in row 1"):
        Recorded.read(tmp_path / "job.parquet", seconds="note")
    empty_cell = pyarrow.table({"rank": [0, 1], "seconds": [1.0, None]})
    parquet.write_table(empty_cell, tmp_path / "empty.parquet")
    with pytest.raises(ValueError, match="column 'seconds' must be a number, it is empty in row 2"):
        Recorded.read(tmp_path / "empty.parquet")
    twice = pyarrow.table([[0, 1], [1.0, 2.0], [3.0, 4.0]], names=["rank", "seconds", "seconds"])
    parquet.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(ValueError, match=r"twice.parquet has two columns 'seconds'"):
        Recorded.read(tmp_path / "twice.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(ValueError, match=r"bad.parquet cannot be read as Parquet: "):
        Recorded.read(tmp_path / "bad.parquet")


def test_without_pyarrow_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "job.parquet").touch()
    with pytest.raises(ImportError, match=r"needs pyarrow: pip install 'nowait\[parquet\]'"):
        Recorded.read(tmp_path / "job.parquet")


def event(name, start, duration, category="user_annotation", **further):
    return {"ph": "X", "name": name, "ts": start, "dur": duration, "cat": category, "pid": 1, "tid": 1} | further


def trace(rank, steps, *others):
    """Return a profiler's trace with steps of these microseconds, one after the other, from step 3 on."""
    ends = np.cumsum(steps)
    events = [
        event(f"ProfilerStep#{number}", float(end - took), took)
        for number, (end, took) in enumerate(zip(ends, steps, strict=True), 3)
    ]
    return {"distributedInfo": {"rank": rank}, "traceEvents": [{"ph": "M", "name": "process_name"}, *events, *others]}


def test_the_traces_of_a_profiler_have_the_steps_of_every_rank(tmp_path):
    written(tmp_path, json.dumps(trace(1, [2_000_000, 1_000_000])), "one.pt.trace.json")
    (tmp_path / "two.json.gz").write_bytes(gzip.compress(json.dumps(trace(0, [4_000_000, 5_000_000])).encode()))
    recorded = Recorded.read(tmp_path)
    assert lists(recorded) == [[4.0, 5.0], [2.0, 1.0]]
    assert recorded.times.steps.tolist() == [3, 4, 3, 4]
    files = [tmp_path / "one.pt.trace.json", tmp_path / "two.json.gz"]
    assert lists(Recorded.read(files)) == lists(recorded)
    assert repr(Recorded.read(files)) == "Recorded(2 traces: 2 workers, 4 times)"


def test_traces_of_several_runs_are_not_mixed(tmp_path):
    for name in ("old.json", "new.json"):
        written(tmp_path, json.dumps(trace(0, [1_000_000])), name)
    with pytest.raises(ValueError, match="rank 0 has step 3 twice: pass the traces of one run only"):
        Recorded.read(tmp_path)


def test_several_files_of_one_rank_are_one_worker(tmp_path):
    later = {"distributedInfo": {"rank": 0}, "traceEvents": [event("ProfilerStep#9", 7_000_000, 3_000_000)]}
    written(tmp_path, json.dumps(later), "a.json")
    written(tmp_path, json.dumps(trace(0, [1_000_000])), "b.json")
    assert lists(Recorded.read(tmp_path)) == [[1.0, 3.0]]


def test_time_in_which_a_rank_only_waits_for_others_is_not_its_own(tmp_path):
    waiting = event("gloo:all_reduce", 200_000, 600_000)
    meanwhile = event("aten::mm", 100_000, 200_000, "cpu_op")
    after = event("aten::add", 900_000, 50_000, "cpu_op")
    written(tmp_path, json.dumps(trace(0, [1_000_000], waiting, meanwhile, after)), "rank.json")
    [[seconds]] = lists(Recorded.read(tmp_path / "rank.json"))
    assert seconds == pytest.approx(0.5), "the reduction takes 0.6 s, of which 0.1 s are hidden behind computing"


def test_on_a_gpu_what_counts_is_what_kernels_do(tmp_path):
    reduction = event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 200_000, 600_000, "kernel")
    kernel = event("gemm", 700_000, 200_000, "kernel")
    launching = event("aten::mm", 100_000, 800_000, "cpu_op")
    copy = event("ProfilerStep#3", 0, 999_999, "gpu_user_annotation")
    written(tmp_path, json.dumps(trace(0, [1_000_000], reduction, kernel, launching, copy)), "rank.json")
    [[seconds]] = lists(Recorded.read(tmp_path / "rank.json"))
    assert seconds == pytest.approx(0.5)


def test_what_the_host_does_for_nccl_is_no_waiting(tmp_path):
    """It launches a kernel; a rank waits in the kernel."""
    launch = event("nccl:all_reduce", 0, 400_000, "user_annotation")
    dispatch = event("c10d::allreduce_", 0, 450_000, "cpu_op")
    copy = event("nccl:all_reduce", 500_000, 400_000, "gpu_user_annotation")
    reduction = event("ncclDevKernel_AllReduce", 500_000, 300_000, "kernel")
    kernel = event("gemm", 400_000, 200_000, "kernel")
    events = [launch, dispatch, copy, reduction, kernel]
    written(tmp_path, json.dumps(trace(0, [1_000_000], *events)), "rank.json")
    [[seconds]] = lists(Recorded.read(tmp_path / "rank.json"))
    assert seconds == pytest.approx(0.8), "of 0.3 s of reduction, 0.1 s are hidden behind computing"


def test_traces_of_a_profiler_say_how_many_ranks_there_are(tmp_path):
    for rank in (0, 5):
        content = trace(rank, [1_000_000, 2_000_000])
        content["distributedInfo"]["world_size"] = 8
        written(tmp_path, json.dumps(content), f"{rank}.json")
    assert Recorded.read(tmp_path).times.missing() == (6, [1, 2, 3, 4, 6, 7])
    assert Recorded.read(tmp_path, world_size=2).times.missing() == (0, [])
    content["distributedInfo"]["world_size"] = 2
    written(tmp_path, json.dumps(content), "5.json")
    with pytest.raises(ValueError, match=r"world_size is 2 in 5.json and 8 in 0.json: pass the traces of one run only"):
        Recorded.read(tmp_path)


def test_traces_that_are_not_of_the_same_time_are_not_of_one_run(tmp_path):
    for rank, base in enumerate([1.7e18, 1.7e18 + 1e9, 1.7e18 + 300e9]):
        content = trace(rank, [1_000_000, 2_000_000]) | {"baseTimeNanoseconds": int(base)}
        written(tmp_path, json.dumps(content), f"{rank}.json")
    assert len(lists(Recorded.read([tmp_path / "0.json", tmp_path / "1.json"]))) == 2
    with pytest.raises(ValueError, match="rank 0 ends 297 s before rank 2 begins, so they are not of one run"):
        Recorded.read(tmp_path)


def test_times_of_profilers_and_runs_are_known_to_be_without_waiting(tmp_path):
    steps = trace(0, [1_000_000])
    waits = trace(0, [1_000_000], event("gloo:all_reduce", 500_000, 500_000))
    assert not Recorded.read(written(tmp_path, json.dumps(steps), "a.json")).times.computing_only
    assert Recorded.read(written(tmp_path, json.dumps(waits), "b.json")).times.computing_only
    assert not Recorded.read(written(tmp_path, ROWS)).times.computing_only
    assert Recorded.read(written(tmp_path, BYTEDANCE, "c.csv")).times.computing_only


def test_the_number_of_all_workers_is_checked(tmp_path):
    path = written(tmp_path, ROWS)
    with pytest.raises(ValueError, match=r"job.csv has times of 2 workers, but world_size is 1"):
        Recorded.read(path, world_size=1)
    problem, speeds = nw.problems.NoisyQuadratic(dimension=2), nw.speeds.Fixed([1.0, 2.0])
    nw.simulate(problem, nw.AsynchronousSGD(nw.Constant(0.1)), speeds, steps=6).save(tmp_path / "run")
    with pytest.raises(ValueError, match=r"world_size=4 cannot be used: .*run is the folder of a run"):
        Recorded.read(tmp_path / "run", world_size=4)


def test_ranks_are_taken_from_names_of_files_or_processes(tmp_path):
    steps = [event("train", 0, 2_000_000), event("train", 9_000_000, 1_000_000)]
    for rank in (12, 3):
        written(tmp_path, json.dumps(steps), f"host-rank_{rank}.json")
    recorded = Recorded.read(tmp_path, event="train")
    assert recorded.times.names == ("3", "12")
    assert recorded.times.steps is None


def test_processes_that_share_a_trace_are_workers(tmp_path):
    waiting = event("gloo:all_reduce", 500_000, 500_000, pid="b")
    computing = event("aten::mm", 0, 1_000_000, "cpu_op", pid="a")
    steps = [event("train", 0, 1_000_000, pid="b"), event("train", 0, 2_000_000, pid="a")]
    recorded = Recorded.read(written(tmp_path, json.dumps([*steps, waiting, computing]), "merged.json"), event="train")
    assert (recorded.times.names, lists(recorded)) == (("a", "b"), [[2.0], [0.5]])


def test_processes_that_share_a_trace_with_kernels_are_refused(tmp_path):
    steps = [event("train", 0, 1_000_000, pid=4711), event("train", 0, 2_000_000, pid=4712)]
    kernel = event("gemm", 0, 500_000, "kernel", pid=0)
    path = written(tmp_path, json.dumps([*steps, kernel]), "merged.json")
    with pytest.raises(ValueError, match=r"kernels of GPUs that do not say which process .*: pass one file per rank"):
        Recorded.read(path, event="train")


def test_kernels_of_a_trace_of_one_process_have_the_number_of_the_gpu_as_pid(tmp_path):
    waiting = event("ncclDevKernel_AllReduce", 500_000, 500_000, "kernel", pid=0)
    kernel = event("gemm", 0, 500_000, "kernel", pid=0)
    launching = event("aten::mm", 0, 900_000, "cpu_op", pid=4711)
    step = event("train", 0, 1_000_000, pid=4711)
    path = written(tmp_path, json.dumps([step, waiting, kernel, launching]), "rank0.json")
    assert lists(Recorded.read(path, event="train")) == [[0.5]]


def test_events_may_be_pairs_of_begin_and_end(tmp_path):
    pairs = [("B", "train", 0), ("B", "inner", 1), ("E", "", 2), ("E", "", 3_000_000), ("B", "train", 4_000_000)]
    events = [{"ph": kind, "name": name, "ts": time, "pid": 1, "tid": 1} for kind, name, time in pairs]
    path = written(tmp_path, json.dumps({"traceEvents": events}), "rank0.json")
    assert lists(Recorded.read(path, event="train")) == [[3.0]]


def test_the_folder_of_a_run_has_its_compute_times(tmp_path):
    problem, method = nw.problems.NoisyQuadratic(dimension=2), nw.AsynchronousSGD(nw.Constant(0.1))
    run = nw.simulate(problem, method, nw.speeds.Fixed([1.0, 2.0]), steps=6)
    run.save(tmp_path / "run")
    assert lists(Recorded.read(tmp_path / "run")) == [[1.0] * 4, [2.0] * 2]


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("a.csv", "", {}, "a.csv is empty: its first line must have the names of its columns"),
        ("a.csv", "worker,seconds\n", {}, "a.csv has no rows below the names of its columns: there are no times"),
        ("a.csv", "rank,ms\n0,1\n", {}, "a.csv has no column 'seconds' or 'duration': name the column with seconds="),
        ("a.csv", "worker,rank,seconds\n0,1,2\n", {}, "columns 'worker' and 'rank', and only one .* with worker="),
        ("a.csv", "worker,seconds,duration\n0,1,2\n", {}, "columns 'seconds' and 'duration', .*--seconds-column"),
        ("a.csv", ROWS, {"worker": "host"}, "a.csv has no column 'host': .* of these: 'worker', 'duration'"),
        ("a.csv", "worker,seconds\n0,1\n1,fast\n", {}, "column 'seconds' must be a number, got 'fast' in row 2"),
        ("a.csv", "worker,seconds\n0,nan\n", {}, "a.csv: column 'seconds' must be a number, got 'nan' in row 1"),
        ("a.csv", "worker,seconds\n0,1\n1,\n", {}, "column 'seconds' must be a number, it is empty in row 2"),
        ("a.csv", "worker,seconds\n0,-1\n", {}, "column 'seconds' must be above 0, .* got '-1' in row 1"),
        ("a.csv", "worker,seconds\n0,0\n", {}, "column 'seconds' must be above 0, .* got '0' in row 1"),
        ("a.csv", "worker,seconds\n0,1\n ,1\n", {}, "a.csv: row 2 does not say which worker it is about"),
        ("a.csv", "worker,seconds\n0,1,2\n", {}, "a.csv: row 1 has 3 values, but there are 2 columns"),
        ("a.csv", "worker,seconds,step\n0,1,1.5\n", {}, "column 'step' must be a whole number, got '1.5' in row 1"),
        ("a.csv", "worker,seconds,step\n0,1,4\n1,1,4\n0,2,4\n", {}, "worker 0 has two times for step 4 "),
        ("a.csv", ROWS, {"unit": "hours"}, "unit must be one of 's', 'ms', 'us', 'ns', 'min', got 'hours'"),
        ("a.csv", ALIBABA, {"unit": "ms"}, r"unit= \(--unit\) cannot be used: .*a.csv is a table of Alibaba"),
        ("a.csv", BYTEDANCE, {"unit": "ms"}, r"unit= \(--unit\) cannot be used: .*a.csv is a table of ByteDance"),
        ("a.csv", "worker,seconds, seconds\n0,1,2\n", {}, "a.csv has two columns 'seconds', and only one .* rename"),
        ("a.csv", "worker,seconds,start\n0,1,2\n0,1,x\n", {}, "column 'start' must be a number, got 'x' in row 2"),
        ("a.csv", ROWS, {"event": "train"}, "event= cannot be used: .*a.csv is a table"),
        ("a.csv.gz", "not compressed", {}, "a.csv.gz cannot be read as CSV: Not a gzipped file"),
        ("a.yaml", "a: 1", {}, "a.yaml is of no known kind: known are CSV"),
        ("a.json", "{", {}, "a.json cannot be read as JSON: Expecting property name"),
        ("a.json", "3", {}, "a.json is no trace in Chrome's format: it has no list of traceEvents"),
        ("a.json", '{"metadata": {"gap_seconds": 300}, "data": [1]}', {}, "counts of machines are for Faults"),
        ("a.json", "[]", {}, r"'ProfilerStep': give torch.profiler.profile a schedule=, .* call profiler.step\(\)"),
        ("a.json", json.dumps([event("go", 0, 1)]), {"event": "train"}, "has no events 'train': its events are 'go'"),
        ("a.json", json.dumps([event("ProfilerStep#1", 0, 0)]), {}, "a step at ts 0 of process 1 computes nothing"),
        ("a.json", "[]", {"unit": "ms"}, "unit= cannot be used: .*a.json is no table"),
        ("a.csv", BYTEDANCE.replace("-compute", ""), {}, "no row of column 'optype' is 'forward-compute' or 'backward"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said_in_a_sentence(tmp_path, name, text, options, message):
    with pytest.raises(ValueError, match=message):
        Recorded.read(written(tmp_path, text, name), **options)


def test_files_that_are_not_there_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing.csv does not exist"):
        Recorded.read(tmp_path / "nothing.csv")
    with pytest.raises(ValueError, match=r"has no traces \(.json\): known are CSV"):
        Recorded.read(tmp_path)
    with pytest.raises(ValueError, match="path is empty: give at least one"):
        Recorded.read([])
    with pytest.raises(ValueError, match="a table has the times of all workers: pass one file, got 2"):
        Recorded.read([written(tmp_path, ROWS), written(tmp_path, ROWS, "other.csv")])
