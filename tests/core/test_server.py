"""The server, event by event."""

import math
import pickle

import numpy as np
import pytest

import nowait as nw
from nowait.core import (
    Assign,
    BadWorkerError,
    Cancel,
    GradientArrived,
    IllegalEvent,
    Method,
    Server,
    Ticket,
    TimerFired,
    Wake,
    WorkerJoined,
    WorkerLost,
)
from nowait.core.rejections import Rejections
from nowait.recording import TraceRecorder
from nowait.testing import a_server, check_invariants, gradient_from

ASYNCHRONOUS = nw.AsynchronousSGD(nw.Constant(0.5))


class Handlers(Method):
    """A method made of the functions a test gives it."""

    stepsize = nw.Constant(0.5)

    def __init__(self, on_arrival=None, on_timer=None):
        self._on_arrival, self._on_timer = on_arrival, on_timer

    def on_arrival(self, server, arrival):
        if self._on_arrival is not None:
            self._on_arrival(server, arrival)

    def on_timer(self, server):
        self._on_timer(server)


# The conventions of the paper (Section 2)


def test_every_worker_starts_at_version_0_with_job_0():
    commands = Server(ASYNCHRONOUS, np.zeros(2), 3).start()
    assert commands == [Assign(Ticket(id=worker, worker=worker, version=0, job=0)) for worker in range(3)]


def test_a_worker_gets_the_params_after_its_own_gradient_was_applied():
    server = a_server(ASYNCHRONOUS, num_workers=2)
    commands = server.handle(gradient_from(server, worker=1, gradient=2.0, time=3.0))
    assert commands == [Assign(Ticket(id=2, worker=1, version=1, job=1, time=3.0))]
    assert server.params.tolist() == [-1.0, -1.0]
    assert server.point(commands[0].ticket).tolist() == [-1.0, -1.0]


def test_the_first_arrival_is_fresh_and_a_gradient_at_the_initial_params_ages_with_every_step():
    delays = []
    method = Handlers(on_arrival=lambda server, arrival: (delays.append(arrival.delay), server.apply(arrival, 0.1)))
    server = a_server(method, num_workers=3)
    for worker in (2, 0, 1):
        server.handle(gradient_from(server, worker))
    assert delays == [1, 2, 3]


def test_dropped_and_held_gradients_age_nobody():
    server = a_server(nw.RennalaSGD(nw.Constant(0.1), batch=3, cancel=False), num_workers=3)
    server.handle(gradient_from(server, worker=0))
    server.handle(gradient_from(server, worker=1))
    assert server.steps == 0
    assert [ticket.version for ticket in server.in_flight.values()] == [0, 0, 0]


def test_a_gradient_past_the_limit_is_dropped_and_its_worker_gets_fresh_params():
    server = a_server(nw.RingmasterASGD(nw.Constant(0.1), max_delay=1), num_workers=2)
    server.handle(gradient_from(server, worker=0))

    commands = server.handle(gradient_from(server, worker=1))

    assert server.steps == 1
    assert server.counts.dropped == 1
    assert commands == [Assign(Ticket(id=3, worker=1, version=1, job=1))]


# Verbs


def test_assign_at_an_arrival_gives_its_own_point_and_version():
    def apply_and_stay(server, arrival):
        server.apply(arrival, 0.5)
        server.assign(arrival.worker, at=arrival)

    server = a_server(Handlers(on_arrival=apply_and_stay), num_workers=1)
    [command] = server.handle(gradient_from(server, worker=0))
    assert command.ticket.version == 0
    assert server.point(command.ticket).tolist() == [0.0, 0.0]
    assert server.steps == 1


def test_cancel_takes_back_the_running_and_the_queued_tickets():
    def queue_and_cancel(server, arrival):
        server.assign(1)
        server.cancel(1)
        server.assign(1)

    server = a_server(Handlers(on_arrival=queue_and_cancel), num_workers=2)
    commands = server.handle(gradient_from(server, worker=0))
    assert commands == [Cancel(1, (1,)), Assign(Ticket(id=3, worker=1, version=0, job=2))], "ticket 2 was only queued"
    assert server.counts.cancelled == 2
    assert list(server.in_flight) == [3]
    check_invariants(server)


