"""Asynchronous SGD: every gradient is applied when it arrives."""

from __future__ import annotations

from typing import final

from nowait.core import ApplyAtOnce, Arrival, Method, Server, StepsizeOrFloat, method_dataclass


@final
@method_dataclass
class AsynchronousSGD(Method):
    """Apply every gradient at once and give its worker the new params.

    Algorithm 1 of Mishchenko, Bach, Even and Woodworth, "Asynchronous SGD Beats Minibatch SGD Under Arbitrary
    Delays" (NeurIPS 2022). With ``DelayAdaptive`` the result depends on the number of workers, not on the
    longest delay; with ``Constant`` it is the classical method.

    >>> import nowait as nw
    >>> problem = nw.problems.NoisyQuadratic(dimension=10, sigma=0.1)
    >>> method = nw.AsynchronousSGD(nw.DelayAdaptive(0.1))
    >>> run = nw.simulate(problem, method, nw.speeds.Fixed([1.0, 10.0]), steps=200)
    >>> run.stats.steps
    200
    """

    stepsize: StepsizeOrFloat

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Apply the gradient and assign the worker a ticket at the new params."""
        server.apply(arrival, self.stepsize.at(arrival, server))
        server.assign(arrival.worker)

    def schedule(self) -> ApplyAtOnce:
        """Return the whole method as a schedule that can be compiled."""
        return ApplyAtOnce(self.stepsize)
