"""Traces: their columns, saving, loading and replaying."""

import functools
import pickle
from dataclasses import replace

import numpy as np
import pytest

import nowait as nw
from nowait.core import sampler
from nowait.recording import TraceRecorder
from nowait.recording.files import vector_checksum

PROBLEM = nw.problems.LeastSquares.random(samples=40, dimension=5, noise=0.1, batch_size=2, seed=1)
METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(0.2))
SPEEDS = nw.speeds.Exponential([0.3, 1.0, 1.0, 9.0])
TURMOIL = nw.speeds.Faults(
    [(3.0, "leave", 1), (5.0, "join", 6), (8.0, "join", 1), (12.0, "leave", 3), (13.0, "leave", 0)]
)


def a_run(method=METHOD, **options):
    return nw.simulate(PROBLEM, method, SPEEDS, steps=100, seed=4, faults=TURMOIL, **options)


def test_a_trace_explains_every_step():
    """x_k = x_{k−1} − γ·Σ weight·g over the rows of step k, with gradients recomputed at their versions."""
    iterates = [PROBLEM.initial()]
    method = nw.RennalaSGD(nw.Constant(0.2), batch=3)
    run = a_run(method, callbacks=[lambda control: iterates.append(control.params.copy())])
    samples = sampler(4)
    for step in range(1, run.stats.steps + 1):
        rows = np.flatnonzero(run.trace.step == step)
        direction = sum(
            run.trace.weight[row]
            * PROBLEM.gradient(
                iterates[run.trace.version[row]], samples.sample(run.trace.worker[row], run.trace.job[row])
            )
            for row in rows
        )
        assert len(rows) == 3
        np.testing.assert_allclose(iterates[step], iterates[step - 1] - 0.2 * direction, rtol=1e-12, atol=1e-15)
        np.testing.assert_array_equal(run.trace.stepsize[rows], 0.2)


def test_the_columns_of_a_trace():
    trace = a_run().trace
    assert len(trace) == len(trace.ticket) == 100
    assert trace.num_workers == 4
    assert trace.step.tolist() == list(range(1, 101))
    assert (trace.weight == 1.0).all()
    assert (trace.outcome == "applied").all()
    np.testing.assert_array_equal(trace.delay, trace.step - trace.version)
    np.testing.assert_allclose(trace.time - trace.started, trace.compute_seconds)
    np.testing.assert_allclose(trace.stepsize, 0.2 * np.minimum(1, trace.live_workers / trace.delay))
    assert (np.diff(trace.time) >= 0).all()
    assert len(np.unique(trace.ticket)) == 100


def test_a_held_gradient_that_made_no_step_has_step_0():
    trace = a_run(nw.RennalaSGD(nw.Constant(0.2), batch=3, cancel=False)).trace
    assert set(trace.outcome) == {"held", "dropped"}
    assert (trace.step[trace.outcome == "dropped"] == 0).all()
    assert (trace.stepsize[trace.step == 0] == 0).all()
    unfinished = (trace.outcome == "held") & (trace.step == 0)
    assert unfinished.sum() == 0


def test_a_saved_run_loads_the_same(tmp_path):
    run = a_run(output=nw.UniformAverage())
    run.save(tmp_path / "runs" / "first")
    again = nw.load(tmp_path / "runs" / "first")
    assert np.array_equal(again.params, run.params)
    assert np.array_equal(again.last, run.last)
    assert np.array_equal(again.trace.arrivals, run.trace.arrivals)
    assert np.array_equal(again.trace.events, run.trace.events)
    assert again.trace.initial_workers.tolist() == run.trace.initial_workers.tolist()
    assert again.history.rows() == run.history.rows()
    assert again.stats.work_share.tolist() == run.stats.work_share.tolist()
    assert again.stats.seconds == run.stats.seconds
    assert again.config == run.config | {"run": again.trace.run}
    assert again.config["method"] == {
        "type": "AsynchronousSGD",
        "stepsize": {"type": "DelayAdaptive", "gamma": 0.2, "cut": None},
    }
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["first"]


