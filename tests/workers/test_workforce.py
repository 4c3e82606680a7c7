"""Decisions about workers, without a clock, processes or a server."""

import pytest

from nowait.core import TimerFired, WorkerJoined, WorkerLost
from nowait.engines.workers.actions import (
    Abandon,
    Ask,
    Began,
    Fail,
    Kill,
    Look,
    Raised,
    Release,
    Reopen,
    Requested,
    Start,
    Stop,
    Tell,
    Tick,
    Warn,
)
from nowait.engines.workers.failures import ERRORS_IN_A_ROW, FIRST_DEADLINE, FIRST_PAUSE
from nowait.engines.workers.transport import HOME, Died, Gone, Opened
from nowait.engines.workers.workforce import Workforce
from nowait.fleet.wire.records import EVALUATOR


def begun(workers=2, capacity=100, **options):
    """A workforce whose workers have all been started."""
    workforce = Workforce(wanted=range(workers), **options)
    workforce.handle(Opened(HOME, capacity), 0.0)
    workforce.begin(range(workers), 0.0)
    workforce.handle(Began(), 0.0)
    return workforce


def kinds(actions):
    return [type(action) for action in actions]


def started(actions):
    return [action.state.worker for action in actions if isinstance(action, Start)]


def told(actions):
    return [action.event for action in actions if isinstance(action, Tell)]


def serial_of(workforce, worker):
    return workforce.states[worker].serial


# The start


def test_evaluator_and_workers_are_started_where_there_is_room():
    workforce = Workforce(wanted=range(3))
    assert workforce.handle(Opened(HOME, 2), 0.0) == []
    actions = workforce.begin(range(3), 0.0)
    assert started(actions) == [EVALUATOR, 0, 1]
    assert {action.state.place for action in actions} == {HOME}
    assert len({action.state.serial for action in actions}) == 3
    assert workforce.vacant == [2]
    assert told(workforce.handle(Began(), 0.5)) == [WorkerLost(2, 0.5)]
    assert workforce.handle(Began(), 0.6) == [], "it is told once"


def test_the_evaluator_needs_no_room():
    workforce = Workforce(wanted=range(1))
    workforce.handle(Opened(HOME, 0), 0.0)
    assert started(workforce.begin([0], 0.0)) == [EVALUATOR]


def test_wanted_workers_that_the_server_does_not_have_join_when_there_is_room():
    workforce = begun(workers=1, capacity=1)
    assert workforce.vacant == []
    workforce = Workforce(wanted=range(3))
    workforce.handle(Opened(HOME, 1), 0.0)
    workforce.begin([0], 0.0)
    assert workforce.vacant == [1, 2]
    actions = workforce.handle(Opened(5, 1), 2.0)
    assert started(actions) == [1]
    assert told(actions) == [WorkerJoined(1, 2.0)]
    assert workforce.wanted_workers() == [0, 1, 2]


def test_the_nearest_place_is_filled_first():
    workforce = Workforce(wanted=range(4))
    for place, distance in ((HOME, 0), (1, 1), (2, 0), (3, 1)):
        workforce.handle(Opened(place, 0 if place == HOME else 1, distance), 0.0)
    places = [action.state.place for action in workforce.begin(range(4), 0.0) if action.state.worker >= 0]
    assert places == [2, 1, 3]
    assert workforce.room == 0


def test_home_that_cannot_open_at_the_start_is_an_error():
    [action] = Workforce().handle(Gone(HOME, "not here"), 0.0)
    assert action == Fail("workers could not load the problem:\nnot here")


# Deaths


def test_a_dead_worker_is_released_and_replaced_at_once():
    workforce = begun()
    old = workforce.states[1]
    actions = workforce.handle(Died(old.serial, -9), 3.0)
    assert kinds(actions) == [Warn, Release, Tell, Start, Tell]
    assert actions[0].message == "worker 1 was killed by signal 9: it is replaced"
    assert actions[1].state is old
    assert told(actions) == [WorkerLost(1, 3.0), WorkerJoined(1, 3.0)]
    assert workforce.states[1] is not old


