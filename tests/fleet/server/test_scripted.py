"""The event loop with a real server and scripted hosts: faults in any order, without a process."""

import logging
import os
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nowait as nw
from faulty import Faulty
from nowait.engines.fingerprint import Identification
from nowait.fleet.server.events import HOME
from nowait.fleet.wire.records import ERROR, EVALUATOR, FINGERPRINTER, GRADIENT
from nowait.testing import CATALOGUE, ENGINE_CHECKS, train_scripted
from nowait.testing.scripted import (
    Call,
    Die,
    Forge,
    Hang,
    Leave,
    LeaveWorker,
    Lose,
    Open,
    Report,
    ReportAgain,
    ReportAndDie,
    Wait,
)

ASYNCHRONOUS = nw.AsynchronousSGD(nw.DelayAdaptive(0.05))
ORDER = [2, 0, 1, 1, 2, 2, 0, 2]
JOINED, LOST = 0, 1
DEPEND_ON_TIME = (
    "Auto",
    "Auto, no momentum",
    "DecoupledDiLoCo, grace",
    "MindFlayerSGD",
    "FedAT",
    "ATA",
    "RescaledASGD",
)


def events(run, kind):
    return [int(event["worker"]) for event in run.trace.events if event["kind"] == kind]


def check_that_it_replays(run, problem, method=ASYNCHRONOUS, **options):
    assert len(np.unique(run.trace.ticket)) == len(run.trace), "each ticket arrives once at most"
    again = nw.replay(run.trace, problem, method, **options)
    assert np.array_equal(again.last, run.last)
    assert np.array_equal(again.params, run.params)
    assert again.stats.lost == run.stats.lost


@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
def test_the_contract_of_engines(check, caplog):
    check(train_scripted)


# Reports on tickets that were never issued


def test_reports_on_tickets_that_their_worker_was_never_given_are_counted_and_shown(caplog):
    """Worker 1 names tickets that nobody has, and once that of worker 0; then everything goes on as without them."""
    tickets = (10**9, -1, 2**62, None)
    forged = [Forge(1, kind, ticket) for ticket in tickets for kind in (GRADIENT, ERROR)]
    script = [Report(EVALUATOR), Report(0), Report(1)]
    honest = train_scripted(Faulty(), ASYNCHRONOUS, workers=2, steps=20, script=script)
    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=2, steps=20, script=[*script, *forged])
    assert np.array_equal(run.last, honest.last)
    assert run.stats.rejected == run.stats.late == 0
    shown = [record.getMessage() for record in caplog.records if "never given" in record.getMessage()]
    assert [text.partition("(")[2].partition(" ")[0] for text in shown] == ["1", "2", "4", "8"]
    assert shown[0].startswith("worker 1 on home reported on ticket 1000000000, which it was never given")


# The same arrivals make the same iterates


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_method_has_the_iterates_of_the_simulator(name):
    """Real workers finish a cancelled ticket and report late; the simulator drops it. Timers depend on the clock."""
    method, problem = CATALOGUE[name], Faulty()
    simulated = nw.simulate(problem, method, nw.speeds.Adversary(ORDER), steps=24, seed=5)
    if simulated.stats.cancelled or name in DEPEND_ON_TIME:
        pytest.skip("it cancels tickets, or depends on time")
    script = [Report(EVALUATOR), *(Report(worker) for worker in simulated.trace.worker.tolist())]
    run = train_scripted(problem, method, workers=3, steps=24, seed=5, script=_with_losses(script))
    assert np.array_equal(run.last, simulated.last)
    for column in ["ticket", "worker", "job", "version", "delay", "outcome", "step", "weight", "stepsize"]:
        assert np.array_equal(run.trace.arrivals[column], simulated.trace.arrivals[column]), column


def _with_losses(script):
    for happening in script:
        yield happening
        yield Report(EVALUATOR)


# Faults, one by one


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_method_replays_to_the_same_bits_after_deaths_errors_and_bad_gradients(name, caplog):
    problem = Faulty({(2, 3): "fail", (0, 4): "nan", (1, 6): "misfit"})
    script = [Report() for _ in range(9)] + [Die(1), Report(), Report(), ReportAndDie(0), Report(), Lose(), Report(2)]
    output = nw.UniformAverage()
    run = train_scripted(problem, CATALOGUE[name], workers=4, steps=25, output=output, script=script)
    assert run.stats.steps == 25
    check_that_it_replays(run, problem, CATALOGUE[name], output=nw.UniformAverage())