def test_a_loaded_trace_replays_bit_for_bit(tmp_path):
    run = a_run(output=nw.StepsizeWeightedAverage(), engine="reference")
    run.save(tmp_path / "run")
    again = nw.replay(nw.load(tmp_path / "run").trace, PROBLEM, METHOD, seed=4, output=nw.StepsizeWeightedAverage())
    assert np.array_equal(again.params, run.params)
    assert np.array_equal(again.last, run.last)
    assert np.array_equal(again.trace.arrivals, run.trace.arrivals)
    assert again.stats.engine == "replay"


def test_rejected_gradients_replay():
    class SometimesNan:
        dimension = 2

        def initial(self):
            return np.ones(2)

        def gradient(self, point, sample):
            return point * (np.nan if sample.index(10) == 0 else 1.0)

        def loss(self, point):
            return float(point @ point)

    run = nw.simulate(SometimesNan(), METHOD, nw.speeds.Exponential(1.0, workers=8), steps=200)
    assert run.stats.rejected > 5
    assert not run.stats.diverged
    again = nw.replay(run.trace, SometimesNan(), METHOD)
    assert np.array_equal(again.last, run.last)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 5}, "row 0 of the trace has gradient norm"),
        ({"problem": nw.problems.LeastSquares.random(40, 5, 0.1, batch_size=2, seed=2)}, "row 0 of the trace"),
        ({"method": nw.AsynchronousSGD(nw.Constant(0.2))}, r"row \d+ of the trace has gradient norm"),
        (
            {"method": nw.MinibatchSGD(nw.Constant(0.2))},
            "row 0 of the trace has delay 1 and was applied, in the replay",
        ),
        ({"update": nw.Momentum()}, r"row \d+ of the trace has gradient norm"),
        ({"initial": np.ones(5)}, "row 0 of the trace has gradient norm"),
    ],
)
def test_a_trace_of_something_else_is_refused_at_the_first_row_that_differs(change, message):
    run = a_run()
    arguments = {"trace": run.trace, "problem": PROBLEM, "method": METHOD, "seed": 4} | change
    with pytest.raises(ValueError, match=message):
        nw.replay(**arguments)


class Steady:
    """Gradients that do not depend on the point: their norms tell nothing of the stepsize."""

    dimension = 2

    def initial(self):
        return np.zeros(2)

    def gradient(self, point, sample):
        return np.array([1.0, -1.0])

    def loss(self, point):
        return float(point[0] ** 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": nw.AsynchronousSGD(nw.Constant(0.2))}, "row 0 of the trace has stepsize 0.1"),
        ({"update": nw.Momentum()}, "the trace ends at params of norm"),
    ],
)
def test_other_stepsizes_and_updates_are_refused_even_if_no_gradient_tells(change, message):
    run = nw.simulate(Steady(), nw.AsynchronousSGD(nw.Constant(0.1)), SPEEDS, steps=20)
    arguments = {"trace": run.trace, "problem": Steady(), "method": nw.AsynchronousSGD(nw.Constant(0.1))}
    assert np.array_equal(nw.replay(**arguments).params, run.params)
    with pytest.raises(ValueError, match=message):
        nw.replay(**(arguments | change))


class Flipped:
    """PROBLEM, with a low bit flipped in the gradient of one job: norms differ by less than 1e-9 of them."""

    dimension, initial, loss = PROBLEM.dimension, staticmethod(PROBLEM.initial), staticmethod(PROBLEM.loss)

    def __init__(self, worker, job):
        self.flipped = (worker, job)

    def gradient(self, point, sample):
        gradient = PROBLEM.gradient(point, sample)
        if (sample.worker, sample.job) == self.flipped:
            gradient.view(np.int64)[0] ^= 1 << 16
        return gradient


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_bit_is_seen_even_if_all_norms_agree(seed, caplog):
    """The warning says between which checksums of the trace it was, and it stays in the stats."""
    points = {}
    options = {"seed": seed, "callbacks": [lambda control: points.setdefault(control.steps, control.params.copy())]}
    run = nw.simulate(PROBLEM, METHOD, SPEEDS, steps=100, engine="reference", **options)
    trace = replace(run.trace, checksums=run.trace.checksums | {50: vector_checksum(points[50])})
    row = int(np.flatnonzero(trace.step == 70)[0])
    other = Flipped(trace.worker[row], trace.job[row])
    replayed = nw.replay(trace, other, METHOD, seed=seed)
    assert not np.array_equal(replayed.last, run.last)
    assert "the replay is not the run bit for bit: params after step 100 have other bits" in caplog.text
    assert f"those after step 50 are equal, and gradient norms before row {row}" in replayed.stats.advice
    caplog.clear()
    assert nw.replay(trace, PROBLEM, METHOD, seed=seed).stats.advice == caplog.text == ""


