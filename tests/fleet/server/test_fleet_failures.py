"""What to do about errors, hangs, and processes that cannot be killed; and for how long to be patient."""

import pytest
from fleets import begun, handle, on_hosts, only, order, report, serial_of, start_and_join

from nowait.core import BadWorkerError
from nowait.fleet.server.events import (
    HOME,
    Cancelled,
    EndHost,
    Fail,
    Faulty,
    Forget,
    HostReady,
    Joined,
    Kill,
    LeaveAsked,
    Lost,
    ProcessDied,
    Raised,
    Send,
    Start,
    Tick,
    Warn,
)
from nowait.fleet.server.patience import (
    ERRORS_IN_A_ROW,
    FIRST_DEADLINE,
    FIRST_ERRORS,
    FIRST_PAUSE,
    LONG_PAUSE,
    LONGEST_PAUSE,
    SECONDS_TO_DIE,
    SHORTEST_DEADLINE,
    Deaths,
    Durations,
    Failures,
)
from nowait.fleet.wire.records import FORGET

# Errors


def error(fleet, number, kind="ValueError at x:1", ticket_id=1, *, any_gradient=True):
    return handle(fleet, Raised(number, ticket_id, kind, "its traceback", any_gradient), 2.0)


def order_and_error(fleet, number, kind="ValueError at x:1", *, any_gradient=True):
    order(fleet, number)
    return error(fleet, number, kind, any_gradient=any_gradient)


def test_an_error_loses_the_ticket_but_not_the_process():
    fleet = begun()
    order(fleet, 1, 7)
    report(fleet, 1, 7)
    order(fleet, 1)
    assert error(fleet, 1) == [Warn("worker 1 raised:\nits traceback"), Lost(1), Joined(1)]
    assert fleet.is_idle(1)
    assert fleet.workers[1].instruction == FORGET
    assert serial_of(fleet, 1) == 3
    assert error(fleet, 1) == [], "it is reported once"


def test_an_error_on_a_cancelled_ticket_loses_nothing_of_the_server():
    fleet = begun()
    ticket, _ = order(fleet, 1, 1)
    handle(fleet, Cancelled(1, (1,)))
    following, _ = order(fleet, 1, 2)
    warning = Warn("worker 1 raised:\nits traceback")
    assert error(fleet, 1) == [warning, Forget(ticket), Send(1, following)]
    assert fleet.computes(1, 2)
    handle(fleet, Cancelled(1, (2,)))
    assert error(fleet, 1, "KeyError", 2) == [warning, Forget(following)]
    assert fleet.is_idle(1)


def test_the_traceback_of_an_error_is_shown_once_and_then_counted():
    fleet, messages = begun(), []
    for count in range(8):
        order(fleet, count % 2)
        report(fleet, count % 2)
        messages += [action.message for action in only(order_and_error(fleet, count % 2), Warn)]
    assert messages == [
        "worker 0 raised:\nits traceback",
        *(
            f"worker 1 raised ValueError at x:1: {times} times in this run, the first one is above"
            for times in (2, 4, 8)
        ),
    ]


def test_the_same_error_before_any_gradient_fails_the_run_soon():
    fleet = begun()
    for number in (0, 1):
        assert order_and_error(fleet, number, "E at x:1", any_gradient=False) == [
            Warn(f"worker {number} raised E at x:1 before the first gradient, and tries again"),
            Lost(number),
            Joined(number),
        ]
    fail = Fail("worker 0 raised, not for the first time:\nits traceback")
    assert order_and_error(fleet, 0, "E at x:1", any_gradient=False) == [fail]


def test_a_worker_that_delivers_between_its_errors_is_not_given_up():
    fleet = begun()
    for _ in range(3):
        for _ in range(ERRORS_IN_A_ROW - 1):
            assert only(order_and_error(fleet, 0), Kill) == []
        order(fleet, 0)
        report(fleet, 0)
    for _ in range(ERRORS_IN_A_ROW - 1):
        order_and_error(fleet, 0)
    assert order_and_error(fleet, 0) == [
        Warn("worker 0 raised ValueError at x:1 again and again: it is no longer replaced"),
        Kill(HOME, 2),
        Lost(0),
    ]