def test_pauses_grow_until_the_worker_is_given_up_and_a_gradient_resets_them():
    workforce = begun(max_failures=2)
    workforce.handle(Died(serial_of(workforce, 1), 3), 0.0)
    actions = workforce.handle(Died(serial_of(workforce, 1), 3), 1.0)
    assert started(actions) == []
    assert workforce.agenda.next(finished=False) == 1.0 + FIRST_PAUSE
    assert started(workforce.handle(Tick(), 1.0 + FIRST_PAUSE)) == [1]
    workforce.delivered(1, HOME)
    assert started(workforce.handle(Died(serial_of(workforce, 1), 3), 2.0)) == [1]
    for now in (3.0, 4.0):
        actions = workforce.handle(Died(serial_of(workforce, 1), 3), now)
        workforce.handle(Tick(), now + 0.9)
    assert "repeatedly: it is no longer replaced" in actions[0].message
    assert workforce.workers == [0]
    assert workforce.wanted_workers() == [0]


def test_if_the_last_worker_is_given_up_the_run_fails():
    workforce = begun(workers=1, max_failures=0)
    actions = workforce.handle(Died(serial_of(workforce, 0), 3), 0.0)
    message = "no worker is left: worker 0, the last one, ended with exit code 3"
    assert actions[-1] == Fail(message, while_running=True)


@pytest.mark.parametrize("reason", ["vacant", "requested"])
def test_a_run_with_workers_to_come_does_not_fail(reason):
    workforce = begun(workers=1, capacity=1, max_failures=0)
    workforce.request_join()
    if reason == "vacant":
        workforce.handle(Requested(), 0.0)
        assert workforce.vacant == [1]
    actions = workforce.handle(Died(serial_of(workforce, 0), 3), 0.0)
    assert Fail not in kinds(actions)


def test_an_unknown_or_repeated_death_is_ignored():
    workforce = begun()
    serial = serial_of(workforce, 0)
    assert workforce.handle(Died(99, -9), 0.0) == []
    assert workforce.handle(Died(serial, -9), 0.0) != []
    assert workforce.handle(Died(serial, -9), 0.0) == []


def test_the_death_of_a_removed_worker_is_expected():
    workforce = begun()
    state = workforce.states[0]
    workforce.request_leave(0)
    actions = workforce.handle(Requested(), 1.0)
    assert kinds(actions) == [Kill, Release, Tell]
    assert workforce.handle(Died(state.serial, -9), 1.1) == []
    assert workforce.wanted_workers() == [1]


def test_a_worker_that_left_makes_room():
    workforce = begun(workers=2, capacity=2)
    workforce.request_join()
    assert workforce.handle(Requested(), 0.0) == []
    workforce.request_leave(0)
    workforce.handle(Requested(), 1.0)
    assert started(workforce.handle(Look(), 1.1)) == [2]


# Places


def test_workers_of_a_lost_place_are_replaced_elsewhere_or_wait():
    workforce = Workforce(wanted=range(3))
    workforce.handle(Opened(HOME, 0), 0.0)
    workforce.handle(Opened(1, 2), 0.0)
    workforce.handle(Opened(2, 2), 0.0)
    workforce.begin(range(3), 0.0)
    actions = workforce.handle(Gone(1, "the node is lost"), 1.0)
    assert actions[0] == Warn("the node is lost, and workers [0, 1] with it: they are replaced")
    assert told(actions) == [WorkerLost(0, 1.0), WorkerLost(1, 1.0), WorkerJoined(0, 1.0)]
    assert [action.state.place for action in actions if isinstance(action, Start)] == [2]
    assert workforce.vacant == [1]
    assert workforce.wanted_workers() == [0, 1, 2]


