"""Storage of traces: in frames with checksums, in bounded memory, and read back bit for bit."""

import itertools
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nowait as nw
from nowait.core import Resumed, TimerFired
from nowait.recording import TraceRecorder, rows
from nowait.recording.errors import DamagedFileError
from nowait.recording.framefile import FrameFile
from nowait.recording.frames import FILE_HEADER, Kind, decode_rows, frame_bytes, rows_body
from nowait.recording.journal import Journal, JournalWriter, whole_frames
from nowait.recording.metrics import metrics_line, read_metrics
from nowait.recording.rows import ARRIVAL_DTYPE, CHUNK_ROWS, COLUMNS
from nowait.recording.tally import FIRST_ARRIVALS, ONE_IN, Tally
from nowait.testing import ScriptedWorkers

PROBLEM = nw.problems.NoisyQuadratic(dimension=4, sigma=0.3)
SPEEDS = nw.speeds.Exponential([0.3, 1.0, 1.0, 9.0])


def ends_of(path):
    return [position.length for position in Journal(FrameFile.read_only(path)).positions]


def recorded(chunk_rows, kept="full", method=None, arrivals=100):
    """Return a recorder that recorded a run with many workers."""
    recorder = TraceRecorder(range(4), kept, chunk_rows)
    method = nw.FedBuff(nw.Constant(0.1), buffer=7) if method is None else method
    workers = ScriptedWorkers(method, num_workers=4, log=recorder)
    workers.after(arrivals)
    return recorder


def random_rows(count, seed):
    """Return rows with columns of every width: constant, small, large and arbitrary floats."""
    rng = np.random.default_rng(seed)
    rows = np.zeros(count, ARRIVAL_DTYPE)
    for place, name in enumerate(COLUMNS):
        if ARRIVAL_DTYPE[name].kind == "f":
            rows[name] = rng.choice([0.0, np.nan, np.inf, -0.0, 1e-310, rng.random()], count if place % 2 else 1)
        else:
            width = rng.integers(0, 63)
            rows[name] = rng.integers(0, 2**width, count, endpoint=True) - rng.integers(0, 2**20)
    return rows


@given(count=st.integers(0, 300), seed=st.integers(0, 2**32))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_rows_are_read_back_bit_for_bit(count, seed):
    rows = random_rows(count, seed)
    numbers = np.arange(count) * 3
    again, none = decode_rows(rows_body(rows, count), count)
    assert none is None
    assert again.tobytes() == rows.tobytes()
    again, read = decode_rows(rows_body(rows, min(CHUNK_ROWS, 3 * count + 1), numbers), count)
    assert again.tobytes() == rows.tobytes()
    assert np.array_equal(read, numbers)


def test_constant_columns_take_no_bytes_and_integers_the_fewest():
    rows = np.zeros(1000, ARRIVAL_DTYPE)
    alone = len(rows_body(rows, 1000))
    rows["delay"] = 10**12 + np.arange(1000) % 256
    assert len(rows_body(rows, 1000)) == alone + 1000
    rows["delay"] = 10**12 + np.arange(1000)
    assert len(rows_body(rows, 1000)) == alone + 2000


@pytest.mark.parametrize("chunk_rows", [1, 2, 7, 64, 1000])
def test_a_trace_does_not_depend_on_how_it_was_stored(chunk_rows):
    whole = recorded(1000).trace(3.0, 4.0)
    trace = recorded(chunk_rows).trace(3.0, 4.0)
    assert trace.arrivals.tobytes() == whole.arrivals.tobytes()
    assert (trace.step > 0).sum() == 98, "held gradients have the steps that came after their rows were written"
    assert np.concatenate(list(trace.blocks())).tobytes() == whole.arrivals.tobytes()
    assert max(len(block) for block in trace.blocks()) <= chunk_rows
    assert np.array_equal(trace.delay, whole.delay)
    assert recorded(chunk_rows).tally().state() == Tally.of(whole.arrivals).state()