def test_workers_that_are_replaced_after_the_first_round_of_fedat_join_a_tier(caplog):
    """Worker 0 is lost in the first round, which ends with its loss; then worker 1 is lost, and both come back."""
    run = train_scripted(Faulty(), CATALOGUE["FedAT"], workers=2, steps=25, script=[Report(1), Lose(0)])
    assert run.stats.steps == 25
    check_that_it_replays(run, Faulty(), CATALOGUE["FedAT"])


def test_a_killed_worker_is_replaced_and_loses_one_gradient(caplog):
    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=3, steps=40, script=[*[Report()] * 9, Die(1)])
    assert (events(run, LOST), events(run, JOINED), run.stats.lost) == ([1], [1], 1)
    assert "worker 1 was killed by signal 9: it is replaced" in caplog.text
    jobs = run.trace.job[run.trace.worker == 1]
    assert (np.diff(jobs) == 1).sum() == len(jobs) - 2, "one job is missing"


def test_the_last_report_of_a_process_that_died_counts():
    script = [Report(EVALUATOR), Report(0), Report(1), ReportAndDie(1)]
    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=2, steps=20, script=script)
    assert run.trace.worker[:3].tolist() == [0, 1, 1]
    assert run.stats.lost == 1, "the ticket it got for that report"


def test_a_report_that_comes_twice_is_applied_once():
    script = [Report(EVALUATOR)] + [Report(0), ReportAgain(0), Report(1), ReportAgain(1), ReportAgain(0)] * 10
    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=2, steps=20, script=script)
    assert run.stats.gradients == run.stats.steps == 20
    check_that_it_replays(run, Faulty())


def test_a_report_of_a_process_that_was_replaced_is_ignored():
    """Its replacement has another ticket."""
    script = [Report(EVALUATOR), Report(0), Report(1), Die(1), ReportAgain(1), Report(1)]
    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=2, steps=20, script=script)
    check_that_it_replays(run, Faulty())


def test_a_worker_that_keeps_dying_is_given_up_and_the_others_go_on(caplog):
    script = [Report(EVALUATOR), *[Die(1, 3), Wait(3.0)] * 3]
    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=3, steps=50, max_failures=2, script=script)
    assert "worker 1 ended with exit code 3 repeatedly: it is no longer replaced" in caplog.text
    assert (run.stats.lost, run.stats.work_share[1]) == (3, 0)


def test_if_every_worker_keeps_dying_the_run_fails(caplog):
    script = [Die(0), Die(1), Wait(3.0)] * 5
    with pytest.raises(nw.WorkerFailedError, match=r"no worker is left: worker \d, the last one, was killed by signal"):
        train_scripted(Faulty(), ASYNCHRONOUS, workers=2, steps=100, max_failures=2, script=script)


def test_an_error_is_shown_with_its_worker_and_the_run_goes_on(caplog):
    run = train_scripted(Faulty({(2, 4): "fail"}), ASYNCHRONOUS, workers=3, steps=40)
    assert "worker 2 raised" in caplog.text
    assert "ArithmeticError: this sample cannot be computed" in caplog.text
    assert run.stats.lost == 1
    assert run.trace.job[run.trace.worker == 2].max() > 4


def test_a_worker_that_runs_out_of_memory_is_replaced_and_the_run_replays(caplog):
    problem = Faulty({(2, 4): "run_out_of_memory"})
    run = train_scripted(problem, ASYNCHRONOUS, workers=3, steps=40)
    assert "worker 2 ran out of memory: its process is replaced\n" in caplog.text
    assert "MemoryError: no room for this sample" in caplog.text
    assert run.stats.lost == 1
    assert run.trace.job[run.trace.worker == 2].max() > 4
    check_that_it_replays(run, problem)


def test_a_problem_that_never_has_enough_memory_stops_the_run(caplog):
    problem = Faulty(dict.fromkeys(range(3), "run_out_of_memory"))
    with pytest.raises(nw.WorkerFailedError, match="MemoryError: no room for this sample"):
        train_scripted(problem, ASYNCHRONOUS, workers=3, steps=40)
    assert caplog.text.count("its process is replaced") <= 3


def test_an_error_now_and_then_never_stops_the_run(caplog):
    """Every fifth gradient of every worker raises, at the same line."""
    faults = {(worker, job): "fail" for worker in range(4) for job in range(4, 400, 5)}
    run = train_scripted(Faulty(faults), ASYNCHRONOUS, workers=4, steps=400)
    assert run.stats.lost >= 80
    check_that_it_replays(run, Faulty(faults))