def test_workers_of_a_lost_place_have_not_failed():
    workforce = Workforce(wanted=range(1), max_failures=0)
    workforce.handle(Opened(HOME, 0), 0.0)
    workforce.begin([0], 0.0)
    for place in range(1, 9):
        assert started(workforce.handle(Opened(place, 1), 0.0)) == [0]
        assert Fail not in kinds(workforce.handle(Gone(place, "gone"), 0.0))


def test_home_is_opened_again_and_the_evaluator_and_the_workers_come_back():
    workforce = begun()
    workforce.evaluate(slot=7, step=40, now=0.0)
    actions = workforce.handle(Gone(HOME, "killed"), 1.0)
    assert sorted(action.state.worker for action in actions if isinstance(action, Release)) == [EVALUATOR, 0, 1]
    assert workforce.vacant == [0, 1]
    assert kinds(workforce.handle(Tick(), 1.0)) == [Reopen]
    assert workforce.handle(Tick(), 1.0) == []
    actions = workforce.handle(Opened(HOME, 100), 2.0)
    assert started(actions) == [EVALUATOR, 0, 1]
    [ask] = [action for action in actions if isinstance(action, Ask)]
    assert (ask.slot, ask.step) == (7, 40), "the evaluation is ordered again"


def test_a_home_that_is_lost_again_and_again_fails_the_run_unless_a_worker_delivers():
    workforce = begun(max_failures=2)
    for repetition in range(6):
        actions = workforce.handle(Gone(HOME, "killed"), float(repetition))
        assert Fail not in kinds(actions)
        workforce.handle(Opened(HOME, 100), float(repetition))
        if repetition < 4:
            workforce.delivered(0, HOME)
    actions = workforce.handle(Gone(HOME, "killed"), 9.0)
    assert Fail("the process that starts workers ended repeatedly, last because killed") in actions


# The evaluator


def test_only_the_answer_to_the_latest_order_counts():
    workforce = begun()
    [ask] = workforce.evaluate(slot=1, step=5, now=0.0)
    actions = workforce.handle(Died(serial_of(workforce, EVALUATOR), -9), 1.0)
    assert kinds(actions) == [Warn, Release, Start, Ask]
    assert not workforce.take_answer(ask.number, 1.0)
    assert workforce.take_answer(actions[-1].number, 1.0)
    assert not workforce.take_answer(actions[-1].number, 1.0), "it was answered"


def test_an_evaluator_that_keeps_dying_fails_the_run_and_an_answer_resets_the_count():
    workforce = begun(max_failures=1)
    for _ in range(3):
        [ask] = workforce.evaluate(slot=1, step=5, now=0.0)
        [*_, ask] = workforce.handle(Died(serial_of(workforce, EVALUATOR), 3), 1.0)
        assert workforce.take_answer(ask.number, 1.0)
    workforce.handle(Died(serial_of(workforce, EVALUATOR), 3), 1.0)
    [fail] = workforce.handle(Died(serial_of(workforce, EVALUATOR), 3), 1.0)
    assert fail.message.startswith("the process that computes losses ended with exit code 3 repeatedly")


@pytest.mark.parametrize("replace", [False, True])
def test_an_evaluator_that_hangs_is_named_and_replaced_if_asked_also_after_the_end(replace):
    workforce = begun(replace_hung=replace)
    for time in (0.0, 2.0):
        [ask] = workforce.evaluate(slot=1, step=5, now=time)
        assert workforce.handle(Look(), time + 1.0) == []
        assert workforce.take_answer(ask.number, time + 1.0)
    workforce.finished = True
    workforce.evaluate(slot=1, step=9, now=10.0)
    state = workforce.states[EVALUATOR]
    assert workforce.handle(Look(), 10.0 + FIRST_DEADLINE - 1) == []
    warning = Warn(f"the loss has been computed for 121 s; it takes 1 s on average{': it is replaced' * replace}")
    assert workforce.handle(Look(), 131.0) == ([warning, Kill(state)] if replace else [warning])
    assert workforce.handle(Look(), 132.0) == []


