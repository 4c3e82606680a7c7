"""The processes that are no workers: the one that computes losses, and the one that computes the fingerprint."""

import math

import pytest
from fleets import begun, handle, on_hosts, serial_of, start_and_join

from nowait.fleet.server.events import (
    HOME,
    Began,
    Ended,
    Evaluate,
    EvaluationAsked,
    Fail,
    FingerprintAsked,
    Fingerprinted,
    HostGone,
    HostReady,
    Identify,
    Kill,
    Lost,
    ProcessDied,
    Start,
    Tick,
    Warn,
)
from nowait.fleet.server.fleet import Fleet
from nowait.fleet.server.patience import FIRST_DEADLINE, FIRST_PAUSE, SECONDS_TO_DIE
from nowait.fleet.wire.records import EVALUATOR, FINGERPRINTER

DIED = "the process that computes losses was killed by signal 9: it is replaced"

# The evaluator


def test_only_the_answer_to_the_latest_order_counts():
    fleet = begun()
    assert handle(fleet, EvaluationAsked(slot=1, step=5)) == [Evaluate(1, 1, 5)]
    died = handle(fleet, ProcessDied(1, -9), 1.0)
    assert died == [Warn(DIED), Start(HOME, EVALUATOR, 4), Evaluate(2, 1, 5)]
    assert not fleet.evaluated(1, 1.0)
    assert fleet.evaluated(2, 1.0)
    assert not fleet.evaluated(2, 1.0), "it was answered"
    fleet.check()


def test_an_evaluation_that_is_asked_for_without_an_evaluator_is_ordered_when_there_is_one():
    fleet = begun(workers=0)
    handle(fleet, HostGone(HOME, "killed"))
    assert handle(fleet, EvaluationAsked(1, 5)) == []
    assert handle(fleet, HostReady(HOME, 1), 1.0) == [Start(HOME, EVALUATOR, 2), Evaluate(1, 1, 5)]


def test_an_evaluator_that_keeps_dying_waits_for_its_pause_and_then_fails_the_run():
    fleet = begun(max_failures=2)
    handle(fleet, EvaluationAsked(1, 5))
    assert handle(fleet, ProcessDied(1, -9), 1.0) == [Warn(DIED), Start(HOME, EVALUATOR, 4), Evaluate(2, 1, 5)]
    assert handle(fleet, ProcessDied(4, -9), 1.0) == [Warn(DIED)]
    assert fleet.due == 1.0 + FIRST_PAUSE
    assert handle(fleet, Tick(), 1.01) == []
    assert handle(fleet, Tick(), 1.0 + FIRST_PAUSE) == [Start(HOME, EVALUATOR, 5), Evaluate(3, 1, 5)]
    message = "the process that computes losses ended with exit code 3 repeatedly: look at the problem's loss"
    assert handle(fleet, ProcessDied(5, 3), 2.0) == [Fail(message)]


def test_an_answer_resets_the_deaths_of_the_evaluator():
    fleet = begun(max_failures=1)
    for order in range(1, 6, 2):
        handle(fleet, EvaluationAsked(1, 5))
        actions = handle(fleet, ProcessDied(serial_of(fleet, EVALUATOR), -9), 1.0)
        assert actions[-1] == Evaluate(order + 1, 1, 5)
        assert fleet.evaluated(order + 1, 1.0)


@pytest.mark.parametrize("replace", [False, True])
def test_an_evaluator_that_hangs_is_named_and_replaced_if_asked_also_after_the_end(replace):
    fleet = begun(replace_hung=replace)
    for order, at in ((1, 0.0), (2, 2.0)):
        handle(fleet, EvaluationAsked(1, 5), at)
        assert handle(fleet, Tick(), at + 1.0) == []
        assert fleet.evaluated(order, at + 1.0)
    handle(fleet, Ended(), 9.0)
    handle(fleet, EvaluationAsked(1, 9), 10.0)
    assert handle(fleet, Tick(), 10.0 + FIRST_DEADLINE - 1) == []
    warning = Warn(f"the loss has been computed for 121 s; it takes 1 s on average{': it is replaced' * replace}")
    assert handle(fleet, Tick(), 131.0) == [warning, *[Kill(HOME, 1)] * replace]
    assert handle(fleet, Tick(), 132.0) == []
    if replace:
        assert handle(fleet, ProcessDied(1, -9), 132.0)[1:] == [Start(HOME, EVALUATOR, 4), Evaluate(4, 1, 9)]


def test_a_first_evaluation_may_take_any_time():
    fleet = begun(replace_hung=True)
    handle(fleet, EvaluationAsked(1, 0))
    assert handle(fleet, Tick(), 130.0) == [Warn("the loss has been computed for 130 s")]
    handle(fleet, ProcessDied(1, -9), 140.0)
    assert handle(fleet, Tick(), 150.0) == [], "another process has just begun"


def test_an_answer_of_an_evaluator_that_is_gone_counts():
    fleet = begun()
    handle(fleet, EvaluationAsked(1, 5))
    handle(fleet, HostGone(HOME, "killed"), 1.0)
    assert fleet.evaluated(1, 1.0)
    fleet.check()