def test_the_same_error_again_and_again_stops_the_run(caplog):
    with pytest.raises(nw.WorkerFailedError, match="ArithmeticError: this sample cannot be computed"):
        train_scripted(Faulty({0: "fail", 1: "fail"}), ASYNCHRONOUS, workers=2, steps=1_000)


def test_errors_and_exits_of_the_loss_stop_the_run(caplog):
    class NoLoss(Faulty):
        def loss(self, point):
            raise ArithmeticError("no loss today")

    with pytest.raises(nw.WorkerFailedError, match=r"the problem's loss raised(.|\n)*no loss today"):
        train_scripted(NoLoss(), ASYNCHRONOUS, workers=2, steps=100)
    with pytest.raises(
        nw.WorkerFailedError, match="the process that computes losses ended with exit code 3 repeatedly"
    ):
        train_scripted(Faulty(), ASYNCHRONOUS, workers=2, steps=100, max_failures=2, script=[Die(EVALUATOR, 3)] * 9)


def test_a_worker_goes_on_with_its_queue_after_gradients_of_the_wrong_shape():
    faults = {(0, job): "misfit" for job in range(9, 400, 10)}
    method = nw.RandomAssignment(nw.Constant(0.01))
    run = train_scripted(Faulty(faults), method, workers=2, steps=150)
    assert run.stats.rejected > 5
    check_that_it_replays(run, Faulty(faults), method)


def test_a_cancelled_worker_finishes_first_and_its_result_is_late():
    run = train_scripted(Faulty(), nw.RennalaSGD(nw.Constant(0.1), batch=3), workers=4, steps=30)
    late = run.trace.outcome == "late"
    assert late.any()
    assert run.stats.late == late.sum()
    assert run.stats.cancelled >= run.stats.late


class Restless(nw.Method):
    """Takes back what the worker of each second arrival has, and what it has just been given."""

    def start(self, server):
        self.cancelled = set()
        for worker in server.workers:
            server.assign(worker)
            server.assign(worker)

    def on_arrival(self, server, arrival):
        server.apply(arrival, 0.01)
        worker = (arrival.worker + 1) % 3
        if server.steps % 2 == 0:
            self.cancelled |= {ticket.id for ticket in server.in_flight.of(worker)}
            self.cancelled.add(server.assign(worker).id)
            server.cancel(worker)
            server.assign(worker)
        server.assign(arrival.worker)


@pytest.mark.parametrize("slowdown", [None, {0: 2.0}])
def test_a_worker_that_imitates_a_slow_one_is_told_that_its_ticket_was_cancelled_and_no_other(slowdown):
    seen, method = [], Restless()
    run = train_scripted(Faulty(), method, workers=3, steps=60, slowdown=slowdown, look=seen.append)
    hurried = seen[0].hosts.hurried
    assert {ticket for _, ticket in hurried} <= method.cancelled
    assert len(set(hurried)) == len(hurried), "it is told once"
    if slowdown is None:
        assert hurried == []
    else:
        assert len(hurried) in (run.stats.late, run.stats.late + 1), "the last one may not have reported yet"
    check_that_it_replays(run, Faulty(), method)


class CancelsOnce(nw.AsynchronousSGD):
    """Replaces the first ticket of worker 1 by another one, and never gives it a ticket again before it delivers."""

    def on_arrival(self, server, arrival):
        super().on_arrival(server, arrival)
        if server.steps == 1:
            server.cancel(1)
            server.assign(1)


def test_a_cancelled_gradient_of_the_wrong_shape_does_not_leave_its_worker_idle():
    """The report is late, so the server assigns nothing: the worker goes on with the ticket that was queued."""
    script = [Report(EVALUATOR), Report(0), Report(1)]
    run = train_scripted(Faulty({(1, 0): "misfit"}), CancelsOnce(0.01), workers=2, steps=40, script=script)
    assert run.stats.late == 1
    assert (run.trace.worker[-20:] == 1).sum() == 10


def test_what_a_worker_remembers_survives_cancelling_deaths_and_errors_and_replays(caplog):
    problem = nw.problems.Compressed(Faulty({(0, 3): "fail"}), nw.problems.TopK(1))
    method = nw.RennalaSGD(nw.Constant(0.1), batch=3)
    script = [*[Report()] * 12, Die(1), *[Report()] * 7, Lose()]
    run = train_scripted(problem, method, workers=4, steps=30, script=script)
    assert run.stats.late > 0
    check_that_it_replays(run, problem, method)