def test_a_first_evaluation_may_take_any_time():
    workforce = begun(replace_hung=True)
    workforce.evaluate(slot=1, step=0, now=0.0)
    assert workforce.handle(Look(), 130.0) == [Warn("the loss has been computed for 130 s")]
    workforce.handle(Died(serial_of(workforce, EVALUATOR), -9), 140.0)
    assert workforce.handle(Look(), 150.0) == [], "another process has just begun"


def test_an_answer_of_an_evaluator_that_is_gone_counts():
    workforce = begun()
    [ask] = workforce.evaluate(slot=1, step=5, now=0.0)
    workforce.handle(Gone(HOME, "killed"), 1.0)
    assert workforce.take_answer(ask.number, 1.0)


# Errors and hangs


def test_an_error_loses_the_ticket_but_not_the_process():
    workforce = begun()
    state = workforce.states[1]
    actions = workforce.handle(Raised(1, "ValueError at x:1", "its traceback", any_gradient=True), 2.0)
    assert kinds(actions) == [Warn, Abandon, Tell, Tell]
    assert actions[0].message == "worker 1 raised:\nits traceback"
    assert told(actions) == [WorkerLost(1, 2.0), WorkerJoined(1, 2.0)]
    assert workforce.states[1] is state


def test_the_traceback_of_an_error_is_shown_once_and_then_counted():
    workforce, messages = begun(), []
    for number in range(8):
        workforce.delivered(number % 2, HOME)
        actions = workforce.handle(Raised(number % 2, "ValueError at x:1", "its traceback", any_gradient=True), 2.0)
        messages += [action.message for action in actions if isinstance(action, Warn)]
    assert messages == [
        "worker 0 raised:\nits traceback",
        *(
            f"worker 1 raised ValueError at x:1: {times} times in this run, the first one is above"
            for times in (2, 4, 8)
        ),
    ]


def test_the_same_error_before_any_gradient_fails_the_run_soon():
    workforce = begun()
    for worker in (0, 1):
        warn, *others = workforce.handle(Raised(worker, "E at x:1", "text", any_gradient=False), 0.0)
        assert warn.message == f"worker {worker} raised E at x:1 before the first gradient, and tries again"
        assert Fail not in kinds(others)
    [fail] = workforce.handle(Raised(0, "E at x:1", "text", any_gradient=False), 0.0)
    assert fail.message == "worker 0 raised, not for the first time:\ntext"


def out_of_memory(workforce, worker=0, kind="OutOfMemoryError at x:1"):
    return workforce.handle(Raised(worker, kind, "its traceback", any_gradient=True), 2.0)


@pytest.mark.parametrize("kind", ["OutOfMemoryError at x:1", "MemoryError", "_ArrayMemoryError at x:1"])
def test_a_worker_that_runs_out_of_memory_gets_a_new_process_once(kind):
    workforce = begun()
    old = workforce.states[0]

    actions = out_of_memory(workforce, kind=kind)

    assert kinds(actions) == [Warn, Kill, Release, Tell, Start, Tell]
    assert actions[0].message == "worker 0 ran out of memory: its process is replaced\nits traceback"
    assert actions[1].state is old
    assert told(actions) == [WorkerLost(0, 2.0), WorkerJoined(0, 2.0)]
    assert workforce.states[0] is not old
    assert workforce.handle(Died(old.serial, -9), 3.0) == []
    assert kinds(out_of_memory(workforce, kind=kind)) == [Warn, Abandon, Tell, Tell]  # as any other error
    assert workforce.failures.errors == 2


def test_a_worker_whose_new_process_runs_out_of_memory_again_and_again_ends_the_run():
    workforce = begun(workers=1)
    actions = [out_of_memory(workforce) for _ in range(1 + ERRORS_IN_A_ROW)]
    [failure] = [action for action in actions[-1] if isinstance(action, Fail)]
    assert failure.message == "worker 0 raised, not for the first time:\nits traceback"
    assert not any(Fail in kinds(earlier) for earlier in actions[:-1])


