"""The interface of a method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, field
from typing import TYPE_CHECKING, TypeVar, dataclass_transform

from nowait.core import checks
from nowait.core.messages import Ticket
from nowait.core.schedule import ApplyAtOnce
from nowait.core.stepsizes import Stepsize, as_stepsize

if TYPE_CHECKING:
    from nowait.core.server import Arrival, Server


M = TypeVar("M", bound="Method")


class Method(ABC):
    """Decides what becomes of each gradient and what each worker does next, with the verbs of the server.

    Three rules. ``start`` makes all run state anew, so one object serves many runs, one after the other. Handlers use
    the server's verbs on an arrival before they change state of their own: the first verb checks the gradient, and a
    bad one ends ``on_arrival`` there, as if it had never come. After any leave the method still makes steps with the
    workers that are left.
    """

    makes_its_own_update = False
    """Whether its steps are whole updates already: then ``update`` must stay plain SGD."""

    def __post_init__(self) -> None:
        stepsize = getattr(self, "stepsize", MISSING)
        if stepsize is not MISSING:
            checks.store(self, stepsize=as_stepsize(stepsize))

    def start(self, server: Server) -> None:
        """The run begins: give every worker a ticket."""
        for worker in server.workers:
            server.assign(worker)

    @abstractmethod
    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """A gradient arrived. Neither applied nor added to a sum, it is dropped."""

    def on_join(self, server: Server, worker: int) -> None:
        """A worker joined: give it a ticket."""
        server.assign(worker)

    def on_leave(self, server: Server, worker: int) -> None:  # noqa: B027 (most methods need not care)
        """A worker left; its tickets are gone already."""

    def on_timer(self, server: Server) -> None:  # noqa: B027 (most methods set no timer)
        """A time asked for with ``server.wake`` has come; it is ``server.now``."""

    def on_reissue(self, server: Server, rejected: Ticket, ticket: Ticket) -> None:  # noqa: B027
        """A gradient was rejected and its ticket issued anew: for methods that keep something by ticket id."""

    def schedule(self) -> ApplyAtOnce | None:
        """A declaration that this method does what ``ApplyAtOnce`` says, and nothing else; None without one.

        It makes simulations quicker and changes nothing else; the contract suite compares it with ``on_arrival``.
        """
        return None

    def stepsize_divisor(self, num_workers: int) -> float:
        """Stepsizes of a sensible order are 1/L divided by this: about how many steps old gradients are when used.

        It is M if every arrival makes a step, along itself or along a mean of gradients that were used before. A method
        of rounds, whose gradients are all fresh, returns 1; one that waits for b new gradients before a step, M/b.
        """
        return float(num_workers)

    def pending_stepsize(self, server: Server, delay: int) -> float:
        """The stepsize a gradient still in flight at the end would get, for the weights of averaging outputs."""
        stepsize = getattr(self, "stepsize", None)
        if not isinstance(stepsize, Stepsize):
            raise TypeError(
                f"{type(self).__name__} has no stepsize, by which an averaging output weighs the gradients in flight "
                f"at the end: give it one, or override pending_stepsize"
            )
        return float(stepsize(delay, server.num_workers, server.steps))


@dataclass_transform(field_specifiers=(field,))
def method_dataclass(cls: type[M]) -> type[M]:
    """Apply ``dataclass``; type checkers then accept a number for a field annotated ``StepsizeOrFloat``."""
    return dataclass(cls)
