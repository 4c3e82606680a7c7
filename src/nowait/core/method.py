"""The interface of a method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, field
from typing import TYPE_CHECKING, TypeVar, dataclass_transform

from nowait.core import checks
from nowait.core.messages import Ticket
from nowait.core.schedule import ApplyAtOnce
from nowait.core.state import State
from nowait.core.stepsizes import Stepsize, as_stepsize

if TYPE_CHECKING:
    from nowait.core.server import Arrival, Server
    from nowait.core.updates import Update


M = TypeVar("M", bound="Method")


class Method(ABC):
    """Decides what to do with each gradient and what each worker computes next, with the verbs of the server.

    Three rules. ``start`` initialises all run state, so that one object can be used for many runs, one after the other;
    so does ``resume``, which a method with state of its own overrides together with ``state``.
    Handlers call the server's verbs on an arrival before they change their own state: the first verb checks the
    gradient, and a bad one ends ``on_arrival`` there, before anything has changed. After any worker has left, the
    method still makes steps with the remaining ones.
    """

    makes_its_own_update = False
    """Whether its steps already include an update rule: then ``update`` must be plain SGD."""
    needs_shared_data = False
    """Whether all workers must draw from the same data: then a run on split data is refused."""

    def __post_init__(self) -> None:
        stepsize = getattr(self, "stepsize", MISSING)
        if stepsize is not MISSING:
            checks.store(self, stepsize=as_stepsize(stepsize))

    def start(self, server: Server) -> None:
        """Called when the run starts. The default gives every worker a ticket."""
        for worker in server.workers:
            server.assign(worker)

    def state(self) -> State:
        """Return what a checkpoint keeps of the run state, by name: numbers, texts, lists of these, vectors and sums.

        A checkpoint reads it between two events and must not change it. The default keeps nothing.
        """
        return {}

    def resume(self, server: Server, state: State) -> None:
        """Called instead of ``start`` when the run continues from a checkpoint, with what ``state`` returned there.

        Its sums come back as values for ``GradientSum.restore``. The workers may be others. The default starts again.
        """
        self.start(server)

    @abstractmethod
    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Called when a gradient arrived. It is dropped unless the method applies it or adds it to a sum."""

    def on_join(self, server: Server, worker: int) -> None:
        """Called when a worker joined. The default gives it a ticket."""
        server.assign(worker)

    def on_leave(self, server: Server, worker: int) -> None:  # noqa: B027 (optional)
        """Called when a worker left, after its tickets were removed."""

    def on_timer(self, server: Server) -> None:  # noqa: B027 (optional)
        """Called at a time that was set with ``server.wake``; it is ``server.now``."""

    def on_reissue(self, server: Server, rejected: Ticket, ticket: Ticket) -> None:  # noqa: B027
        """Called when a gradient was rejected and its ticket issued again, for methods that store data by ticket id."""

    def schedule(self) -> ApplyAtOnce | None:
        """Return a declaration that the method does exactly what ``ApplyAtOnce`` says, or None.

        It makes simulations faster and changes nothing else; the contract suite compares it with ``on_arrival``.
        """
        return None

    def stepsize_divisor(self, num_workers: int) -> float:
        """Return the number by which 1/L is divided to estimate a stepsize: about the delay of gradients when used.

        It is M if every arrival makes a step, along itself or along a mean of gradients that were used before. A method
        with rounds, whose gradients are all fresh, returns 1; one that waits for b new gradients before a step, M/b.
        """
        return float(num_workers)

    def why_no_step(self) -> str:
        """Return a sentence with the likely cause if the method makes no step for a very long time; empty if unknown.

        Runs warn of that; see ``nowait.core.standstill``.
        """
        return ""

    def weighs_workers_equally(self, num_workers: int) -> bool:
        """Return True if, in the long run, the data of all workers have the same weight, however fast the workers are.

        Runs on split data warn of methods that return False, because they minimise a mixture in which fast workers have
        more weight. The default is False.
        """
        return False

    def usual_update(self) -> Update | None:
        """Return the default update of a run; None for that of the problem."""
        return None

    def momentum_with(self, update: Update) -> float:
        """Return the factor of the momentum that the method adds to the steps of this update; most add none."""
        return 0.0

    def check_update(self, update: Update) -> None:
        """Raise if the method cannot use this update. Called before any worker starts."""
        if self.makes_its_own_update and not update.is_plain:
            raise ValueError(
                f"{type(self).__name__} makes its own update: {type(update).__name__} on top of it would change its "
                f"steps; leave out the update"
            )

    def tuned_as(self, update: Update) -> tuple[Method, Update]:
        """Return the method, and its update, that studies tune in place of this one; by default the method itself.

        ``update`` is the one of the run. For a method whose stepsize is that of another method by definition: ``Auto``
        returns minibatch SGD, with Nesterov's momentum if ``update`` is plain SGD.
        """
        return self, update

    def pending_stepsize(self, server: Server, delay: int) -> float:
        """Return the stepsize of a gradient still in flight at the end: its weight in averaging outputs.

        Checkpoints call it during the run as well, so it must not change the method.
        """
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