@pytest.mark.parametrize("replace", [False, True])
def test_a_worker_that_hangs_is_named_and_replaced_if_asked(replace, caplog):
    script = [*[Report()] * 10, Hang(1), *[Report(0)] * 600]  # a hundred of them a second
    seen = []
    run = train_scripted(
        Faulty(), ASYNCHRONOUS, workers=2, steps=700, replace_hung=replace, script=script, look=seen.append
    )
    assert "worker 1 has computed for" in caplog.text
    assert ("it is replaced" in caplog.text) is replace
    assert seen[0].hosts.killed == ([1] if replace else [])
    assert events(run, JOINED) == ([1] if replace else [])


def test_a_worker_behind_a_slow_connection_does_not_hang(caplog):
    """It computes for 10 ms, and its gradient is on its way for six seconds."""
    slow = [Wait(3.0), Wait(3.0), Report(0, seconds=0.01)]
    seen = []
    train_scripted(
        Faulty(),
        ASYNCHRONOUS,
        workers=1,
        steps=8,
        replace_hung=True,
        script=slow * 8,
        look=seen.append,
    )
    assert seen[0].hosts.killed == []
    assert "has computed for" not in caplog.text


# HOME and other hosts


def test_all_workers_are_replaced_if_the_zygote_is_killed(caplog):
    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=3, steps=60, script=[*[Report()] * 20, Lose()])
    assert (events(run, LOST), events(run, JOINED)) == ([0, 1, 2], [0, 1, 2])
    assert "and workers [0, 1, 2] with it: they are replaced" in caplog.text
    check_that_it_replays(run, Faulty())


def test_the_zygote_is_killed_while_the_last_loss_is_computed(caplog):
    """All steps are made before the evaluator has answered once."""
    script = [*[Report(0), Report(1)] * 25, Lose()]
    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=2, steps=50, script=script)
    assert run.stats.steps == 50
    assert run.history.step[-1] == 50
    assert "they are replaced" in caplog.text


def test_a_zygote_that_never_comes_back_stops_the_run(caplog):
    script = [Report(EVALUATOR), *[Lose(), Wait(3.0), Wait(3.0)] * 9]
    with pytest.raises(nw.WorkerFailedError, match="the process that starts workers ended repeatedly"):
        train_scripted(Faulty(), ASYNCHRONOUS, workers=2, steps=100, max_failures=2, script=script)


def test_time_goes_on_while_home_is_closed(caplog):
    script = [*[Report()] * 9, Lose()]
    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=2, seconds=30.0, script=script, reopens=False)
    assert run.stats.seconds >= 30.0
    assert (events(run, LOST), events(run, JOINED)) == ([0, 1], [])


def test_workers_are_added_and_removed_although_the_zygote_was_just_killed(caplog):
    def change(control):
        if control.steps == 20:
            control.add_workers(1)
            control.remove_worker(0)
        if control.steps > 20 and set(control.workers) == {1, 2}:
            control.stop()

    for script in ([*[Report()] * 21, Lose()], [*[Report()] * 20, Lose()]):
        run = train_scripted(Faulty(), ASYNCHRONOUS, workers=2, steps=10**9, callbacks=[change], script=script)
        assert run.trace.live_workers[-1] == 2
        check_that_it_replays(run, Faulty())


def test_workers_without_room_at_the_start_join_when_a_place_opens():
    script = [Report(EVALUATOR), *[Report(0)] * 5, Open(1, 1), *[Report(0), Report(1)] * 3, Open(2, 5)]
    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=3, steps=60, seats=1, script=script)
    assert events(run, LOST) == [1, 2], "for them there was no room"
    assert events(run, JOINED) == [1, 2]
    check_that_it_replays(run, Faulty())


def test_a_run_may_wait_for_its_first_worker():
    script = [Report(EVALUATOR), Wait(100.0), Open(3, 1)]
    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=1, steps=10, seats=0, script=script)
    assert run.stats.steps == 10
    assert run.trace.time[0] > 100.0


def test_the_workers_of_a_lost_place_move_to_another_one(caplog):
    seen = []
    script = [Open(1, 2), Open(2, 2), *[Report()] * 20, Lose(1, "node 1 is lost")]
    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=2, steps=60, seats=0, script=script, look=seen.append)
    assert [place for worker, place in seen[0].hosts.started if worker >= 0] == [1, 1, 2, 2]
    assert "node 1 is lost, and workers [0, 1] with it: they are replaced" in caplog.text
    check_that_it_replays(run, Faulty())


