"""What a run with real workers records of where they are and where their time goes."""

import dataclasses
import math

import numpy as np
import pytest

import nowait as nw
from faulty import Faulty
from nowait.engines.workers import dispatch
from nowait.fleet.wire.records import EVALUATOR
from nowait.recording.worker_stats import Placement
from nowait.testing import CATALOGUE, train_scripted
from nowait.testing.scripted import SECONDS_PER_EVENT, Die, Lose, Open, Report, Wait

ASYNCHRONOUS = nw.AsynchronousSGD(nw.DelayAdaptive(0.05))
MINIBATCH = nw.MinibatchSGD(nw.Constant(0.05))
STEP = SECONDS_PER_EVENT


def phases(run, worker):
    return dataclasses.asdict(run.stats.by_worker[worker].phases)


def check_that_all_time_is_accounted_for(run):
    """For a run whose workers were there from start to end."""
    for worker in run.stats.by_worker:
        assert worker.phases.total == pytest.approx(run.stats.seconds)


def test_known_times_of_asynchronous_workers():
    script = [Report(EVALUATOR), Wait(1.0), Report(0, seconds=0.5), Wait(2.0), Report(0, seconds=0.5, sending=1.0)]
    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=2, gradients=2, script=script)
    assert run.trace.worker.tolist() == [0, 0]
    first, second = 1.0 + 3 * STEP, 3.0 + 5 * STEP  # every item of the script takes a moment
    assert run.trace.time == pytest.approx([first, second])
    assert phases(run, 0) == pytest.approx(
        {
            "starting": first - 0.5,
            "waiting": 0.0,
            "receiving": second - first - 1.5,
            "loading": 0.0,
            "computing": 1.0,
            "sending": 1.0,
            "unfinished": 0.0,
        }
    )
    assert phases(run, 1)["unfinished"] == pytest.approx(second), "it delivered nothing"
    assert run.stats.by_worker[1].in_flight == pytest.approx(second)
    check_that_all_time_is_accounted_for(run)


def test_known_times_of_workers_that_wait_for_each_other():
    script = [Report(EVALUATOR), Wait(1.0), Report(0, seconds=1.0), Wait(3.0), Report(1, seconds=4.0)]
    script += [Report(0), Report(1)]
    run = train_scripted(Faulty(), MINIBATCH, workers=2, steps=2, evaluate_every=2, script=script)
    assert run.trace.worker.tolist() == [0, 1, 0, 1]
    assert phases(run, 0)["waiting"] == pytest.approx(3.0 + 2 * STEP), "until worker 1 delivered"
    assert phases(run, 1)["waiting"] == 0.0
    assert phases(run, 1)["computing"] == pytest.approx(4.0)
    check_that_all_time_is_accounted_for(run)


@pytest.mark.parametrize("name", [name for name in CATALOGUE if not name.startswith("MindFlayer")])
def test_the_time_at_which_orders_were_sent_follows_from_the_trace(name, monkeypatch):
    """For every method but one that sends orders when timers fire: workers wait as long as they really waited."""
    sent, send = {}, dispatch.Dispatcher._send

    def remember(dispatcher, state, ticket):
        sent[ticket.id] = dispatcher._clock.now
        send(dispatcher, state, ticket)

    monkeypatch.setattr(dispatch.Dispatcher, "_send", remember)
    order = np.random.default_rng(0).integers(0, 4, 80).tolist()
    script = [item for worker in order for item in (Report(EVALUATOR), Wait(0.1), Report(worker, seconds=0.001))]
    run = train_scripted(Faulty(), CATALOGUE[name], workers=4, steps=12, script=script)
    waited, latest = np.zeros(4), {}
    for row in run.trace.arrivals:
        job, time = latest.get(int(row["worker"]), (row["job"] - 1, 0.0))
        if row["job"] == job + 1:  # else the ticket between was cancelled
            waited[row["worker"]] += sent[int(row["ticket"])] - time
        latest[int(row["worker"])] = (row["job"], row["time"])
    assert [worker.phases.waiting for worker in run.stats.by_worker] == pytest.approx(waited)