def test_an_evaluator_that_dies_again_and_again_after_the_end_is_restarted_after_its_pause():
    fleet = begun()
    handle(fleet, EvaluationAsked(1, 5))
    handle(fleet, Ended())
    handle(fleet, ProcessDied(1, -9))
    handle(fleet, ProcessDied(4, -9), 1.0)
    assert handle(fleet, Tick(), 1.01) == []
    assert fleet.due == 1.0 + FIRST_PAUSE, "it is waited for although the run is over"


def test_an_evaluator_that_cannot_be_killed_is_replaced_by_another_also_after_the_end():
    fleet = begun(replace_hung=True)
    handle(fleet, EvaluationAsked(1, 5))
    assert fleet.evaluated(1, 1.0)
    handle(fleet, EvaluationAsked(1, 9), 2.0)
    handle(fleet, Ended(), 3.0)
    handle(fleet, Tick(), 199.0)
    for second in range(200, 209):
        assert handle(fleet, Tick(), float(second)) == []
    cause = f"was killed, but its process did not end within {SECONDS_TO_DIE:.0f} s: another replaces it"
    assert handle(fleet, Tick(), 209.0) == [Warn(f"the process that computes losses {cause}")]
    assert handle(fleet, Tick(), 209.1) == [Start(HOME, EVALUATOR, 4), Evaluate(3, 1, 9)]


# The fingerprint

DETAILS = ("a", "fingerprint")


def asked(**options):
    """A fleet before the run begins, whose first process computes the fingerprint."""
    fleet = Fleet(workers=[0], **options)
    handle(fleet, HostReady(HOME, 1))
    assert handle(fleet, FingerprintAsked()) == [Start(HOME, FINGERPRINTER, 1)]
    assert fleet.identifying
    return fleet


def test_the_fingerprint_is_computed_by_a_process_without_a_seat_before_the_run_begins():
    fleet = asked()
    assert fleet.room == 1
    assert handle(fleet, Fingerprinted(DETAILS)) == [Identify(DETAILS)]
    assert not fleet.identifying
    assert handle(fleet, ProcessDied(1, 0)) == []
    assert handle(fleet, Began()) == [Start(HOME, EVALUATOR, 2), Start(HOME, 0, 3)]


def test_a_fingerprint_that_is_asked_for_twice_is_computed_once():
    fleet = asked()
    assert handle(fleet, FingerprintAsked()) == []
    assert handle(fleet, Fingerprinted(DETAILS)) == [Identify(DETAILS)]
    assert handle(fleet, Fingerprinted(DETAILS)) == []


def test_a_fingerprint_waits_for_home():
    fleet = Fleet()
    assert handle(fleet, FingerprintAsked()) == []
    assert handle(fleet, HostReady(HOME, 1)) == [Start(HOME, FINGERPRINTER, 1)]


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (ProcessDied(1, -11), "the process that computed one gradient was killed by signal 11"),
        (HostGone(HOME, "killed"), "killed"),
    ],
)
def test_a_fingerprint_whose_process_is_gone_stays_unknown(event, cause):
    fleet = asked()
    [identify] = [action for action in handle(fleet, event) if isinstance(action, Identify)]
    assert identify.details is None
    assert identify.cause.startswith(cause)
    assert not fleet.identifying
    assert FINGERPRINTER not in fleet.workers


def test_that_a_fingerprint_stays_unknown_is_said_last_because_hosts_wait_for_it():
    fleet = begun(workers=1)
    handle(fleet, HostReady(1, 1))
    handle(fleet, FingerprintAsked())
    assert handle(fleet, HostGone(HOME, "killed"))[1:] == [
        Lost(0),
        *start_and_join(1, 0, 4),
        Identify(None, "killed"),
    ]


def test_a_fingerprint_that_takes_too_long_is_given_up():
    fleet = asked()
    assert handle(fleet, Fingerprinted(None, "it took too long")) == [Kill(HOME, 1), Identify(None, "it took too long")]
    assert handle(fleet, ProcessDied(1, -9)) == []


@pytest.mark.parametrize("dies", [True, False])
def test_a_fingerprint_that_is_asked_for_again_is_computed_when_the_process_before_is_gone(dies):
    fleet = asked()
    handle(fleet, Fingerprinted(None, "it took too long"))
    assert handle(fleet, FingerprintAsked(), 1.0) == []
    assert handle(fleet, Tick(), 1.0) == []
    if dies:
        assert handle(fleet, ProcessDied(1, -9), 2.0) == []
        assert handle(fleet, Tick(), 2.0) == [Start(HOME, FINGERPRINTER, 2)]
    else:
        for second in range(2, 12):
            assert handle(fleet, Tick(), float(second)) == []
        assert handle(fleet, Tick(), 12.0) == [Start(HOME, FINGERPRINTER, 2)]
    assert handle(fleet, Fingerprinted(DETAILS), 13.0) == [Identify(DETAILS)]


def test_the_fingerprint_process_is_no_worker():
    fleet = on_hosts(1, workers=1)
    handle(fleet, FingerprintAsked())
    assert (fleet.members, fleet.wanted(), fleet.due) == ([0], [0], math.inf)
    assert [view.worker for view in fleet.views(0.0, jobs_of=lambda number: 1)] == [0]
