"""A method of your own, checked by the contract that every method keeps."""

from dataclasses import dataclass

import nowait as nw
from nowait.testing import METHOD_CHECKS


@dataclass
class Patient(nw.Method):
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
    check(Patient(nw.Constant(0.05)))
    print("kept:", check.__name__.replace("_", " "))