@pytest.mark.parametrize("method", [ASYNCHRONOUS, MINIBATCH], ids=["asynchronous", "minibatch"])
def test_the_trace_gives_the_same_phases_as_the_run_counted(method, caplog):
    script = [*[Report(seconds=0.005)] * 9, Die(1), *[Report(seconds=0.002)] * 9, Lose(), Wait(0.5)]
    run = train_scripted(Faulty({(0, 4): "fail"}), method, workers=3, steps=40, script=script)
    assert run.stats.lost > 0
    assert run.trace.by_worker() == run.stats.by_worker


def test_the_trace_says_where_processes_were_started(caplog):
    script = [Report(EVALUATOR), Open(1, 2, "spot-7"), Wait(1.0), *[Report()] * 4, Lose(1, "it was switched off")]
    script += [Wait(1.0), Open(2, 1, "spot-8")]
    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=3, capacity=1, steps=40, script=script)
    placements = run.trace.placements
    assert placements[0] == Placement(0, 0.0, "home", "cpu")
    assert [(one.worker, one.node) for one in placements] == [(0, "home"), (1, "spot-7"), (2, "spot-7"), (1, "spot-8")]
    assert np.diff([one.time for one in placements]).min() >= 0
    assert [worker.node for worker in run.stats.by_worker] == ["home", "spot-8", "spot-7"], "where it was last"


class Loading(Faulty):
    """Says that each gradient waited for data, and that workers compute on devices."""

    def loading_seconds(self):
        return 0.25, 0.125

    def device_of(self, worker):
        return f"cuda:{worker % 2}"


def test_seconds_of_loading_that_a_problem_reports_are_a_phase():
    script = [Report(EVALUATOR), *[Wait(1.0), Report(0, seconds=0.5), Report(1, seconds=0.5)] * 4]
    run = train_scripted(Loading(), ASYNCHRONOUS, workers=2, gradients=8, script=script)
    assert run.trace.loading == {0: (1.0, 0.5), 1: (1.0, 0.5)}
    assert (phases(run, 0)["loading"], phases(run, 0)["computing"]) == pytest.approx((1.5, 1.0))
    assert run.trace.by_worker() == run.stats.by_worker
    assert [worker.device for worker in run.stats.by_worker] == ["cuda:0", "cuda:1"]
    check_that_all_time_is_accounted_for(run)


@pytest.mark.parametrize("wrong", [(math.nan, 0.0), (0.0, math.inf), (-1.0, 0.0)])
def test_impossible_seconds_of_loading_are_ignored(wrong):
    problem = Loading()
    problem.loading_seconds = lambda: wrong
    run = train_scripted(problem, ASYNCHRONOUS, workers=2, gradients=8)
    assert run.trace.loading == {}


def test_callbacks_see_the_workers_so_far():
    seen = []
    look = [Report(EVALUATOR), *[Report(seconds=0.005)] * 30]
    train_scripted(
        Faulty(),
        ASYNCHRONOUS,
        workers=2,
        steps=20,
        script=look,
        callbacks=[lambda control: seen.append((control.steps, control.by_worker))],
    )
    for steps, workers in seen:
        assert sum(worker.gradients for worker in workers) == steps
        assert sum(worker.share for worker in workers) == pytest.approx(1.0)


def test_a_simulation_does_not_follow_its_workers():
    seen = []
    callbacks = [lambda control: seen.append(control.by_worker)]
    run = nw.simulate(Faulty(), ASYNCHRONOUS, nw.speeds.Fixed([1.0]), steps=2, callbacks=callbacks)
    assert (seen, run.stats.by_worker, run.stats.diagnosis) == ([(), ()], (), "")