def test_a_cancelled_ticket_that_arrives_is_late_and_changes_nothing():
    server = a_server(nw.RennalaSGD(nw.Constant(0.1), batch=1), num_workers=2)
    late = gradient_from(server, worker=1)
    server.handle(gradient_from(server, worker=0))
    before = server.params.copy()
    assert server.handle(late) == []
    assert server.counts.late == 1
    assert np.array_equal(server.params, before)


def test_a_gradient_is_applied_at_most_once():
    server = a_server(ASYNCHRONOUS, num_workers=1)
    event = gradient_from(server, worker=0)
    server.handle(event)
    assert server.handle(event) == []
    assert (server.steps, server.counts.late) == (1, 1)


def test_a_forged_ticket_is_late():
    server = a_server(ASYNCHRONOUS, num_workers=1)
    forged = Ticket(id=0, worker=0, version=0, job=7)
    server.handle(GradientArrived(forged, np.ones(2), time=0.0))
    assert (server.steps, server.counts.late, len(server.in_flight)) == (0, 1, 1)


def test_a_timer_calls_the_method_back_and_a_time_gone_by_means_now():
    fired = []
    method = Handlers(
        on_arrival=lambda server, arrival: (server.wake(5.0), server.wake(1.0)),
        on_timer=lambda server: fired.append(server.now),
    )
    server = a_server(method, num_workers=1)
    assert server.handle(gradient_from(server, worker=0, time=2.0)) == [Wake(5.0), Wake(2.0)]
    server.handle(TimerFired(5.0))
    assert fired == [5.0]


def test_a_direction_of_its_own_makes_the_step():
    method = Handlers(
        on_arrival=lambda server, arrival: server.apply(arrival, 0.5, direction=arrival.gradient * arrival.gradient)
    )
    server = a_server(method, num_workers=1)
    server.handle(gradient_from(server, worker=0, gradient=-3.0))
    assert server.params.tolist() == [-4.5, -4.5]


def test_sums_add_merge_and_clear():
    seen = []

    def sum_up(server, arrival):
        total, other = server.sum(), server.sum()
        total.add(arrival)
        other.add(arrival, weight=1.0)
        other.add(arrival, weight=2.0)
        total.merge(other, weight=2.0)
        server.step(total, 1.0, scale=0.5)
        seen.append(total.count)
        total.merge(other, weight=-2.0)
        seen.append((total.count, total.vector.tolist()))
        total.clear()
        seen.append((total.count, total.vector.tolist()))

    server = a_server(Handlers(on_arrival=sum_up), num_workers=1)
    server.handle(gradient_from(server, worker=0, gradient=1.0))
    assert server.params.tolist() == [-3.5, -3.5]
    assert seen == [3, (1, [1.0, 1.0]), (0, [0.0, 0.0])]


def test_the_log_tells_the_coefficient_of_a_gradient_in_its_first_step():
    sums = {}

    def hold_and_step(server, arrival):
        total = sums.setdefault("total", server.sum())
        part = server.sum()
        part.add(arrival, weight=2.0)
        total.merge(part, weight=3.0)
        if arrival.worker == 1:
            server.step(total, 0.1, scale=0.5)
            server.step(total, 0.7)

    recorder = TraceRecorder(range(2))
    server = a_server(Handlers(on_arrival=hold_and_step), num_workers=2, log=recorder)
    server.handle(gradient_from(server, worker=0))
    server.handle(gradient_from(server, worker=1))
    trace = recorder.trace()
    assert trace.outcome.tolist() == ["held", "held"]
    assert trace.step.tolist() == [1, 1]
    assert trace.weight.tolist() == [3.0, 3.0]
    assert trace.stepsize.tolist() == [0.1, 0.1]