def test_on_several_hosts_the_worker_that_raises_before_any_gradient_is_given_up():
    fleet = on_hosts(1, 2)
    for _ in range(FIRST_ERRORS - 1):
        order_and_error(fleet, 0, any_gradient=False)
    reason = "worker 0 raised ValueError at x:1 again and again"
    assert order_and_error(fleet, 0, any_gradient=False) == [
        Warn(f"{reason}: it goes on with another host, if there is room"),
        Kill(1, 2),
        Lost(0),
        Warn(f"the host node 1 is given up, because {reason}"),
        EndHost(1, reason),
        *start_and_join(2, 0, 4),
    ]


@pytest.mark.parametrize("kind", ["OutOfMemoryError at x:1", "MemoryError", "_ArrayMemoryError at x:1"])
def test_a_worker_that_runs_out_of_memory_gets_a_new_process_once(kind):
    fleet = begun()
    assert order_and_error(fleet, 0, kind) == [
        Warn("worker 0 ran out of memory: its process is replaced\nits traceback"),
        Kill(HOME, 2),
        Lost(0),
    ]
    assert handle(fleet, ProcessDied(2, -9), 3.0) == start_and_join(HOME, 0, 4)
    assert order_and_error(fleet, 0, kind)[1:] == [Lost(0), Joined(0)], "as any other error"
    assert (fleet.failures.errors, fleet.failures.deaths) == (2, 0)


def test_a_worker_whose_new_process_runs_out_of_memory_again_and_again_ends_the_run():
    fleet = begun(workers=1)
    order_and_error(fleet, 0, "MemoryError")
    handle(fleet, ProcessDied(2, -9), 2.0)
    for _ in range(ERRORS_IN_A_ROW - 1):
        assert only(order_and_error(fleet, 0, "MemoryError"), Fail) == []
    fail = Fail("worker 0 raised, not for the first time:\nits traceback")
    assert order_and_error(fleet, 0, "MemoryError")[-1] == fail


def test_a_worker_that_has_delivered_since_is_replaced_again():
    fleet = begun()
    for times in range(1, 2 * ERRORS_IN_A_ROW):
        counted = "\nits traceback" if times == 1 else f" (MemoryError at x:1: {times} times in this run)"
        warning = Warn(f"worker 0 ran out of memory: its process is replaced{counted}")
        serial = serial_of(fleet, 0)
        assert order_and_error(fleet, 0, "MemoryError at x:1") == [warning, Kill(HOME, serial), Lost(0)]
        handle(fleet, ProcessDied(serial, -9), 2.0)
        order(fleet, 0)
        report(fleet, 0)


# Workers that send what cannot be used


@pytest.mark.parametrize("any_gradient", [False, True])
def test_a_worker_that_sends_rubbish_is_given_up_unless_the_problem_is_at_fault(any_gradient):
    fleet, bad = begun(), BadWorkerError(1, "sent rubbish")
    fail = Fail(str(bad), while_running=True, error=bad)
    given_up = [Warn("worker 1 sent rubbish: it is no longer replaced"), Kill(HOME, 3), Lost(1)]
    assert handle(fleet, Faulty(bad, any_gradient)) == (given_up if any_gradient else [fail])


def test_on_several_hosts_a_worker_that_sends_rubbish_is_given_up_also_before_any_gradient():
    fleet, bad = on_hosts(1, 2), BadWorkerError(0, "sent rubbish")
    assert handle(fleet, Faulty(bad, any_gradient=False)) == [
        Warn("worker 0 sent rubbish: it goes on with another host, if there is room"),
        Kill(1, 2),
        Lost(0),
        Warn("the host node 1 is given up, because worker 0 sent rubbish"),
        EndHost(1, "worker 0 sent rubbish"),
        *start_and_join(2, 0, 4),
    ]


def test_the_run_ends_with_the_error_of_the_last_worker():
    fleet, bad = begun(workers=1), BadWorkerError(0, "sent rubbish")
    actions = handle(fleet, Faulty(bad, any_gradient=True))
    assert actions[-1] == Fail(str(bad), while_running=True, error=bad)


def test_a_faulty_worker_may_have_left_already():
    fleet, bad = begun(), BadWorkerError(1, "sent rubbish")
    handle(fleet, LeaveAsked(1))
    handle(fleet, Tick())
    assert handle(fleet, Faulty(bad, any_gradient=True)) == [Warn(f"{bad}: it has left already")]


