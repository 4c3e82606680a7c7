"""Statistics at the end of params: the first steps take a mean, and later ones follow as fast as with one worker."""

import numpy as np
import pytest

import nowait as nw
from nowait.core import Assign, GradientArrived, Server
from nowait.core.statistics import lengthened, lengthening

METHOD = nw.AsynchronousSGD(nw.Constant(0.5))


def follow(num_workers, momentum, steps):
    """Return the statistic after some steps of workers that arrive in turn, whose batches all have the statistic 1."""
    server = Server(
        METHOD, np.zeros(3), num_workers, statistics=2, statistics_momentum=momentum if num_workers > 1 else 1.0
    )
    tickets = [command.ticket for command in server.start()]
    for number in range(steps):
        ticket = tickets.pop(0)
        before = server.point(ticket)[1]
        gradient = np.array([0.0, before + momentum * (1.0 - before), 1.0])
        gradient.flags.writeable = False
        [command] = server.handle(GradientArrived(ticket, gradient, float(number)))
        tickets.append(command.ticket)
    return float(server.params[1])


@pytest.mark.parametrize("momentum", [0.1, 0.02])
@pytest.mark.parametrize("num_workers", [2, 5, 9, 40])
def test_statistics_of_many_workers_are_as_near_as_those_of_one(num_workers, momentum):
    alone = 1.0 - follow(1, momentum, 80)
    assert 1.0 - follow(num_workers, momentum, 80) < 1.05 * alone
    assert alone == pytest.approx((1.0 - momentum) ** 80)


def test_the_first_steps_take_a_mean():
    server = Server(METHOD, np.array([0.0, 100.0, 1.0]), 4, statistics=2)
    for number, command in enumerate(server.start()):
        server.handle(GradientArrived(command.ticket, np.array([0.0, number, 1.0]), 1.0))
        assert server.params[1] == pytest.approx(number / 2)


def test_a_worker_that_sends_the_statistics_of_its_batch_is_taken_at_its_word():
    assert lengthening(1.0, 7) == 1.0
    assert lengthening(0.3, 1) == 1.0


def test_a_change_is_made_longer_in_place_and_a_read_only_array_is_copied():
    gradient, point = np.array([5.0, 3.0, 1.0]), np.array([7.0, 2.0, 1.0])
    frozen = gradient.copy()
    frozen.flags.writeable = False
    assert lengthened(frozen, point, 2, 4.0).tolist() == [5.0, 6.0, 1.0]
    assert frozen.tolist() == [5.0, 3.0, 1.0]
    assert lengthened(gradient, point, 2, 4.0) is gradient
    assert gradient.tolist() == [5.0, 6.0, 1.0]


@pytest.mark.parametrize(
    "method",
    [nw.Auto(0.1, 0.9), nw.DelayedNesterov(0.1, every=2), nw.OrderedMomentum(0.1, beta=0.9)],
    ids=lambda method: type(method).__name__,
)
def test_a_momentum_moves_params_and_no_statistics(method):
    """The statistics of a step are those of the gradients in it, without those of earlier gradients in a momentum."""
    server = Server(method, np.array([0.0, 0.0, 1.0]), 1, statistics=2)
    [command] = server.start()
    for number in range(12):
        [command] = server.handle(GradientArrived(command.ticket, np.array([1.0, number, 1.0]), 1.0 + number))
        assert server.params[1] == pytest.approx(number)
    assert server.params[0] < -0.1 * 12


def test_with_equal_workers_auto_has_the_statistics_of_minibatches():
    params = []
    for method, update in ((nw.Auto(0.1, 0.9), None), (nw.MinibatchSGD(0.1), nw.Nesterov(0.9))):
        server = Server(method, np.array([0.0, 0.0, 1.0]), 2, statistics=2, update=update)
        tickets = [command.ticket for command in server.start()]
        for number in range(12):
            gradient = np.array([1.0, float(number**2), 1.0])
            commands = server.handle(GradientArrived(tickets.pop(0), gradient, 1.0 + number // 2))
            tickets += [command.ticket for command in commands if isinstance(command, Assign)]
        params.append(server.params)
    np.testing.assert_allclose(*params, rtol=1e-12)