def test_the_first_step_of_a_gradient_that_is_applied_and_added_is_the_application():
    """As delayed Nesterov does: apply at once, step along the sum of three later."""
    sums = {}

    def apply_and_add(server, arrival):
        total = sums.setdefault("total", server.sum())
        server.apply(arrival, 0.05)
        total.add(arrival)
        if total.count == 3:
            server.step(total, 0.01)
            total.clear()
        server.assign(arrival.worker)

    recorder = TraceRecorder(range(1))
    server = a_server(Handlers(on_arrival=apply_and_add), num_workers=1, log=recorder)
    for _ in range(6):
        server.handle(gradient_from(server, worker=0))
    assert recorder.trace().step.tolist() == [1, 2, 3, 5, 6, 7]
    assert set(recorder.trace().stepsize) == {0.05}


def test_reading_a_bad_gradient_ends_the_handler():
    seen = []
    for read in (lambda arrival: arrival.gradient, lambda arrival: arrival.gradient_norm):
        method = Handlers(on_arrival=lambda server, arrival, read=read: seen.append(read(arrival)))
        server = a_server(method, num_workers=3)
        server.handle(gradient_from(server, worker=0, gradient=math.nan))
        assert (seen, server.counts.rejected) == ([], 1)
        server.handle(gradient_from(server, worker=1, gradient=3.0))
        seen.clear()


def test_the_norm_of_a_gradient_can_be_read():
    norms = []
    server = a_server(Handlers(on_arrival=lambda server, arrival: norms.append(arrival.gradient_norm)), num_workers=1)
    server.handle(gradient_from(server, worker=0, gradient=np.array([3.0, 4.0])))
    assert norms == [5.0]


def test_a_method_hears_of_the_ticket_that_replaces_a_rejected_one():
    replaced = []

    class Listening(Handlers):
        def on_reissue(self, server, rejected, ticket):
            replaced.append((rejected.id, ticket.id))

    server = a_server(Listening(), num_workers=2)
    server.handle(gradient_from(server, worker=1, gradient=math.nan))
    assert replaced == [(1, 2)]


def test_sums_of_another_server_are_refused():
    other = a_server(ASYNCHRONOUS, num_workers=1, dimension=5).sum()
    server = a_server(Handlers(on_arrival=lambda server, arrival: server.step(other, 0.1)), num_workers=1)
    with pytest.raises(ValueError, match="a sum of another server"):
        server.handle(gradient_from(server, worker=0))
    with pytest.raises(ValueError, match="sums of different servers"):
        server.sum().merge(other)


def test_a_sum_is_scaled_by_merging_it_with_itself():
    sums = {}

    def halve(server, arrival):
        total = sums.setdefault("total", server.sum())
        total.add(arrival)
        total.merge(total, weight=-0.5)

    server = a_server(Handlers(on_arrival=halve), num_workers=1)
    server.handle(gradient_from(server, worker=0, gradient=8.0))
    assert (sums["total"].vector.tolist(), sums["total"].count) == ([4.0, 4.0], 1)


def test_a_gradient_that_travelled_as_a_pickle_is_good():
    server = a_server(ASYNCHRONOUS, num_workers=1)
    gradient = pickle.loads(pickle.dumps(np.ones(2)))
    server.handle(gradient_from(server, worker=0, gradient=gradient))
    assert server.steps == 1


def test_what_a_method_reads_is_read_only_and_gone_afterwards():
    kept = []

    def try_to_write(server, arrival):
        with pytest.raises(ValueError, match="read-only"):
            arrival.gradient[0] = 9.0
        with pytest.raises(ValueError, match="read-only"):
            arrival.point[0] = 9.0
        with pytest.raises(ValueError, match="read-only"):
            server.params[0] = 9.0
        kept.append(arrival)

    server = a_server(Handlers(on_arrival=try_to_write), num_workers=1)
    server.handle(gradient_from(server, worker=0))
    for use in (lambda: kept[0].gradient, lambda: kept[0].point):
        with pytest.raises(ValueError, match="inside on_arrival only"):
            use()
    with pytest.raises(ValueError, match="is not being handled now"):
        server.apply(kept[0], 0.1)