# Hangs


@pytest.mark.parametrize("replace", [False, True])
def test_a_worker_that_hangs_is_named_once_per_ticket_and_killed_if_asked(replace):
    fleet = begun(replace_hung=replace)
    order(fleet, 0)
    assert handle(fleet, Tick(), FIRST_DEADLINE - 1) == []
    named = Warn(f"worker 0 has computed for 121 s{': it is replaced' * replace}")
    assert handle(fleet, Tick(), FIRST_DEADLINE + 1) == [named, *[Kill(HOME, 2)] * replace]
    assert handle(fleet, Tick(), FIRST_DEADLINE + 2) == []


def test_the_next_ticket_can_hang_too_and_is_compared_with_the_earlier_ones():
    fleet = begun()
    for ticket_id in (1, 2):
        order(fleet, 0, ticket_id, at=float(ticket_id))
        report(fleet, 0, ticket_id, at=ticket_id + 0.5)
        handle(fleet, Tick(), ticket_id + 0.5)
    order(fleet, 0, 3, at=10.0)
    assert handle(fleet, Tick(), 10.0 + SHORTEST_DEADLINE - 0.1) == []
    named = Warn("worker 0 has computed for 5 s; its gradients take 0.5 s on average")
    assert handle(fleet, Tick(), 10.0 + SHORTEST_DEADLINE) == [named]
    report(fleet, 0, 3, at=16.0)
    order(fleet, 0, 4, at=16.0)
    assert len(handle(fleet, Tick(), 60.0)) == 1


def test_a_worker_without_a_ticket_does_not_hang():
    fleet = begun(replace_hung=True)
    assert handle(fleet, Tick(), 1e9) == []


def test_a_hanging_process_that_was_killed_is_replaced_when_it_is_dead():
    fleet = begun(replace_hung=True)
    order(fleet, 0)
    handle(fleet, Tick(), 200.0)
    assert handle(fleet, ProcessDied(2, -9), 200.1) == [
        Warn("worker 0 was killed by signal 9: it is replaced"),
        Lost(0),
        *start_and_join(HOME, 0, 4),
    ]


def test_a_hanging_worker_may_deliver_before_the_kill_arrives():
    fleet = begun(replace_hung=True)
    order(fleet, 0)
    handle(fleet, Tick(), 200.0)
    assert report(fleet, 0, at=200.1) == []
    assert handle(fleet, ProcessDied(2, -9), 200.2)[1:] == [Lost(0), *start_and_join(HOME, 0, 4)]


# Processes that cannot be killed


def killed(host):
    """A fleet with a hanging worker 0 on a host that was just killed, at the time FIRST_DEADLINE."""
    fleet = begun(replace_hung=True) if host == HOME else on_hosts(1, 2, replace_hung=True)
    order(fleet, 0)
    assert handle(fleet, Tick(), FIRST_DEADLINE)[1:] == [Kill(host, 2)]
    return fleet


def tick_until(fleet, at, until):
    """Let a Tick come every second; returns all actions."""
    actions = []
    while at < until:
        at += 1.0
        actions += handle(fleet, Tick(), at)
    return actions


def test_a_process_of_this_machine_that_does_not_die_is_replaced_by_another():
    fleet = killed(HOME)
    assert tick_until(fleet, FIRST_DEADLINE, FIRST_DEADLINE + SECONDS_TO_DIE - 1) == []
    assert handle(fleet, Tick(), FIRST_DEADLINE + SECONDS_TO_DIE) == [
        Warn("worker 0 was killed, but its process did not end within 10 s: another replaces it"),
        Lost(0),
        *start_and_join(HOME, 0, 4),
    ]
    assert handle(fleet, ProcessDied(2, -9), 500.0) == [], "it is forgotten"


def test_a_host_that_does_not_kill_a_process_is_given_up():
    fleet = killed(1)
    handle(fleet, HostReady(3, 1, 0))
    reason = "worker 0 was killed, but its process did not end within 10 s"
    assert tick_until(fleet, FIRST_DEADLINE, FIRST_DEADLINE + SECONDS_TO_DIE) == [
        Warn(f"the host node 1 is given up, because {reason}; its workers [0] are replaced"),
        Lost(0),
        EndHost(1, reason),
        *start_and_join(3, 0, 4),
    ]


