"""A method of your own, tested by the contract suite that every method passes."""

from dataclasses import dataclass

import nowait as nw
from nowait.testing import METHOD_CHECKS


@dataclass
class Pairs(nw.Method):
    """Asynchronous SGD that steps along the sum of two arrivals at a time."""

    stepsize: nw.Stepsize

    def start(self, server):
        self.total = server.sum()
        super().start(server)

    def on_arrival(self, server, arrival):
        self.total.add(arrival)
        if self.total.count == 2:
            server.step(self.total, self.stepsize.at(arrival, server))
            self.total.clear()
        server.assign(arrival.worker)


for check in METHOD_CHECKS:
    check(Pairs(nw.Constant(0.05)))
    print("passed:", check.__name__.replace("_", " "))
