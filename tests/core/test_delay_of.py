"""The delay of a ticket has one definition, ``Server.delay_of``; compiled schedules use the same."""

import numpy as np

import nowait as nw
from nowait.core import GradientArrived, Server
from nowait.core.log import NoLog, Outcome

PROBLEM, SPEEDS = nw.problems.NoisyQuadratic(dimension=2), nw.speeds.Exponential([1.0, 2.0, 9.0])
BOUND = 3


class Plain(nw.Method):
    """Ringmaster ASGD without a schedule: every arrival is handled by Python."""

    def __init__(self):
        self.stepsize = nw.Constant(0.1)

    def on_arrival(self, server, arrival):
        assert arrival.delay == server.delay_of(arrival.ticket)
        if arrival.delay <= BOUND:
            server.apply(arrival, 0.1)
            assert server.delay_of(arrival.ticket) == arrival.delay + 1
        assert server.delay_of(server.assign(arrival.worker)) == 1


def test_arrivals_in_a_plan_have_the_delay_of_their_ticket_and_so_do_compiled_schedules():
    options = {"gradients": 300, "progress": False, "seed": 3}
    plain = nw.simulate(PROBLEM, Plain(), SPEEDS, **options)
    compiled = nw.simulate(PROBLEM, nw.RingmasterASGD(0.1, max_delay=BOUND), SPEEDS, **options)
    assert nw.RingmasterASGD(0.1, max_delay=BOUND).schedule() is not None
    assert plain.trace.delay.max() > BOUND
    assert np.array_equal(plain.trace.delay, compiled.trace.delay)


class Seen(NoLog):
    """Keeps the delays of arrivals."""

    def __init__(self):
        self.delays = []

    def arrived(self, arrival, live_workers):
        self.delays.append((arrival.outcome, arrival.delay))


def test_arrivals_at_a_server_have_the_delay_of_their_ticket_also_late_ones():
    log = Seen()
    server = Server(Plain(), np.ones(2), 2, log=log)
    first, second = (command.ticket for command in server.start())
    for time in range(1, 4):
        assert server.delay_of(second) == time
        [assign] = server.handle(GradientArrived(first, np.ones(2), float(time)))
        first = assign.ticket
    server.cancel(second.worker)
    assert server.delay_of(second) == 4
    server.handle(GradientArrived(second, np.ones(2), 4.0))
    assert log.delays == [(Outcome.APPLIED, 1)] * 3 + [(Outcome.LATE, 4)]