# Before the run has begun, and after its end


def fingerprinted(script, **options):
    kept = []
    identification = Identification(Faulty(), None, "runs/mine", kept.append)
    run = train_scripted(
        Faulty(), ASYNCHRONOUS, workers=2, steps=20, script=script, identification=identification, **options
    )
    return run, kept


def test_the_fingerprint_is_computed_before_the_run():
    run, [kept] = fingerprinted([])
    assert kept["params"] == [5, "float64"]
    assert run.stats.steps == 20


@pytest.mark.parametrize("happening", [Die(FINGERPRINTER), Lose(), Hang(FINGERPRINTER)])
def test_a_run_begins_though_its_fingerprint_is_not_known(happening, caplog):
    run, kept = fingerprinted([happening])
    assert run.stats.steps == 20
    assert kept == []
    assert "has no fingerprint" in caplog.text or isinstance(happening, Hang)
    check_that_it_replays(run, Faulty())


def test_a_zygote_that_is_killed_late_in_a_fingerprint_is_started_again_at_once(caplog):
    """The clock of the run begins after that, at 0."""
    run, _ = fingerprinted([*[Wait(2.0)] * 4, Lose()])
    assert run.trace.started.min() < 1.0
    assert run.stats.seconds < 2.0


def test_a_home_that_never_opened_is_an_error(caplog):
    with pytest.raises(nw.WorkerFailedError, match="workers could not load the problem:\nit is broken"):
        train_scripted(Faulty(), ASYNCHRONOUS, workers=2, steps=9, opens=False, script=[Lose(HOME, "it is broken")])


def test_a_home_that_is_lost_while_the_run_waits_for_room_is_opened_again(caplog):
    seen, script = [], [Lose(), Wait(1.0), Open(1, 2)]
    run = train_scripted(
        Faulty(), ASYNCHRONOUS, workers=2, steps=20, seats=0, minimum=2, script=script, look=seen.append
    )
    assert run.stats.steps == 20
    assert (EVALUATOR, HOME) in seen[0].hosts.started
    assert events(run, LOST) == []


def test_a_worker_that_dies_while_the_last_loss_is_computed_does_not_fail_the_run(caplog):
    script = [Report(EVALUATOR), Report(0), Report(0), Report(0), Die(0), Wait(1.0)]
    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=1, steps=3, max_failures=0, evaluate_every=1, script=script)
    assert run.history.step[-1] == run.stats.steps == 3


class Busy(nw.AsynchronousSGD):
    """Gives every worker one more ticket whenever somebody leaves."""

    def on_leave(self, server, worker):
        for other in server.workers:
            server.assign(other)


def test_a_ticket_for_a_worker_whose_process_is_being_replaced_is_computed_in_the_end(caplog):
    """Workers 2 and 3 are lost with their place: the loss of 2 makes the method assign to 3."""
    script = [Open(1, 2), Open(2, 2), *[Report()] * 12, Lose(1, "node 1 is lost"), Open(3, 2)]
    run = train_scripted(Faulty(), Busy(0.01), workers=4, steps=300, seats=0, script=script)
    late = run.trace.worker[-100:]
    assert set(late.tolist()) == {0, 1, 2, 3}, "nobody is idle"
    check_that_it_replays(run, Faulty(), Busy(0.01))


def test_a_callback_that_raises_when_workers_are_lost_leaves_no_channel_open(caplog):
    class Angry(nw.Callback):
        def on_worker_lost(self, control, worker):
            raise ZeroDivisionError

    seen = []
    with pytest.raises(ZeroDivisionError):
        train_scripted(
            Faulty(),
            ASYNCHRONOUS,
            workers=3,
            steps=99,
            script=[*[Report()] * 9, Lose()],
            callbacks=[Angry()],
            look=seen.append,
        )


# Callbacks, signals, evaluation


def test_removing_every_worker_ends_the_run(caplog):
    def remove(control):
        for worker in control.workers:
            control.remove_worker(worker)

    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=2, steps=10**9, callbacks=[remove])
    assert run.stats.advice == "every worker was removed after 1 steps"


def test_a_signal_ends_the_run_after_what_has_arrived(caplog):
    script = [*[Report()] * 9, Call(lambda: os.kill(os.getpid(), signal.SIGTERM))]
    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=2, steps=10**9, script=script)
    assert run.stats.interrupted
    assert "SIGTERM ended the run" in run.stats.advice