def test_a_worker_that_has_delivered_since_is_replaced_again():
    workforce = begun()
    for times in range(1, 2 * ERRORS_IN_A_ROW):
        actions = out_of_memory(workforce)
        assert Start in kinds(actions)
        counted = "\nits traceback" if times == 1 else f" (OutOfMemoryError at x:1: {times} times in this run)"
        assert actions[0].message == f"worker 0 ran out of memory: its process is replaced{counted}"
        workforce.delivered(0, HOME)


@pytest.mark.parametrize("replace", [False, True])
def test_a_worker_that_hangs_is_named_once_per_ticket_and_killed_if_asked(replace):
    workforce = begun(replace_hung=replace)
    state = workforce.states[0]
    state.ticket = (1, 0, 0, 0, 0.0)
    assert workforce.handle(Look(), FIRST_DEADLINE - 1) == []
    actions = workforce.handle(Look(), FIRST_DEADLINE + 1)
    assert kinds(actions) == ([Warn, Kill] if replace else [Warn])
    assert workforce.handle(Look(), FIRST_DEADLINE + 2) == []


def test_a_worker_without_a_ticket_does_not_hang():
    assert begun(replace_hung=True).handle(Look(), 1e9) == []


# The clock


def test_timers_and_the_end_of_the_time_are_due_once():
    workforce = begun(end=5.0)
    for at in (1.0, 2.0, 4.0):
        workforce.agenda.wake(at)
    assert told(workforce.handle(Tick(), 2.5)) == [TimerFired(2.5), TimerFired(2.5)]
    assert workforce.handle(Tick(), 2.6) == []
    actions = workforce.handle(Tick(), 5.0)
    assert actions == [Tell(TimerFired(5.0)), Stop("")]


def test_after_the_end_nothing_but_the_evaluator_is_started():
    workforce = begun(end=1.0)
    workforce.evaluate(slot=3, step=9, now=0.0)
    workforce.agenda.wake(0.5)
    workforce.finished = True
    workforce.handle(Gone(HOME, "killed"), 2.0)
    assert kinds(workforce.handle(Tick(), 2.0)) == [Reopen]
    assert started(workforce.handle(Opened(HOME, 9), 2.5)) == [EVALUATOR]


# Requests


def test_new_workers_get_numbers_that_nobody_had():
    workforce = begun(workers=2, numbers_used=[7, 3])
    workforce.request_join()
    assert workforce.wanted_workers() == [0, 1, 8]
    assert started(workforce.handle(Requested(), 0.0)) == [8]


def test_a_worker_that_waits_or_is_to_be_replaced_can_be_removed():
    workforce = begun(workers=2, capacity=2)
    workforce.request_join()
    workforce.handle(Requested(), 0.0)
    workforce.handle(Died(serial_of(workforce, 0), 3), 0.0)
    workforce.handle(Died(serial_of(workforce, 0), 3), 0.0)
    assert workforce.agenda.to_replace == [0]
    for worker in (0, 2):
        workforce.request_leave(worker)
    workforce.handle(Requested(), 0.0)
    assert workforce.wanted_workers() == [1]


def test_if_all_workers_are_removed_the_run_stops():
    workforce = begun()
    for worker in (0, 1):
        workforce.request_leave(worker)
    assert workforce.handle(Requested(), 0.0)[-1] == Stop("every worker was removed")


def test_the_live_view_learns_who_computes_since_when_and_who_is_absent():
    workforce = Workforce(wanted=range(3))
    workforce.handle(Opened(HOME, 2), 0.0)
    workforce.begin(range(3), 0.0)
    workforce.states[0].ticket, workforce.states[0].sent = (1, 0, 0, 0, 0.0), 2.0
    views = {view.worker: view for view in workforce.views(5.0, jobs_of=lambda worker: 1)}
    assert sorted(views) == [0, 1, 2], "the evaluator is no worker"
    assert views[0].computing == views[0].slowness == 3.0
    assert not views[0].idle
    assert views[1].idle
    assert not views[2].present
    assert views[2].state == "waits for room"
