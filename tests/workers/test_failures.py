"""What to do about failures, and what is planned for when: mostly without any process."""

import math

import pytest

import nowait as nw
from faulty import Faulty
from nowait.engines.processes.mailbox import Mailbox
from nowait.engines.workers.agenda import Agenda
from nowait.engines.workers.failures import ERRORS_IN_A_ROW, FIRST_ERRORS, FIRST_PAUSE, LONGEST_PAUSE, Failures

ASYNCHRONOUS = nw.AsynchronousSGD(nw.Constant(0.05))

# Errors of the problem


def test_before_the_first_gradient_a_few_errors_of_one_kind_stop_the_run_whoever_raises():
    failures = Failures(most=5)
    decisions = [failures.raised(worker, "ValueError at x:1", any_gradient=False) for worker in range(FIRST_ERRORS)]
    assert decisions == [False] * (FIRST_ERRORS - 1) + [True]


def test_errors_of_different_kinds_are_counted_apart():
    failures = Failures(most=5)
    kinds = [f"ValueError at x:{line}" for line in range(20)]
    assert not any(failures.raised(0, kind, any_gradient=False) for kind in kinds)


def test_after_a_gradient_errors_of_many_workers_do_not_stop_the_run():
    """Each of 100 workers raised once and has not delivered since, because its next gradient takes long."""
    failures = Failures(most=5)
    assert not any(failures.raised(worker, "OSError at x:1", any_gradient=True) for worker in range(100))


def test_a_worker_that_delivers_between_its_errors_never_stops_the_run():
    failures = Failures(most=5)
    for _ in range(1_000):
        for _ in range(ERRORS_IN_A_ROW - 1):
            assert not failures.raised(0, "OSError at x:1", any_gradient=True)
        failures.delivered(0)


def test_a_worker_that_raises_many_times_in_a_row_stops_the_run_although_others_deliver():
    failures = Failures(most=5)
    decisions = []
    for _ in range(ERRORS_IN_A_ROW):
        failures.delivered(1)
        decisions.append(failures.raised(0, "OSError at x:1", any_gradient=True))
    assert decisions == [False] * (ERRORS_IN_A_ROW - 1) + [True]


@pytest.mark.parametrize("fault", ["fail", "misfit"])
def test_a_report_whose_details_are_missing_is_an_error_without_a_traceback(fault, caplog, monkeypatch):
    monkeypatch.setattr(Mailbox, "details", lambda *_: None)
    with pytest.raises(nw.WorkerFailedError, match="worker 0 raised, not for the first time:\nits traceback did not"):
        nw.train(Faulty({0: fault}), ASYNCHRONOUS, workers=1, steps=50)


@pytest.mark.parametrize(
    ("fault", "details", "text"),
    [("misfit", ("KeyError", "a traceback"), "a traceback"), ("fail", ("float64", (3,)), "its traceback did not")],
)
def test_details_of_the_wrong_kind_are_an_error_of_the_worker(fault, details, text, caplog, monkeypatch):
    """A host on another machine may send anything."""
    monkeypatch.setattr(Mailbox, "details", lambda _, worker, ticket: details if worker == 0 else None)
    with pytest.raises(nw.WorkerFailedError, match=f"worker 0 raised, not for the first time:\n{text}"):
        nw.train(Faulty({0: fault}), ASYNCHRONOUS, workers=1, steps=50)


# Deaths


def test_pauses_double_up_to_a_limit_until_a_gradient_comes():
    failures = Failures(most=10)
    pauses = [failures.died(3) for _ in range(11)]
    assert pauses[:4] == [0.0, FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[9:] == [LONGEST_PAUSE, None]
    failures.delivered(3)
    assert failures.died(3) == 0.0
    assert failures.troubled == {3}


# The agenda


def test_what_is_due_is_taken_once_and_in_order():
    agenda = Agenda()
    for at in (3.0, 1.0, 2.0):
        agenda.wake(at)
        agenda.replace(int(10 * at), at)
    assert [agenda.take_timers(2.0) for _ in range(2)] == [2, 0]
    assert [agenda.take_replacement(2.0) for _ in range(3)] == [10, 20, None]
    assert agenda.to_replace == [30]
    assert agenda.next(finished=False) == 3.0


def test_an_agenda_is_empty_only_if_nothing_will_ever_be_due():
    assert Agenda().is_empty
    assert not Agenda(end=5.0).is_empty
    for plan in (lambda agenda: agenda.wake(1.0), lambda agenda: agenda.replace(0, 1.0)):
        agenda = Agenda()
        plan(agenda)
        assert not agenda.is_empty
    agenda = Agenda()
    agenda.reopening = 1.0
    assert not agenda.is_empty


def test_a_worker_that_was_removed_is_not_replaced():
    agenda = Agenda()
    for worker in (2, 0, 1):
        agenda.replace(worker, 5.0 - worker)
    agenda.do_not_replace(0)
    assert [agenda.take_replacement(9.0) for _ in range(3)] == [2, 1, None]


@pytest.mark.parametrize(("finished", "moment"), [(False, 1.0), (True, 4.0)])
def test_after_the_end_of_the_run_only_the_home_is_waited_for(finished, moment):
    """A replacement that is never made must not keep the engine from waiting."""
    agenda = Agenda(end=2.0)
    agenda.replace(0, 1.0)
    agenda.wake(3.0)
    agenda.reopening = 4.0
    assert agenda.next(finished=finished) == moment


def test_the_home_is_started_again_once():
    agenda = Agenda()
    agenda.reopening = 1.0
    assert [agenda.take_reopening(now) for now in (0.5, 1.0, 2.0)] == [False, True, False]
    assert agenda.next(finished=False) == math.inf