def test_evaluation_does_not_stop_the_updates():
    script = [Report(EVALUATOR), *[Report(0)] * 500, Report(EVALUATOR)]
    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=1, steps=800, evaluate_every=10, script=script)
    assert run.history.step[:3].tolist() == [0, 10, 501], "the next one had to wait for it"
    assert run.history.step[-1] == 800
    replayed = nw.replay(run.trace, Faulty(), ASYNCHRONOUS, evaluate_every=1).history
    assert np.array_equal(run.history.loss, replayed.loss[run.history.step]), "the losses are those of the snapshots"


def test_versions_and_channels_are_released():
    """A leak would show as ever more slots: a version is needed per worker, for the evaluator, and two more."""
    seen = []
    method = nw.RennalaSGD(nw.Constant(0.01), batch=2)
    script = [happening for _ in range(60) for happening in (Report(0), Report(1), Die(2), Wait(3.0), Report(3))]
    train_scripted(Faulty(), method, workers=4, steps=400, max_failures=99, script=script, look=seen.append)
    assert len(seen[0].slots.views) <= 4 + 1 + 2 + 4


# Anything, in any order


def happenings():
    worker, seconds = st.integers(0, 4), st.sampled_from([0.0, 0.01, 3.0])
    return st.one_of(
        st.builds(Report, st.none(), seconds, seconds),
        st.builds(Report, worker, seconds, seconds),
        st.builds(Report, st.just(EVALUATOR), seconds, seconds),
        st.builds(ReportAgain, worker),
        st.builds(Die, worker, st.sampled_from([-9, -11, 0, 3])),
        st.builds(Die, st.just(EVALUATOR)),
        st.builds(ReportAndDie, worker),
        st.builds(Hang, worker),
        st.builds(Lose, st.integers(HOME, 2)),
        st.builds(Leave, st.integers(1, 2), st.sampled_from([0.0, 0.2, 30.0])),
        st.builds(LeaveWorker, worker),
        st.builds(Open, st.integers(1, 2), st.integers(0, 3)),
        st.builds(Wait, st.sampled_from([0.0, 0.3, 200.0])),
    )


class Changes(nw.Callback):
    """Adds and removes workers at the steps that a test says."""

    def __init__(self, at):
        self.at, self.seen, self.live = dict(at), 0, []

    def on_step(self, control):
        self.live.append(control.num_workers)
        change = self.at.pop(control.steps, None)
        if change is None:
            return
        if change == "add":
            control.add_workers(1)
        elif control.num_workers > 1:
            control.remove_worker(control.workers[change % control.num_workers])


@given(
    script=st.lists(happenings(), max_size=120),
    name=st.sampled_from(list(CATALOGUE)),
    workers=st.integers(1, 4),
    seats=st.sampled_from([2, 10]),
    changes=st.dictionaries(st.integers(1, 20), st.one_of(st.just("add"), st.integers(0, 5)), max_size=3),
)
@settings(max_examples=80, deadline=None)
def test_whatever_happens_the_run_ends_nothing_is_applied_twice_and_it_replays(script, name, workers, seats, changes):
    logging.getLogger("nowait").setLevel(logging.CRITICAL)
    problem, method, seen, changed = Faulty(), CATALOGUE[name], [], Changes(changes)
    opened = set()

    def sensible(script):
        """A host is opened or lost only if it is closed or open, and at the end one with seats is there."""
        for happening in script:
            if isinstance(happening, (Open, Lose)) and happening.host != HOME:
                if isinstance(happening, Open) == (happening.host in opened):
                    continue
                opened.symmetric_difference_update([happening.host])
            yield happening
        if opened == {1, 2}:
            opened.discard(1)
            yield Lose(1)
        yield Open(1 if 1 not in opened else 2, 9)

    try:
        run = train_scripted(
            problem,
            method,
            workers=workers,
            seats=seats,
            steps=20,
            seconds=3000.0,
            max_failures=200,
            replace_hung=True,
            script=sensible(script),
            callbacks=[changed],
            look=seen.append,
        )
    finally:
        logging.getLogger("nowait").setLevel(logging.NOTSET)
    assert run.stats.steps == 20 or run.stats.seconds >= 3000.0
    check_that_it_replays(run, problem, method)
    assert run.history.step[0] == 0
    assert run.history.step[-1] == run.stats.steps
    live = set(range(workers))
    for event in run.trace.events:
        if event["kind"] == LOST:
            live.remove(int(event["worker"]))
        elif event["kind"] == JOINED:
            assert int(event["worker"]) not in live
            live.add(int(event["worker"]))