@pytest.mark.parametrize("chunk_rows", [5, 1000])
def test_events_keep_their_places_among_arrivals(chunk_rows):
    recorder = TraceRecorder([0], "full", chunk_rows)
    workers = ScriptedWorkers(nw.AsynchronousSGD(nw.Constant(0.1)), num_workers=1, log=recorder)
    for count in range(12):
        workers.after(1)
        recorder.happened(TimerFired(float(count)))
    trace = recorder.trace()
    assert trace.events["after"].tolist() == list(range(1, 13))
    kinds = [type(event) is TimerFired for _, event in trace.in_order()]
    assert kinds == [False, True] * 12
    assert [number for number, _ in trace.in_order()] == [n for count in range(12) for n in (count, count + 1)]


def test_memory_does_not_grow_with_the_run():
    recorder = recorded(50, arrivals=1000)
    assert len(recorder._buffer) == 50 * ARRIVAL_DTYPE.itemsize
    assert len(recorder._later_steps) < 50


def test_much_memory_moves_to_a_temporary_file(monkeypatch):
    monkeypatch.setattr("nowait.recording.framefile.MOST_MEMORY", 2_000)
    recorder = recorded(20)
    assert not recorder._writer.file.is_in_memory
    assert recorder.trace().arrivals.tobytes() == recorded(1000).trace().arrivals.tobytes()


def test_a_stored_trace_can_be_pickled():
    trace = recorded(7).trace(1.0, 2.0)
    again = pickle.loads(pickle.dumps(trace))
    assert again.arrivals.tobytes() == trace.arrivals.tobytes()
    assert (again.seconds, again.last_norm, again.num_arrivals) == (1.0, 2.0, 100)


def test_few_rows_are_counted_as_many_are(monkeypatch):
    rows = recorded(1000, arrivals=500).trace().arrivals
    few = Tally.of(rows).state()
    monkeypatch.setattr("nowait.recording.tally.FEW_ROWS", 0)
    assert Tally.of(rows).state() == few
    assert few["repeats"] > 0


# Sampled traces


def test_a_sampled_trace_has_the_first_arrivals_of_each_worker_and_then_one_in_so_many():
    workers = np.array([0] * (FIRST_ARRIVALS + 4 * ONE_IN) + [1] * 5)
    kept = Tally().sample(workers)
    assert kept[:FIRST_ARRIVALS].all()
    assert kept[FIRST_ARRIVALS:-5].sum() == 4
    assert kept[-5:].all(), "a slow worker is never left out"


@pytest.mark.parametrize("chunk_rows", [16, 10_000])
def test_what_is_kept_does_not_depend_on_chunks(chunk_rows, monkeypatch):
    monkeypatch.setattr("nowait.recording.tally.FIRST_ARRIVALS", 5)
    monkeypatch.setattr("nowait.recording.tally.ONE_IN", 4)
    whole, sampled = recorded(chunk_rows).trace(), recorded(chunk_rows, "sampled").trace()
    place = np.zeros(4, int)
    kept = []
    for worker in whole.worker:
        kept.append(place[worker] < 5 or place[worker] % 4 == 0)
        place[worker] += 1
    assert sampled.arrivals.tobytes() == whole.arrivals[kept].tobytes()
    assert sampled.num_arrivals == 100


def test_nothing_is_kept_but_the_totals():
    recorder = recorded(16, "none")
    trace = recorder.trace()
    assert (len(trace), trace.num_arrivals, trace.kept) == (0, 100, "none")
    assert recorder.tally().state() == recorded(16).tally().state()