@pytest.mark.parametrize("stepsize", [math.nan, -0.1, math.inf])
def test_a_step_needs_a_finite_stepsize(stepsize):
    server = a_server(Handlers(on_arrival=lambda server, arrival: server.apply(arrival, stepsize)), num_workers=1)
    with pytest.raises(ValueError, match="a step needs a finite stepsize of at least 0"):
        server.handle(gradient_from(server, worker=0))


def test_assigning_to_a_worker_that_is_not_there_is_an_error():
    server = a_server(Handlers(on_arrival=lambda server, arrival: server.assign(9)), num_workers=1)
    with pytest.raises(ValueError, match="cannot assign to worker 9"):
        server.handle(gradient_from(server, worker=0))


# Workers


def test_a_lost_workers_tickets_are_lost_and_its_number_goes_on_counting_jobs():
    server = a_server(ASYNCHRONOUS, num_workers=2)
    server.handle(gradient_from(server, worker=0))
    assert server.handle(WorkerLost(0, time=1.0)) == []
    assert (server.counts.lost, server.num_workers) == (1, 1)
    assert server.handle(WorkerJoined(0, time=2.0)) == [Assign(Ticket(id=3, worker=0, version=1, job=2, time=2.0))]


def test_stepsizes_use_the_live_number_of_workers():
    server = a_server(nw.AsynchronousSGD(nw.DelayAdaptive(1.0)), num_workers=4)
    for _ in range(3):
        server.handle(gradient_from(server, worker=0, gradient=0.0))
    for worker in (2, 3):
        server.handle(WorkerLost(worker, time=0.0))
    server.handle(gradient_from(server, worker=1, gradient=1.0))
    assert server.params.tolist() == [-2 / 4, -2 / 4]


@pytest.mark.parametrize(
    "event",
    [
        WorkerJoined(1, time=1.0),
        WorkerLost(5, time=1.0),
        TimerFired(-1.0),
        WorkerJoined(7, time=math.nan),
        WorkerLost(0, time=-1.0),
        WorkerJoined(-1, time=1.0),
    ],
)
def test_an_illegal_event_is_an_error_and_changes_nothing(event):
    server = a_server(ASYNCHRONOUS, num_workers=2)
    server.handle(gradient_from(server, worker=0))
    before = (server.params.tolist(), server.steps, dict(server.in_flight), list(server.workers), server.now)
    with pytest.raises(IllegalEvent):
        server.handle(event)
    assert before == (server.params.tolist(), server.steps, dict(server.in_flight), list(server.workers), server.now)
    check_invariants(server)


# Bad gradients


@pytest.mark.parametrize(
    "gradient", [np.array([1.0, math.nan]), np.array([math.inf, 0.0]), np.ones(3), np.ones((2, 1)), None, "gradient"]
)
def test_a_bad_gradient_is_rejected_and_its_ticket_issued_again_at_its_own_point(gradient):
    server = a_server(ASYNCHRONOUS, num_workers=3)
    server.handle(gradient_from(server, worker=0))
    before = server.params.copy()
    [ticket] = server.in_flight.of(1)
    commands = server.handle(GradientArrived(ticket, gradient, time=0.0))
    assert commands == [Assign(Ticket(id=4, worker=1, version=0, job=1))]
    assert (server.counts.rejected, server.counts.gradients, server.steps) == (1, 1, 1)
    assert np.array_equal(server.params, before)
    check_invariants(server)


@pytest.mark.parametrize(
    "verb",
    [
        lambda server, arrival: server.assign(0),
        lambda server, arrival: server.cancel(0),
        lambda server, arrival: server.wake(9.0),
        lambda server, arrival: server.step(server.sum(), 0.1),
        lambda server, arrival: server.apply(arrival, 0.1),
        lambda server, arrival: server.apply(arrival, 0.1, direction=np.ones(2)),
        lambda server, arrival: server.sum().add(arrival),
    ],
    ids=["assign", "cancel", "wake", "step", "apply", "apply direction", "add"],
)
def test_no_verb_takes_effect_on_a_bad_gradient(verb):
    server = a_server(Handlers(on_arrival=verb), num_workers=3)
    commands = server.handle(gradient_from(server, worker=1, gradient=math.nan))
    assert commands == [Assign(Ticket(id=3, worker=1, version=0, job=1))]
    assert (server.steps, server.counts.cancelled, len(server.in_flight)) == (0, 0, 3)
    check_invariants(server)