@pytest.mark.parametrize("engine", [None, "reference"])
def test_the_checksum_of_params_is_saved_in_every_format(engine, tmp_path):
    run = nw.simulate(PROBLEM, METHOD, SPEEDS, steps=20, engine=engine)
    assert run.trace.checksums == {20: vector_checksum(run.last)}
    run.trace.save(tmp_path / "trace.npz")
    run.save(tmp_path / "run")
    for trace in (
        nw.Trace.load(tmp_path / "trace.npz"),
        nw.Trace.load(tmp_path / "run" / "trace.rows"),
        pickle.loads(pickle.dumps(run.trace)),
    ):
        assert trace.checksums == run.trace.checksums


def test_a_replay_took_as_long_as_its_run():
    run = nw.simulate(PROBLEM, METHOD, SPEEDS, seconds=10.0)
    assert nw.replay(run.trace, PROBLEM, METHOD).stats.seconds == run.stats.seconds == 10.0


def test_a_trace_is_saved_under_the_name_given(tmp_path):
    trace = a_run().trace
    trace.save(tmp_path / "trace")
    assert [path.name for path in tmp_path.iterdir()] == ["trace"]
    assert np.array_equal(nw.Trace.load(tmp_path / "trace").arrivals, trace.arrivals)


def test_an_event_of_an_unknown_kind_is_refused():
    trace = a_run().trace
    trace.events["kind"][0] = 9
    with pytest.raises(ValueError, match="an event of unknown kind 9"):
        nw.replay(trace, PROBLEM, METHOD, seed=4)


def test_long_lists_are_summed_up_in_the_configuration():
    run = nw.simulate(PROBLEM, METHOD, nw.speeds.Fixed([1.0] * 1_000), steps=5)
    assert run.config["speeds"]["seconds"]["array"] == [1_000]
    run = nw.simulate(PROBLEM, METHOD, nw.speeds.Adversary(range(3)), steps=5)
    assert run.config["speeds"]["order"] == [0, 1, 2]


def test_a_trace_of_another_method_with_other_tickets_is_refused():
    run = a_run(nw.RennalaSGD(nw.Constant(0.2), batch=3))
    with pytest.raises(ValueError, match=r"row \d+ of the trace has .*: the trace is of another problem, seed, method"):
        nw.replay(run.trace, PROBLEM, nw.RennalaSGD(nw.Constant(0.2), batch=3, cancel=False), seed=4)


def test_a_folder_that_exists_is_not_overwritten(tmp_path):
    run = a_run()
    run.save(tmp_path / "run")
    with pytest.raises(FileExistsError, match="nothing is overwritten"):
        run.save(tmp_path / "run")
    assert np.array_equal(nw.load(tmp_path / "run").params, run.params)


def test_a_failed_save_leaves_nothing_behind(tmp_path, monkeypatch):
    run = a_run()
    run.config["broken"] = object()
    with pytest.raises(TypeError):
        run.save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is not a saved run: it has no params\.safetensors, no trace\.rows"):
        nw.load(tmp_path)


def test_a_file_that_is_no_trace_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", numbers=np.arange(3))
    with pytest.raises(ValueError, match="is not a nowait trace of format 1"):
        nw.Trace.load(tmp_path / "other.npz")


def test_no_pickle_is_loaded(tmp_path):
    np.savez(tmp_path / "evil.npz", format=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match=r"evil\.npz is damaged"):
        nw.Trace.load(tmp_path / "evil.npz")


def test_chunks_of_a_long_trace_join_seamlessly(monkeypatch):
    small = functools.partial(TraceRecorder, chunk_rows=7)
    held = nw.RennalaSGD(nw.Constant(0.2), batch=20)
    whole, whole_held = (a_run(method, engine="reference").trace.arrivals for method in (METHOD, held))
    monkeypatch.setattr("nowait.api.parts.TraceRecorder", small)
    assert np.array_equal(a_run(engine="reference").trace.arrivals, whole)
    assert np.array_equal(a_run(held, engine="reference").trace.arrivals, whole_held)
