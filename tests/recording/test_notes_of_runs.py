"""Notes of a method in the trace: in memory, on disk, in a run that was killed, and in what is shown of a run."""

import json
from dataclasses import replace

import numpy as np
import pytest

import nowait as nw
from nowait.core.notes import Note
from nowait.dashboard.marks import Decisions
from nowait.recording import TraceRecorder
from nowait.recording.errors import DamagedFileError
from nowait.recording.framefile import FrameFile
from nowait.recording.frames import Kind, notes_body
from nowait.recording.journal import JournalWriter
from nowait.reports.timeline import events

QUIET = nw.problems.NoisyQuadratic(dimension=4, L=1.0, mu=0.3)
STRAGGLER = nw.speeds.Fixed([1.0, 1.0, 1.0, 1e4])
NOTES = (Note(0, 0.0, "begins", {}), Note(3, 1.5, "size", {"m": 1 / 3, "of": 4.0}))


@pytest.fixture(scope="module")
def run():
    return nw.simulate(QUIET, nw.Auto(0.05), STRAGGLER, steps=50)


def test_notes_are_saved_and_loaded(run, tmp_path):
    assert len(run.trace.notes) > 1
    run.trace.save(tmp_path / "trace.npz")
    run.save(tmp_path / "run")
    for trace in (nw.Trace.load(tmp_path / "trace.npz"), nw.load(tmp_path / "run").trace):
        assert trace.notes == run.trace.notes
    loaded = nw.load(tmp_path / "run").stats
    assert (loaded.notes, loaded.last_note) == (len(run.trace.notes), str(run.trace.notes[-1]))


def test_a_trace_without_notes_has_none(tmp_path):
    trace = nw.simulate(QUIET, nw.AsynchronousSGD(0.05), STRAGGLER, steps=5).trace
    trace.save(tmp_path / "trace.npz")
    assert nw.Trace.load(tmp_path / "trace.npz").notes == trace.notes == ()


@pytest.mark.parametrize("kept", ["full", "sampled", "none"])
def test_a_recorder_keeps_all_notes_whatever_rows_it_keeps_and_writes_each_once(kept):
    recorder = TraceRecorder([0, 1], kept)
    recorder.write_to(FrameFile())
    recorder.noted(NOTES[0])
    recorder.flush()
    recorder.noted(NOTES[1])
    recorder.flush()
    assert recorder.trace().notes == NOTES
    assert recorder.trace().notes == NOTES


def test_notes_that_were_damaged_or_are_none_are_refused(tmp_path):
    for name, body in (
        ("other", b'{"notes": [[0, 0.0, "kind"]]}'),
        ("number", b'{"notes": [[0, 0.0, "m", {"m": "x"}]]}'),
    ):
        file = FrameFile.open(tmp_path / name, create=True)
        writer = JournalWriter.new(file, [0], "full")
        writer.write(Kind.NOTES, body, count=1)
        writer.end(1.0, 1.0, 0)
        with pytest.raises(DamagedFileError, match="frame 1"):
            nw.Trace.load(tmp_path / name)
    assert json.loads(notes_body(NOTES))["notes"][1] == [3, 1.5, "size", {"m": 1 / 3, "of": 4.0}]


def test_a_replay_makes_the_same_notes_and_says_if_it_would_note_something_else(run):
    again = nw.replay(run.trace, QUIET, nw.Auto(0.05))
    assert again.trace.notes == run.trace.notes
    last = run.trace.notes[-1]
    other = replace(run.trace, notes=(*run.trace.notes[:-1], last._replace(numbers=last.numbers | {"waits_for": 1.0})))
    with pytest.raises(ValueError, match=r"note \d+ of the trace is 'waits for' .*'waits_for': 1.0.* in the replay"):
        nw.replay(other, QUIET, nw.Auto(0.05))
    with pytest.raises(ValueError, match="of the trace is missing, in the replay 'waits for'"):
        nw.replay(replace(run.trace, notes=run.trace.notes[:-1]), QUIET, nw.Auto(0.05))


def test_the_last_decision_is_part_of_what_is_printed(run):
    last = run.trace.notes[-1]
    assert f", {last.short})" in repr(run)
    assert run.stats.decision == f"{last} (the last of {len(run.trace.notes)} decisions)"
    assert str(last) in run._repr_html_()
    assert "worker 3 is" in str(run.trace.notes[1])


def test_decisions_are_events_of_the_report(run):
    found = [[kind, words] for _, kind, words in events([run.trace])]
    assert found == [["decision", str(note)] for note in run.trace.notes]
    assert len(events([run.trace], most=2)) == 2


def test_of_many_decisions_the_page_keeps_the_first_and_the_last():
    decisions = Decisions(most=10)
    decisions.add(Note(0, float(time), "size", {"m": time}) for time in range(100))
    assert len(decisions.all) <= 10
    assert [decisions.all[place] for place in (0, -1)] == [(0.0, "size: m 0"), (99.0, "size: m 99")]
    assert np.all(np.diff([time for time, _ in decisions.all]) > 0)