def test_a_large_finite_gradient_whose_square_overflows_is_good():
    server = a_server(ASYNCHRONOUS, num_workers=2)
    server.handle(gradient_from(server, worker=0, gradient=1e200))
    assert (server.steps, server.counts.rejected) == (1, 0)
    assert server.params.tolist() == [-5e199, -5e199]


def test_one_worker_that_keeps_sending_nan_is_named():
    server = a_server(ASYNCHRONOUS, num_workers=3)
    for _ in range(5):
        server.handle(gradient_from(server, worker=0))
        server.handle(gradient_from(server, worker=2, gradient=math.nan))
    server.handle(gradient_from(server, worker=0))
    server.handle(gradient_from(server, worker=0))
    with pytest.raises(BadWorkerError, match="worker 2 sent 6 gradients in a row with NaN or infinity") as error:
        server.handle(gradient_from(server, worker=2, gradient=math.nan))
    assert error.value.worker == 2


def test_now_and_then_a_nan_is_no_reason_to_stop():
    server = a_server(ASYNCHRONOUS, num_workers=4)
    for _ in range(20):
        server.handle(gradient_from(server, worker=1, gradient=math.nan))
        server.handle(gradient_from(server, worker=1))
    assert (server.counts.rejected, server.steps, server.diverged) == (20, 20, None)


def test_one_worker_that_keeps_sending_the_wrong_size_is_named():
    server = a_server(ASYNCHRONOUS, num_workers=3)
    for _ in range(4):
        server.handle(gradient_from(server, worker=1, gradient=np.ones(3)))
    message = r"worker 1 sent float64 of shape \(3,\) .* params are float64 of shape \(2,\)"
    with pytest.raises(BadWorkerError, match=message):
        server.handle(gradient_from(server, worker=1, gradient=np.ones(3)))


def test_nothing_but_nan_from_several_workers_means_diverged():
    server = a_server(ASYNCHRONOUS, num_workers=4)
    for worker in (0, 1, 0, 1):
        server.handle(gradient_from(server, worker, gradient=math.nan))
    assert server.diverged is None
    assert server.handle(gradient_from(server, worker=0, gradient=math.nan)) == []
    assert server.diverged == "the last 5 gradients, from 2 workers, are not finite"
    with pytest.raises(IllegalEvent, match="after the run diverged"):
        server.handle(gradient_from(server, worker=2))


def test_nan_from_the_only_worker_means_diverged():
    server = a_server(ASYNCHRONOUS, num_workers=1)
    for _ in range(5):
        server.handle(gradient_from(server, worker=0, gradient=math.nan))
    assert server.diverged == "the last 5 gradients of worker 0 are not finite"


def test_a_worker_alone_with_its_nans_is_not_to_blame_when_params_have_exploded():
    server = a_server(ASYNCHRONOUS, num_workers=3)
    server.handle(gradient_from(server, worker=0, gradient=1e100))
    for _ in range(5):
        server.handle(gradient_from(server, worker=0, gradient=math.nan))
    assert server.diverged == "the last 5 gradients of worker 0 are not finite"


def test_after_five_tries_at_its_own_point_a_worker_goes_on_at_the_current_params():
    server = a_server(ASYNCHRONOUS, num_workers=3)
    for _ in range(2):
        server.handle(gradient_from(server, worker=1))
    versions = []
    for _ in range(5):
        [assign] = server.handle(gradient_from(server, worker=0, gradient=math.nan))
        versions.append(assign.ticket.version)
    assert versions == [0, 0, 0, 0, 2]


