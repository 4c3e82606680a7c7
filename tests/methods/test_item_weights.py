"""Means of fresh gradients are means over their items."""

import numpy as np
import pytest

import nowait as nw
from nowait.core import GradientArrived, Server

ITEMS = {0: 10, 1: 30, 2: 60}
METHODS = [
    nw.MinibatchSGD(nw.Constant(1.0)),
    nw.MSynchronousSGD(nw.Constant(1.0), m=3),
    nw.RennalaSGD(nw.Constant(1.0), batch=3),
    nw.ATA(nw.Constant(1.0), batch=3),
]


def one_round(method, items_of):
    """The params after one gradient of each worker, whose entry is its number plus one."""
    server = Server(method, np.zeros(1), 3)
    server.items_of = items_of
    server.start()
    for worker in range(3):
        [ticket] = server.in_flight.of(worker)
        server.handle(GradientArrived(ticket, np.array([worker + 1.0]), 1.0 + worker))
    assert server.steps == 1
    return server.params[0]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_a_mean_of_fresh_gradients_is_the_mean_over_their_items(method):
    assert one_round(method, ITEMS.get) == pytest.approx(-(10 * 1 + 30 * 2 + 60 * 3) / 100)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("items_of", [None, lambda worker: 60], ids=["unknown", "equal"])
def test_with_equal_batches_it_is_the_plain_mean_bit_for_bit(method, items_of):
    assert one_round(method, items_of) == -(1.0 + 2.0 + 3.0) * (1 / 3)


def test_the_weight_of_a_sum_follows_what_is_added_merged_and_cleared():
    server = Server(nw.MinibatchSGD(1.0), np.zeros(1), 2)
    server.start()
    total, other = server.sum(), server.sum()

    class Adding(nw.Method):
        def on_arrival(self, server, arrival):
            total.add(arrival, 2.0)
            other.add(arrival, 0.5)

    server.method = Adding()
    server.handle(GradientArrived(server.in_flight.of(0)[0], np.ones(1), 1.0))
    total.merge(other, -2.0)
    assert (total.weight, other.weight) == (1.0, 0.5)
    total.clear()
    assert total.weight == 0.0


def test_gradients_of_split_data_have_equal_weights():
    class Split:
        dimension, num_shards = 1, 3

        def initial(self):
            return np.zeros(1)

        def gradient(self, point, sample):
            return np.array([sample.worker + 1.0])

        def loss(self, point):
            return 0.0

        def items_of(self, worker):
            return ITEMS[worker]

    run = nw.simulate(Split(), METHODS[0], nw.speeds.Fixed([1.0, 1.0, 1.0]), steps=1)
    assert run.params[0] == pytest.approx(-2.0)
    Split.num_shards = 1
    run = nw.simulate(Split(), METHODS[0], nw.speeds.Fixed([1.0, 1.0, 1.0]), steps=1)
    assert run.params[0] == pytest.approx(-2.5)