@pytest.mark.parametrize("engine", [None, "reference"])
@pytest.mark.parametrize("kept", ["sampled", "none"])
def test_a_run_without_its_whole_trace_has_the_same_results_and_cannot_be_replayed(kept, engine, tmp_path):
    method = nw.AsynchronousSGD(nw.DelayAdaptive(0.1))
    options = {"steps": 6_000, "seed": 1, "engine": engine}
    whole, run = (nw.simulate(PROBLEM, method, SPEEDS, trace=trace, **options) for trace in ("full", kept))
    assert np.array_equal(run.last, whole.last)
    assert np.array_equal(run.stats.work_share, whole.stats.work_share)
    assert run.stats.bytes_down == whole.stats.bytes_down
    assert len(run.trace) < len(whole.trace) == run.trace.num_arrivals
    run.save(tmp_path / "run")
    loaded = nw.load(tmp_path / "run").trace
    assert (loaded.kept, loaded.num_arrivals) == (kept, len(whole.trace))
    assert loaded.arrivals.tobytes() == run.trace.arrivals.tobytes()
    with pytest.raises(ValueError, match=f'kept only a part of its trace \\(trace="{kept}"\\)'):
        nw.replay(loaded, PROBLEM, method, seed=1)


def test_another_word_for_how_much_is_kept_is_refused():
    with pytest.raises(ValueError, match='trace must be "full", "sampled" or "none", got \'some\''):
        nw.simulate(PROBLEM, nw.AsynchronousSGD(nw.Constant(0.1)), SPEEDS, steps=5, trace="some")


# Damage


def stored(tmp_path, chunk_rows=8):
    recorder = TraceRecorder(range(4), "full", chunk_rows)
    file = FrameFile.open(tmp_path / "trace.rows", create=True)
    recorder.write_to(file)
    ScriptedWorkers(nw.FedBuff(nw.Constant(0.1), buffer=7), num_workers=4, log=recorder).after(30)
    recorder.happened(Resumed(99.0))
    recorder.finish(100.0, 1.5)
    return tmp_path / "trace.rows"


def test_every_flipped_byte_of_a_trace_is_noticed(tmp_path):
    path = stored(tmp_path)
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        with pytest.raises(ValueError, match=r"trace\.rows is damaged|trace\.rows cannot|is not a zip"):
            nw.Trace.load(path)


def test_every_cut_of_a_trace_is_noticed(tmp_path):
    path = stored(tmp_path)
    data = path.read_bytes()
    for length in range(len(FILE_HEADER), len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(DamagedFileError):
            nw.Trace.load(path)


def test_frames_in_another_order_or_twice_are_noticed(tmp_path):
    path = stored(tmp_path)
    data, ends = path.read_bytes(), [len(FILE_HEADER), *ends_of(path)]
    frames = [data[first:last] for first, last in itertools.pairwise(ends)]
    for order in ([0, 2, 1, *range(3, len(frames))], [0, 1, 1, *range(2, len(frames))], [1, 0, *range(2, len(frames))]):
        path.write_bytes(FILE_HEADER + b"".join(frames[place] for place in order))
        with pytest.raises(DamagedFileError):
            nw.Trace.load(path)


def test_the_checksum_of_a_position_depends_on_everything_before_it():
    """A CRC that goes on over data with their own CRC would forget them."""

    def position(body):
        writer = JournalWriter.new(FrameFile(), [0], "full")
        writer.write(Kind.EVENTS, body, count=1)
        writer.write(Kind.EVENTS, b"the same", count=1)
        return writer.position

    first, second = position(b"one body"), position(b"another!")
    assert (first.length, first.frames) == (second.length, second.frames)
    assert first.checksum != second.checksum


def test_the_whole_frames_before_a_damage_are_known(tmp_path):
    path = stored(tmp_path)
    data, ends = path.read_bytes(), ends_of(path)
    for damaged in (2, 4, len(ends) - 1):
        place = ends[damaged] - 3
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        positions, trouble, _ = whole_frames(FrameFile.read_only(path), path)
        assert [position.length for position in positions] == ends[:damaged]
        assert "trace.rows is damaged" in trouble


def test_a_small_frame_cannot_ask_for_much_memory(tmp_path):
    file = FrameFile()
    JournalWriter.new(file, [0], "full")
    rows = np.zeros(1, ARRIVAL_DTYPE)
    file.append(frame_bytes(Kind.ROWS, 1, rows_body(rows, 2**32 - 1), first=0, count=2**32 - 1))
    with pytest.raises(DamagedFileError, match="4294967295 rows"):
        Journal(file).arrivals()


def test_an_archive_that_expands_without_measure_is_refused(tmp_path):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open("format.npy", "w") as entry:
        for _ in range(64):
            entry.write(bytes(1 << 20))
    with pytest.raises(ValueError, match=r"bomb\.npz would take 67,108,864 bytes in memory, [0-9]+ times its size"):
        nw.Trace.load(path)


def test_an_array_that_is_larger_than_its_entry_is_refused(tmp_path):
    path = tmp_path / "liar.npz"
    with zipfile.ZipFile(path, "w") as file, file.open("format.npy", "w") as entry:
        np.lib.format.write_array_header_1_0(entry, {"descr": "<i8", "fortran_order": False, "shape": (2**40,)})
    with pytest.raises(DamagedFileError, match="does not match its header"):
        nw.Trace.load(path)


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 no zip at all", b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f8'}"])
def test_a_file_that_is_something_else_is_refused_in_one_sentence(damage, tmp_path):
    path = tmp_path / "trace.npz"
    path.write_bytes(damage)
    with pytest.raises(DamagedFileError, match="is damaged"):
        nw.Trace.load(path)


