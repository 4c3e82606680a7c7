"""Histories, traces and sweeps as data frames."""

import sys

import numpy as np
import pytest

import nowait as nw
from nowait.recording import History, TraceRecorder
from nowait.recording.dataframes import trace_columns
from nowait.recording.rows import COLUMNS, OUTCOMES

PROBLEM = nw.problems.NoisyQuadratic(dimension=4, sigma=0.1)
SPEEDS = nw.speeds.Exponential([1.0, 1.0, 8.0])


@pytest.fixture(scope="module")
def run():
    return nw.simulate(PROBLEM, nw.RingmasterASGD(nw.Constant(0.1), max_delay=3), SPEEDS, steps=60)


def list_of(column):
    return column.to_list()


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_a_history_has_a_column_for_every_metric(kind):
    nan = float("nan")
    numbers = np.array([0, 5]), np.array([0, 6]), np.array([0.0, 1.5]), np.array([2.0, 1.0])
    history = History(*numbers, {"accuracy": np.array([nan, 0.5])})
    frame = getattr(history, f"to_{kind}")()
    assert list(frame.columns) == ["step", "gradients", "time", "loss", "accuracy"]
    assert list_of(frame["loss"]) == [2.0, 1.0]
    assert list_of(frame["accuracy"])[1] == 0.5


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_a_trace_has_its_columns_and_outcomes_in_words(run, kind):
    frame = getattr(run.trace, f"to_{kind}")()
    assert list(frame.columns) == list(COLUMNS)
    for name in COLUMNS:
        assert list_of(frame[name]) == getattr(run.trace, name).tolist()
    assert {"applied", "dropped"} == set(list_of(frame["outcome"]))


def test_outcomes_are_stored_as_small_numbers(run):
    assert run.trace.to_pandas()["outcome"].dtype == "category"
    assert run.trace.to_polars()["outcome"].dtype.categories.to_list() == list(map(str, OUTCOMES))


def test_a_trace_on_disk_is_read_block_by_block(run, tmp_path):
    stored = nw.load(run.save(tmp_path / "run")).trace
    frame = stored.to_pandas()
    assert "arrivals" not in vars(stored), "the rows as a whole are not kept in memory beside the frame"
    assert frame.equals(run.trace.to_pandas())


def test_changing_a_frame_leaves_the_trace_unchanged(run):
    before = run.trace.delay.tolist()
    frame = run.trace.to_pandas()
    frame.loc[:, "delay"] = -1
    columns = trace_columns(run.trace)
    columns["delay"][:] = -1
    assert run.trace.delay.tolist() == before


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_an_empty_trace_and_an_empty_history_have_columns_too(kind):
    trace = TraceRecorder([0]).trace(seconds=0.0, last_norm=0.0)
    history = nw.simulate(PROBLEM, nw.AsynchronousSGD(nw.Constant(0.1)), SPEEDS, steps=1).history
    assert len(getattr(trace, f"to_{kind}")()) == 0
    assert len(getattr(history, f"to_{kind}")()) == len(history)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_a_sweep_has_a_row_for_every_evaluation_of_every_run(kind):
    method = nw.AsynchronousSGD(nw.Constant(1.0))
    sweep = nw.sweep(PROBLEM, method, SPEEDS, stepsizes=[0.1, 0.2], seeds=2, steps=50, evaluate_every=25)
    frame = getattr(sweep, f"to_{kind}")()
    assert list(frame.columns) == ["stepsize", "seed", "step", "gradients", "time", "loss"]
    assert list_of(frame["step"]) == [0, 25, 50] * 4
    assert list_of(frame["seed"]) == [0] * 3 + [1] * 3 + [0] * 3 + [1] * 3
    assert list_of(frame["loss"]) == sweep.curves.ravel().tolist()


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_what_to_install_is_said_if_it_is_missing(run, kind, monkeypatch):
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(ImportError, match=rf"to_{kind}\(\) needs {kind}.*pip install {kind}"):
        getattr(run.history, f"to_{kind}")()


def test_the_text_of_a_history_is_one_short_line():
    history = History(np.array([0, 10]), np.array([0, 12]), np.array([0.0, 1.5]), np.array([2.0, 0.25]))
    assert repr(history) == "History(2 evaluations, 0 other metrics, last loss 0.25 at step 10)"
    assert repr(History(*(np.zeros(0),) * 4)) == "History(0 evaluations, 0 other metrics)"
