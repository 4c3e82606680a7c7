"""Notes: what a method writes into the trace, and the sentences made of it."""

import math

import numpy as np
import pytest

import nowait as nw
from nowait.core.notes import WAITS_FOR, Note, Waiting
from nowait.recording import TraceRecorder
from nowait.testing import a_server, gradient_from

CHOSEN = {"noise": 5.0, "cost": 2.0, "cost_before": 3.0, "cost_of_all": 4.0, "slowest": 7, "times_slower": 9.04}


@pytest.mark.parametrize(
    ("waiting", "short", "sentence"),
    [
        (Waiting(8, 8), "waits for all 8", "waits for all 8: times and noise are not known yet"),
        (Waiting(1, 1), "waits for the only worker", "waits for the only worker: times and noise are not known yet"),
        (
            Waiting(6, 8, before=8, **CHOSEN),
            "waits for 6 of 8",
            "waits for 6 of 8: worker 7 is 9 times slower than the median; "
            "waiting for all 8 would take 2 times as long to the target",
        ),
        (
            Waiting(4, 8, before=2, **CHOSEN | {"times_slower": 1.2}),
            "waits for 4 of 8",
            "waits for 4 of 8: rounds of 2 would take 1.5 times as long to the target",
        ),
        (
            Waiting(8, 8, before=6, **CHOSEN),
            "waits for all 8",
            "waits for all 8 again: no worker is slow enough to leave out",
        ),
        (
            Waiting(0, 8, before=6, **CHOSEN | {"times_slower": 1.0}),
            "steps with every gradient",
            "steps with every gradient: rounds of 6 would take 1.5 times as long to the target",
        ),
        (
            Waiting(6, 8, before=0, **CHOSEN | {"times_slower": 1.0}),
            "waits for 6 of 8",
            "waits for 6 of 8: steps with every gradient would take 1.5 times as long to the target",
        ),
        (Waiting(9, 9, joined=8), "waits for all 9", "waits for all 9: worker 8 joined"),
        (Waiting(7, 7, left=3), "waits for all 7", "waits for all 7: worker 3 left"),
        (
            Waiting(0, 8, resumed=1),
            "steps with every gradient",
            "steps with every gradient: as before the run was resumed",
        ),
    ],
)
def test_a_choice_is_told_in_a_sentence(waiting, short, sentence):
    note = Note(0, 0.0, WAITS_FOR, waiting.numbers())
    assert (note.short, str(note)) == (short, sentence)
    assert Waiting.of(note.numbers) == waiting


def test_other_notes_are_told_as_they_are():
    assert str(Note(0, 0.0, "bucket", {"size": 4.0, "largest delay": 12.5})) == "bucket: size 4, largest delay 12.5"
    assert str(Note(0, 0.0, "warm", {})) == "warm"
    assert str(Note(0, 0.0, WAITS_FOR, {"size": 4.0})) == "waits for: size 4"


def test_what_is_unknown_or_infinite_is_left_out_of_the_numbers():
    assert Waiting(4, 4, noise=math.nan, cost=math.inf).numbers() == {"waits_for": 4.0, "workers": 4.0}


@pytest.mark.parametrize(
    ("kind", "numbers", "message"),
    [
        ("", {}, "texts of 1 to 80 characters in a line.* got ''"),
        ("two\nlines", {}, "in a line"),
        ("x" * 81, {}, "1 to 80 characters"),
        (3, {}, "got 3"),
        ("size", {"": 1.0}, "got ''"),
        ("size", {"m": math.nan}, "m must be a finite number, got nan"),
        ("size", {"m": "4"}, "m must be a"),
    ],
)
def test_a_note_that_pages_could_not_show_is_refused_and_changes_nothing(kind, numbers, message):
    recorder = TraceRecorder([0])
    server = a_server(nw.AsynchronousSGD(0.1), num_workers=1, log=recorder)
    with pytest.raises((ValueError, TypeError), match=message):
        server.note(kind, numbers)
    assert recorder.trace().notes == ()


class Noting(nw.Method):
    """Notes at the start and first of all at every arrival."""

    stepsize = nw.Constant(0.1)

    def start(self, server):
        server.note("begins", {})
        super().start(server)

    def on_arrival(self, server, arrival):
        server.note("arrived", {"worker": arrival.worker})
        server.apply(arrival, 0.1)
        server.assign(arrival.worker)


def test_a_note_has_the_time_and_place_of_its_event_and_a_bad_gradient_is_not_noted():
    recorder = TraceRecorder([0])
    server = a_server(Noting(), num_workers=1, log=recorder)
    server.handle(gradient_from(server, worker=0, gradient=np.array([math.nan, 0.0]), time=1.0))
    server.handle(gradient_from(server, worker=0, time=2.5))
    assert recorder.trace().notes == (Note(0, 0.0, "begins", {}), Note(1, 2.5, "arrived", {"worker": 0.0}))
    assert recorder.last_decision == "arrived: worker 0"