def test_an_archive_of_an_older_version_has_no_checksums(tmp_path):
    method = nw.AsynchronousSGD(nw.Constant(0.1))
    trace = nw.simulate(nw.problems.NoisyQuadratic(2, sigma=0.1), method, nw.speeds.Fixed([1.0]), steps=3).trace
    trace.save(tmp_path / "trace.npz")
    with np.load(tmp_path / "trace.npz") as file:
        np.savez(tmp_path / "old.npz", **{name: file[name] for name in file.files if name != "checksums"})
    assert list(trace.checksums) == [3]
    assert nw.Trace.load(tmp_path / "old.npz").checksums == {}


def test_a_flipped_byte_of_metrics_breaks_its_line_alone(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [metrics_line("12", step, 2 * step, 0.1 * step, 1 / (1 + step)).encode() + b"\n" for step in range(5)]
    data = b"".join(lines)
    first, last = len(lines[0]) + len(lines[1]), len(lines[0]) + len(lines[1]) + len(lines[2]) - 1
    for place in range(first, last):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x01]) + data[place + 1 :])
        history, broken = read_metrics(path, "12")
        assert 3 in broken
        assert [entry[0] for entry in history.entries] == [0, 1, 3, 4]


def test_a_line_that_a_crash_cut_is_left_out_and_one_without_a_checksum_is_damaged(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(metrics_line("12", 3, 4, 0.5, 0.25) + '\n{"run": "12", "step": 6}\n{"step": 9, "gra')
    history, broken = read_metrics(path, "12")
    assert (history.entries, broken) == ([(3, 4, 0.5, 0.25)], [2])


def test_the_struct_of_a_row_has_the_columns_of_the_dtype():
    assert rows.ROW.size == rows.ROW_BYTES == ARRIVAL_DTYPE.itemsize
    values = tuple(float(place) if ARRIVAL_DTYPE[name].kind == "f" else place for place, name in enumerate(COLUMNS))
    packed = np.frombuffer(rows.ROW.pack(*values), ARRIVAL_DTYPE)
    assert packed.tolist()[0] == values == rows.Row(*values)
    steps = bytearray(rows.ROW_BYTES)
    rows.STEP_OF_ROW.pack_into(steps, rows.STEP_OFFSET, 3, 4.0, 5.0)
    row = rows.Row._make(rows.ROW.unpack(steps))
    assert row == rows.Row(*[0] * len(COLUMNS))._replace(step=3, weight=4.0, stepsize=5.0)


def test_the_recorder_returns_its_latest_rows_by_name():
    recorder = recorded(1000)
    row, arrivals = recorder.row(5), recorder.trace().arrivals
    assert all(getattr(row, name) == arrivals[name][5] for name in COLUMNS)
