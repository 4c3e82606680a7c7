"""Runs in stages, for the tests of this folder."""

import numpy as np

import nowait as nw
from faulty import Watched

METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(0.05))
SECONDS = 60
"""How long a test waits for what must happen."""


class Stages(Watched):
    """Goes through stages: when the wanted number of workers has delivered three gradients each, the next begins.

    A stage is a function that is called at its beginning, and returns how many workers have to leave and to join before
    others count, and how many of them then have to deliver. After the last one the run stops.
    """

    def __init__(self, stages, workers, when_left):
        super().__init__(METHOD, self._enough)
        self.when_left = when_left
        self.stages, self.number = list(stages), workers
        self.count, self.leaves, self.joins = {}, 0, 0
        self._joined, self._left = self.on_join, self.on_leave
        self.on_join, self.on_leave = self._on_join, self._on_leave

    def _on_join(self, server, worker):
        self.count[worker] = 0
        self.joins -= 1
        self._joined(server, worker)

    def _on_leave(self, server, worker):
        self.count = {}
        self.leaves -= 1
        self._left(server, worker)
        self.when_left()

    def on_arrival(self, server, arrival):
        super().on_arrival(server, arrival)
        self.count[arrival.worker] = self.count.get(arrival.worker, 0) + 1

    def _enough(self, jobs):
        delivered = sum(count >= 3 for count in self.count.values())
        if delivered < self.number or self.leaves > 0 or self.joins > 0:
            return False
        if not self.stages:
            return True
        self.leaves, self.joins, self.number = self.stages.pop(0)()
        return False


def check_that_it_replays(run, problem):
    assert len(np.unique(run.trace.ticket)) == len(run.trace), "each ticket arrives once at most"
    assert np.array_equal(nw.replay(run.trace, problem, METHOD).last, run.last)


def lost(run):
    return sorted(int(event["worker"]) for event in run.trace.events if event["kind"] == 1)


def trained(stages, problem, when_left=lambda: None, **options):
    staged = Stages(stages, options["workers"], when_left)
    return nw.train(problem, staged, steps=10**9, callbacks=[staged], progress=False, **options)