def test_of_a_host_with_several_processes_that_do_not_die_one_is_named():
    fleet = on_hosts(2, 1, workers=3)
    for number in (0, 1):
        handle(fleet, LeaveAsked(number))
    handle(fleet, Tick(), 1.0)
    actions = tick_until(fleet, 1.0, 2.0 + SECONDS_TO_DIE)
    reason = "worker 0 was killed, but its process did not end within 10 s"
    assert actions == [Warn(f"the host node 1 is given up, because {reason}"), EndHost(1, reason)]


def test_a_removed_worker_whose_process_does_not_die_is_forgotten():
    fleet = begun()
    handle(fleet, LeaveAsked(0))
    handle(fleet, Tick(), 1.0)
    assert tick_until(fleet, 1.0, 30.0) == []
    assert 0 not in fleet.workers


def test_a_process_that_dies_in_time_gives_nothing_up():
    fleet = killed(1)
    handle(fleet, ProcessDied(2, -9), FIRST_DEADLINE + 2)
    assert tick_until(fleet, FIRST_DEADLINE + 2, FIRST_DEADLINE + 3 * SECONDS_TO_DIE) == []


def test_after_a_pause_of_the_server_deaths_are_waited_for_again():
    fleet = killed(1)
    at = FIRST_DEADLINE + SECONDS_TO_DIE + LONG_PAUSE
    assert handle(fleet, Tick(), at) == []
    assert tick_until(fleet, at, at + SECONDS_TO_DIE - 1) == []
    handle(fleet, ProcessDied(2, -9), at + SECONDS_TO_DIE - 1)
    assert tick_until(fleet, at + SECONDS_TO_DIE - 1, at + 2 * SECONDS_TO_DIE) == []
    assert only(handle(fleet, Tick(), 500.0), Start) == []


# Patience


def test_before_the_first_gradient_a_few_errors_of_one_kind_stop_the_run_whoever_raises():
    failures = Failures()
    decisions = [failures.raised(worker, "ValueError at x:1", any_gradient=False) for worker in range(FIRST_ERRORS)]
    assert decisions == [False] * (FIRST_ERRORS - 1) + [True]


def test_errors_of_different_kinds_are_counted_apart():
    failures = Failures()
    kinds = [f"ValueError at x:{line}" for line in range(20)]
    assert not any(failures.raised(0, kind, any_gradient=False) for kind in kinds)


def test_after_a_gradient_errors_of_many_workers_do_not_stop_the_run():
    """Each of 100 workers raised once and has not delivered since, because its next gradient takes long."""
    failures = Failures()
    assert not any(failures.raised(worker, "OSError at x:1", any_gradient=True) for worker in range(100))


def test_a_worker_that_delivers_between_its_errors_never_stops_the_run():
    failures = Failures()
    for _ in range(1_000):
        for _ in range(ERRORS_IN_A_ROW - 1):
            assert not failures.raised(0, "OSError at x:1", any_gradient=True)
        failures.forgive(0)


def test_a_worker_that_raises_many_times_in_a_row_stops_the_run_although_others_deliver():
    failures = Failures()
    decisions = []
    for _ in range(ERRORS_IN_A_ROW):
        failures.forgive(1)
        decisions.append(failures.raised(0, "OSError at x:1", any_gradient=True))
    assert decisions == [False] * (ERRORS_IN_A_ROW - 1) + [True]


def test_pauses_double_up_to_a_limit():
    deaths = Deaths()
    pauses = [deaths.pause(most=10) for _ in range(11)]
    assert pauses[:4] == [0.0, FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[9:] == [LONGEST_PAUSE, None]
    deaths.count = 0
    assert deaths.pause(most=10) == 0.0


def test_the_deadline_of_a_worker_follows_how_long_its_tickets_take_and_how_much_that_varies():
    steady, varied = Durations(), Durations()
    assert steady.deadline() == FIRST_DEADLINE
    for count in range(100):
        steady.add(2.0)
        varied.add(4.0 * (count % 2))
    assert steady.deadline() == pytest.approx(10.0)
    assert varied.deadline() > 30.0