def test_a_worker_is_blamed_only_if_others_are_fine_at_points_as_new():
    server = a_server(ASYNCHRONOUS, num_workers=3)
    server.handle(gradient_from(server, worker=0))
    for _ in range(7):
        server.handle(gradient_from(server, worker=0, gradient=math.nan))
    server.handle(gradient_from(server, worker=1))
    server.handle(gradient_from(server, worker=0, gradient=math.nan))
    assert server.diverged is None, "worker 1 was fine at version 0, which says nothing of version 1"
    server.handle(gradient_from(server, worker=1))
    with pytest.raises(BadWorkerError, match="worker 0 sent 9 gradients in a row"):
        server.handle(gradient_from(server, worker=0, gradient=math.nan))


def test_a_worker_alone_for_long_means_diverged():
    server = a_server(ASYNCHRONOUS, num_workers=3)
    for _ in range(50):
        assert server.diverged is None
        server.handle(gradient_from(server, worker=0, gradient=math.nan))
    assert server.diverged == "the last 50 gradients of worker 0 are not finite"


def test_params_that_would_overflow_mean_diverged_and_are_never_published():
    server = a_server(ASYNCHRONOUS, num_workers=1)
    server.handle(gradient_from(server, worker=0, gradient=-1.5e308))
    server.handle(gradient_from(server, worker=0, gradient=-1.5e308))
    assert server.steps == 2
    server.handle(gradient_from(server, worker=0, gradient=-1.5e308))
    assert server.diverged == "params after step 3 would not be finite"
    assert server.counts.rejected == 1
    assert np.isfinite(server.params).all()


@pytest.mark.parametrize("update", [nw.Momentum(), nw.Adam(), nw.AMSGrad(), nw.Nesterov()])
def test_a_nan_never_reaches_the_state_of_an_update(update):
    server = a_server(ASYNCHRONOUS, num_workers=3, update=update)
    server.handle(gradient_from(server, worker=0))
    server.handle(gradient_from(server, worker=1, gradient=math.nan))
    server.handle(gradient_from(server, worker=1))
    assert np.isfinite(server.params).all()
    assert server.steps == 2


# Versions


def test_a_server_has_few_enough_attributes_for_fast_access():
    """CPython stores up to 30 attributes of an instance compactly, and reads them faster than more of them."""
    assert len(vars(a_server(ASYNCHRONOUS, num_workers=1))) <= 30


def test_there_are_never_more_versions_than_tickets_in_flight_and_two_more():
    server = a_server(ASYNCHRONOUS, num_workers=5)
    for worker in [0, 1, 2, 3, 4, 0, 0, 3, 1, 4, 2, 2, 2] * 5:
        server.handle(gradient_from(server, worker))
        check_invariants(server)
    assert server._versions.num_slots <= 5 + 2


def test_asynchronous_steps_need_one_version_more_than_there_are_workers():
    server = a_server(ASYNCHRONOUS, num_workers=3)
    for worker in [0, 1, 2, 2, 1, 0, 0, 0, 1, 2] * 3:
        server.handle(gradient_from(server, worker))
        check_invariants(server)
    assert server._versions.num_slots == 3 + 1


def test_the_answer_is_the_vector_of_the_last_iterate_unless_it_is_another_one():
    server = a_server(ASYNCHRONOUS, num_workers=1)
    last = np.array(server.params)
    assert server.finish(last) is last
    averaging = a_server(ASYNCHRONOUS, num_workers=1, output=nw.UniformAverage())
    assert averaging.finish(last) is not last


def test_minibatch_workers_share_one_version():
    server = a_server(nw.MinibatchSGD(nw.Constant(0.1)), num_workers=50)
    for _ in range(3):
        for worker in range(50):
            server.handle(gradient_from(server, worker))
    assert server.steps == 3
    assert server._versions.num_slots <= 3


def test_a_worker_that_sent_something_valid_is_not_of_the_wrong_kind_any_more():
    rejections = Rejections()
    ticket, params = Ticket(0, 1, 0, 0), np.zeros(3)
    rejections.bad(ticket, np.zeros(2), params, range(4))
    assert rejections.wrong_kind == {1}
    rejections.good(1, 0)
    assert rejections.wrong_kind == set()
