"""Auto: chooses while it trains how many gradients a step waits for, with the stepsize and momentum of minibatches."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np

from nowait.core import (
    Arrival,
    GradientSum,
    Method,
    Nesterov,
    Server,
    StepsizeOrFloat,
    Update,
    checks,
    method_dataclass,
)
from nowait.core.notes import WAITS_FOR, Waiting
from nowait.core.types import Floats
from nowait.methods.minibatch_sgd import MinibatchSGD
from nowait.numerics.elementary import added

KEPT = 8
"""How many times of a worker are kept."""
ROUNDS, SKIPPED = 12, 4
"""Rounds are simulated from the kept times; the first ones do not count, because they depend on how it began."""
SPREAD = (5**0.5 - 1) / 2
"""Multiples of it, modulo 1, are evenly spread."""
PATIENCE = 3.0
"""A round that takes longer than the last one by this factor is overdue."""
LATE = 1.5
"""A worker whose first gradient takes longer than usual by this factor is late."""
SHORTEST = 1e-6
"""The least time of a gradient, divided by the longest one, if a worker took no time at all."""
NEW_GROUP = 0.1
"""The least weight of a new group of gradients in the estimates of noise."""
ENOUGH = 4
"""The least degrees of freedom of the noise estimate for rounds of one gradient."""
ESTIMATES = ("variance", "mean_squared", "num_groups")
"""The fields of the noise estimate that a checkpoint keeps."""
USUAL_MOMENTUM = 0.9
"""The momentum with plain SGD, if none is given."""
ASYNCHRONOUS = 0
"""Instead of a number of gradients: a step for every gradient."""


@final
@method_dataclass
class Auto(Method):
    """Begins as ``MinibatchSGD`` and chooses while it trains how many gradients a step waits for, or steps with each.

    A round makes a step along the mean of the first m fresh gradients, with Nesterov's momentum; later ones are
    dropped. Every few rounds, m is chosen again: the cheapest by (seconds of a round)·(1 + B/m), where B, the noise
    scale, is estimated from the norms of gradients and of their sums, and the seconds from the workers' last times.
    With asynchronous steps every gradient makes a step of 1/M of a round's, and the momentum moves once per 2M
    gradients; they are chosen if their cost, seconds of M gradients times 1.2·(1 + B/M), is the lowest.

    ``stepsize`` and ``momentum`` are those of minibatches of all workers: as for DistributedDataParallel with
    ``torch.optim.SGD(lr, momentum, nesterov=True)``. They are not tuned again. Steps of fewer gradients are shorter:
    by (1 + B/M)/(1 + B/k). A schedule counts M gradients as one step, also those that were dropped. The workers must
    draw from the same data.

    ``momentum`` None is 0.9 with plain SGD, the default. With another update, such as ``nw.Adam()``, the method adds no
    momentum of its own, and ``stepsize`` is the learning rate of that update for minibatches. Updates that average
    gradients, as Adam does, divide by their size: a round of few gradients gets the square root of the factor above,
    and an asynchronous step is of 1/(2√M). With a momentum that is a sum, as in ``torch.optim.SGD(momentum=0.9)`` and
    Muon, there are rounds only.
    """

    needs_shared_data = True
    CAUTION: ClassVar[float] = 1.2
    """Asynchronous steps are so many times shorter than 1/M, and their cost is so many times higher."""
    CAUTION_WITH_MEANS: ClassVar[float] = 2.0
    """With updates that average gradients, asynchronous steps are shorter than 1/√M by this factor."""
    NOISE_FACTOR: ClassVar[float] = 2.0
    """B is so many times σ²/‖∇F‖²."""
    MARGIN: ClassVar[float] = 0.1
    """What a choice must save at least, so that the method does not change its mind for nothing."""

    stepsize: StepsizeOrFloat
    momentum: float | None = None
    waits_for: int = field(init=False, repr=False, compare=False)
    """The number of gradients in a round; 0 for asynchronous steps."""
    noise: Noise = field(init=False, repr=False, compare=False)
    times: Times = field(init=False, repr=False, compare=False)
    total: GradientSum = field(init=False, repr=False, compare=False)
    """The gradients of this round, or, with asynchronous steps, since the momentum moved."""
    beta: float = field(init=False, repr=False, compare=False)
    """The momentum of the run; 0 if there is none besides that of the update."""
    velocity: GradientSum = field(init=False, repr=False, compare=False)
    direction: GradientSum = field(init=False, repr=False, compare=False)
    single: GradientSum = field(init=False, repr=False, compare=False)
    """The gradient of the last round, if it was a round of one whose noise is measured with the next one's."""
    single_squares: float = field(init=False, repr=False, compare=False)
    """The squared norm of that gradient."""
    progress: float = field(init=False, repr=False, compare=False)
    """The gradients that have arrived, divided by the number of workers at that time."""
    rounds: int = field(init=False, repr=False, compare=False)
    round_seconds: float = field(init=False, repr=False, compare=False)
    """How long the last round took; 0 if there was none."""
    began: float = field(init=False, repr=False, compare=False)
    """When the round began."""
    due: float = field(init=False, repr=False, compare=False)
    """When the round is taking far longer than the last one."""
    timer: float = field(init=False, repr=False, compare=False)
    """The next time at which a timer expires; infinite if none is set."""
    mean_weight: float = field(init=False, repr=False, compare=False)
    """The mean of the weights of the workers' gradients: 1 if all have as many items."""
    until_choice: int = field(init=False, repr=False, compare=False)
    """The gradients that are used before the next choice with asynchronous steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum is not None:
            self.momentum = checks.fraction(self.momentum, "momentum", "it would never fade")
        self.makes_its_own_update = bool(self.momentum)

    def start(self, server: Server) -> None:
        """Wait for all workers, and give each a ticket."""
        self._begin(server)
        self._note(server)

    def state(self) -> dict[str, Any]:
        """Return what it has chosen and learned, and the momentum; gradients of the present round are lost."""
        names = ("waits_for", "progress", "rounds", "round_seconds", "until_choice")
        velocity = {"velocity": self.velocity} if self.beta else {}
        return {name: getattr(self, name) for name in names} | self.noise.state() | self.times.state() | velocity

    def resume(self, server: Server, state: dict[str, Any]) -> None:
        """Go on with the choice, the estimates and the momentum of before; give every worker a ticket."""
        self._begin(server)
        if state["waits_for"] == ASYNCHRONOUS:
            self.waits_for = ASYNCHRONOUS
        else:
            self.waits_for = min(state["waits_for"], self.waits_for)
        self.rounds, self.round_seconds, self.progress = state["rounds"], state["round_seconds"], state["progress"]
        self.until_choice = state["until_choice"]
        self.noise.restore(state)
        self.times.restore(state, server)
        if "velocity" in state:
            self.velocity.restore(state["velocity"])
        self._note(server, resumed=1)

    def _begin(self, server: Server) -> None:
        self.beta = self.momentum_with(server.update)
        self.total, self.velocity, self.direction = server.sum(), server.sum(), server.sum()
        self.single, self.single_squares = server.sum(), 0.0
        self.noise, self.times = Noise(server.sum()), Times()
        self.waits_for, self.rounds, self.until_choice = max(1, server.num_workers), 0, 0  # all may have left
        self.progress = server.counts.gradients / max(1, server.num_workers)
        self.round_seconds, self.began, self.due, self.timer = 0.0, server.now, 0.0, math.inf
        self._weigh_workers(server)
        for worker in server.workers:
            self._assign(server, worker)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Make a step, or hold the gradient for the step of a round, or drop a late one."""
        if self.waits_for == ASYNCHRONOUS:
            self._step_at_once(server, arrival)
            return
        if arrival.delay > 1:
            self._assign(server, arrival.worker)
            self._count(server, arrival)
            return
        weight = server.weight_of(arrival.worker)
        self.total.add(arrival, weight)
        self.noise.add(arrival.gradient_norm, weight)
        self._count(server, arrival)
        if self.total.count == 1:
            self.due = self.began + PATIENCE * (self.round_seconds or server.now - self.began)
        if not self.times.are_known(server) and self.total.count in _candidates(server.num_workers)[1:]:
            self._choose(server)
        self._step_if_complete(server)
        self._set_timer(server)

    def on_join(self, server: Server, worker: int) -> None:
        """Wait for the new worker too, if the method waits for all, and give it a ticket."""
        if self.waits_for == server.num_workers - 1 != ASYNCHRONOUS:
            self.waits_for = server.num_workers
        if self.waits_for != ASYNCHRONOUS:
            self._note(server, joined=worker)
        self._weigh_workers(server)
        self._assign(server, worker)

    def on_leave(self, server: Server, worker: int) -> None:
        """Forget the worker's times, and do not wait for it."""
        self.times.forget(worker)
        self._weigh_workers(server)
        if self.waits_for != ASYNCHRONOUS:
            self.waits_for = max(1, min(self.waits_for, server.num_workers))  # all may have left
            self._note(server, left=worker)
            self._step_if_complete(server)

    def on_timer(self, server: Server) -> None:
        """Choose again if the round takes far longer than usual: a worker may not deliver any more."""
        if server.now >= self.timer:
            self.timer = math.inf
        if self.waits_for == ASYNCHRONOUS or self.total.count == 0:
            return
        if server.now >= self.due:
            self.due = self.began + PATIENCE * (server.now - self.began)
            self._choose(server, overdue=True)
        self._step_if_complete(server)
        self._set_timer(server)

    def stepsize_divisor(self, num_workers: int) -> float:
        """Return 1: the stepsize is that of minibatches of fresh gradients."""
        return 1.0

    def momentum_with(self, update: Update) -> float:
        """Return the momentum that is added to steps of this update: 0.9 to those of plain SGD, if none was given."""
        if self.momentum is not None:
            return self.momentum
        return USUAL_MOMENTUM if update.is_plain else 0.0

    def check_update(self, update: Update) -> None:
        """Raise if the update has a momentum besides that of the method, or scales gradients."""
        if self.makes_its_own_update and not update.is_plain:
            raise ValueError(
                f"Auto has momentum {self.momentum:g} of its own, and {update!r} would be on top of it: leave out the "
                f"momentum to train with this update, or the update to train with Nesterov's momentum"
            )
        if update.scales_gradient:
            raise ValueError(
                f"Auto makes steps of few gradients shorter, but {update!r} scales gradients instead of steps: leave "
                f'out scale="gradient", or ScaleGradient'
            )

    def tuned_as(self, update: Update) -> tuple[Method, Update]:
        """Return minibatch SGD with the momentum of the run, for which stepsize and momentum are meant."""
        momentum = self.momentum_with(update)
        return MinibatchSGD(self.stepsize), Nesterov(momentum) if momentum else update

    def pending_stepsize(self, server: Server, delay: int) -> float:
        """Return the stepsize of a round, or of an asynchronous step."""
        share = self._share_of_one(server) if self.waits_for == ASYNCHRONOUS else 1.0
        return self._stepsize(server, delay) * share

    def _set_timer(self, server: Server) -> None:
        """Set a timer for when this round takes far longer than the last one, if none expires before."""
        if not 0 < self.total.count < self.waits_for:
            return
        if self.due <= server.now:  # even the first gradient was late; the others may not come
            self.due = self.began + PATIENCE * (server.now - self.began)
        if server.now < self.due < self.timer:
            self.timer = self.due
            server.wake(self.due)

    def _weigh_workers(self, server: Server) -> None:
        weights = [server.weight_of(worker) for worker in server.workers]
        self.mean_weight = math.fsum(weights) / len(weights) if weights else 1.0

    def _assign(self, server: Server, worker: int) -> None:
        server.assign(worker)
        self.times.begin(worker, server.now)

    def _step_if_complete(self, server: Server) -> None:
        count = self.total.count
        if count == 0 or not server.workers or (count < self.waits_for and server.in_flight):
            return
        batch = self._noise_scale()
        share = min(1.0, (1 + batch / server.num_workers) / (1 + batch / count))
        if server.update.averages_gradients:  # Adam divides by the size of gradients, which has grown with their noise
            share = math.sqrt(share)
        self._measure_noise(server)
        stepsize = self._stepsize(server, 1) * share
        if self.beta == 0:
            server.step(self.total, stepsize, 1 / self.total.weight)
        else:
            self._move_momentum(share / self.total.weight)
            self.direction.merge(self.total, 1 / self.total.weight)
            self._step_along_direction(server, stepsize, share)
        self.total.clear()
        self.round_seconds, self.began = server.now - self.began, server.now
        self.rounds += 1
        if self.rounds <= 5 or self.rounds % 5 == 0:
            self._choose(server)
        for worker in server.workers:
            if server.in_flight.first_of(worker) is None:
                self._assign(server, worker)

    def _measure_noise(self, server: Server) -> None:
        """Estimate the noise from the round that is complete; from two successive rounds, if they have one gradient."""
        if self.single.count == 0 and self.total.count > 1:
            self.noise.end_sum(self.total, server.num_workers)
            return
        self.single.merge(self.total)
        self.single_squares, self.noise.squares = self.single_squares + self.noise.squares, 0.0
        if self.single.count > 1:
            self.noise.squares, self.single_squares = self.single_squares, 0.0
            self.noise.end_sum(self.single, server.num_workers)
            self.single.clear()

    def _step_at_once(self, server: Server, arrival: Arrival) -> None:
        if self.single.count:  # the next round of one gradient will not come
            self.single_squares = 0.0
            self.single.clear()
        weight, share = server.weight_of(arrival.worker), self._share_of_one(server)
        stepsize = self._stepsize(server, arrival.delay) * share
        self.total.add(arrival, weight)
        self.noise.add(arrival.gradient_norm, weight)
        self._count(server, arrival)
        if self.total.count < 2 * server.num_workers:
            server.apply(arrival, stepsize * weight)
        else:
            self._end_period(server, arrival, stepsize, share)
        self.until_choice -= 1
        if self.until_choice <= 0 and self.total.count == 0:
            self._choose(server)
        self._assign(server, arrival.worker)

    def _end_period(self, server: Server, arrival: Arrival, stepsize: float, share: float) -> None:
        """Move the momentum, and make a step along it and the gradient."""
        weight = server.weight_of(arrival.worker)
        self.noise.end_sum(self.total, server.num_workers)
        if self.beta == 0:
            server.apply(arrival, stepsize * weight)
        else:
            self._move_momentum(share)
            self.direction.add(arrival, weight)
            self._step_along_direction(server, stepsize, share)
        self.total.clear()

    def _move_momentum(self, share: float) -> None:
        self.velocity.merge(self.velocity, self.beta - 1)
        self.velocity.merge(self.total, share)

    def _step_along_direction(self, server: Server, stepsize: float, share: float) -> None:
        """Make a step along the direction and the momentum, whose gradients were multiplied by their share already."""
        count = self.direction.count
        self.direction.merge(self.velocity, self.beta / share, statistics=False)
        self.direction.count = count  # by which statistics are moved, without all the gradients of the momentum
        server.step(self.direction, stepsize)
        self.direction.clear()

    def _share_of_one(self, server: Server) -> float:
        """Return the length of an asynchronous step, divided by that of a round of all workers."""
        count = max(1, server.num_workers)
        averages = server.update.averages_gradients
        shorter = self.CAUTION_WITH_MEANS * math.sqrt(count) if averages else self.CAUTION * count
        return 1 / (shorter * self.mean_weight)

    def _noise_scale(self) -> float:
        """Return B."""
        return self.noise.scale(self.NOISE_FACTOR, self.total, self.mean_weight)

    def _stepsize(self, server: Server, delay: int) -> float:
        """Return the stepsize of a round of all workers; its schedule counts as many gradients as a step."""
        return float(self.stepsize(delay, server.num_workers, max(1, math.ceil(self.progress - 1e-6))))

    def _count(self, server: Server, arrival: Arrival) -> None:
        self.times.add(arrival)
        self.progress += 1 / server.num_workers

    def _choose(self, server: Server, *, overdue: bool = False) -> None:
        """Choose how many gradients a round waits for, if another number is clearly cheaper."""
        self.until_choice = 6 * server.num_workers  # three periods of the momentum
        times = self.times.of(server)
        if times is None:
            return
        is_guess = not self.noise.is_known and self.noise.freedom == 0 and self.total.count <= 1
        batch = float(server.num_workers) if is_guess else self._noise_scale()
        costs = costs_of(times, batch, self.CAUTION, present=self.waits_for)
        if not (self.noise.is_known or overdue) or not _may_step_at_once(server.update):
            costs[ASYNCHRONOUS] = math.inf  # the next rounds may know more
        if not (self.noise.is_known or self.noise.freedom >= ENOUGH or (overdue and self.total.count == 1)):
            costs[1] = math.inf
        best = min(costs, key=lambda count: costs[count])
        if costs[best] < (1 - self.MARGIN) * costs[self.waits_for]:
            if self.waits_for == ASYNCHRONOUS:
                self.began = server.now
            before, self.waits_for = self.waits_for, best
            self._note_choice(server, before, None if is_guess else batch, times, costs)

    def _note_choice(
        self, server: Server, before: int, noise: float | None, times: Floats, costs: dict[int, float]
    ) -> None:
        means = _means(times).tolist()
        middle = sorted(means)[(len(means) - 1) // 2]
        slowest = max(range(len(means)), key=means.__getitem__)
        self._note(
            server,
            before=before,
            noise=noise,
            cost=costs[self.waits_for],
            cost_before=costs[before],
            cost_of_all=costs[server.num_workers],
            slowest=list(server.workers)[slowest],
            times_slower=means[slowest] / middle,
        )

    def _note(self, server: Server, **more: Any) -> None:
        if server.workers:
            server.note(WAITS_FOR, Waiting(self.waits_for, server.num_workers, **more).numbers())


def _may_step_at_once(update: Update) -> bool:
    """Return False if the momentum of the update is a sum, which would fade within the delay of gradients."""
    return update.averages_gradients or update.momentum_factor == 0.0


def costs_of(times: Floats, noise: float, caution: float, present: int) -> dict[int, float]:
    """Return the relative time to a target by the number of gradients in a round; for 0 with asynchronous steps.

    ``times`` has the last times of every worker in its rows. The number of steps to a target is proportional to
    1 + noise/m, if each is along the mean of m gradients. Of many workers some numbers are left out, though not
    ``present``.
    """
    num_workers = len(times)
    costs = {ASYNCHRONOUS: caution * num_workers / added(1 / _means(times)) * (1 + noise / num_workers)}
    counts = sorted({*_candidates(num_workers), present} - {ASYNCHRONOUS})
    for count, seconds in zip(counts, round_seconds(times, counts).tolist(), strict=True):
        costs[count] = seconds * (1 + noise / count)
    return costs


def _means(times: Floats) -> Floats:
    """Return the mean time of every worker, with the same bits everywhere."""
    means = times[:, 0] + 0.0
    for column in range(1, times.shape[1]):
        means += times[:, column]
    means /= times.shape[1]
    return means


def _candidates(num_workers: int) -> list[int]:
    """Return numbers of gradients up to that of the workers, which grow by an eighth or by 1.

    >>> _candidates(1), _candidates(6), _candidates(20)
    ([1], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 19, 20])
    """
    counts = [1]
    while counts[-1] < num_workers:
        counts.append(min(num_workers, counts[-1] + 1 + counts[-1] // 8))
    return counts


def round_seconds(times: Floats, counts: Sequence[int]) -> Floats:
    """Return the mean seconds of rounds that wait for these numbers of gradients, if workers are not interrupted.

    A worker that is late finishes its gradient in vain, and joins the round that is then open.
    """
    num_workers, kept = times.shape
    columns, rows, last = np.arange(num_workers), np.arange(len(counts)), np.array(counts) - 1
    free = np.tile(times[:, 0] * (SPREAD * (1 + columns) % 1.0), (len(counts), 1))
    job = np.ones((len(counts), num_workers), np.int64)
    end = skipped = np.zeros(len(counts))
    for number in range(ROUNDS):
        begun = np.maximum(free, end[:, None])
        fresh = begun + times[columns, job % kept]
        end = np.sort(fresh, axis=1)[rows, last]
        takes_part = begun < end[:, None]
        free = np.where(takes_part, fresh, free)
        job += takes_part
        if number == SKIPPED - 1:
            skipped = end
    return (end - skipped) / (ROUNDS - SKIPPED)


@final
class Times:
    """The last times of every worker, by its number."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}
        self._began: dict[int, float] = {}
        """When a worker was given its present ticket, though a bad gradient may have been repeated since."""

    def begin(self, worker: int, now: float) -> None:
        """Note when a worker begins a gradient."""
        self._began[worker] = now

    def add(self, arrival: Arrival) -> None:
        """Keep the time of a gradient."""
        seconds = self._seconds.get(arrival.worker)
        if seconds is None:
            seconds = self._seconds[arrival.worker] = deque(maxlen=KEPT)
        seconds.append(arrival.time - arrival.started)

    def forget(self, worker: int) -> None:
        """Forget a worker that has left."""
        self._seconds.pop(worker, None)
        self._began.pop(worker, None)

    def state(self) -> dict[str, Any]:
        """Return the times of each worker, after its number, for a checkpoint."""
        return {"times": [[worker, *seconds] for worker, seconds in self._seconds.items()]}

    def restore(self, state: dict[str, Any], server: Server) -> None:
        """Take the times of a checkpoint, of workers that are still there."""
        for worker, *seconds in state["times"]:
            if worker in server.workers:
                self._seconds[worker] = deque(seconds, maxlen=KEPT)

    def are_known(self, server: Server) -> bool:
        """Return True if every worker has delivered a gradient."""
        return len(self._seconds) == server.num_workers

    def of(self, server: Server) -> Floats | None:
        """Return the last times of each live worker in a row; None if there are none above 0.

        None is shorter than the time that the worker's present gradient has taken so far. A worker that has not
        delivered yet is taken to be like the others, but once it is late, to need twice the time so far.
        """
        known = sorted(added(np.array(seconds)) / len(seconds) for seconds in self._seconds.values())
        if not known:
            return None
        usual = known[len(known) // 2]
        rows = np.empty((server.num_workers, KEPT))
        for row, worker in zip(rows, server.workers, strict=True):
            is_idle = server.in_flight.first_of(worker) is None
            so_far = 0.0 if is_idle else server.now - self._began[worker]
            seconds = self._seconds.get(worker)
            if seconds is None:
                row[:] = usual if so_far <= LATE * usual else 2 * so_far
            else:
                row[:] = np.resize(list(seconds), KEPT)
            np.maximum(row, so_far, out=row)
        if known[0] <= 0:  # a clock may be too coarse for a gradient
            longest = float(rows.max())
            if longest <= 0:
                return None
            np.maximum(rows, SHORTEST * longest, out=rows)
        return rows


@final
@dataclass
class Noise:
    """The variance of gradients and the square of their mean, estimated from the norms of gradients and of their sums.

    The variance is that within a sum, because gradients of different rounds have different points. The mean is that of
    several rounds: what cancels out in between, such as oscillations, is no progress.
    """

    group: GradientSum
    squares: float = 0.0
    """The weighted sum of the squared norms of the gradients in the present sum."""
    variance: float = 0.0
    mean_squared: float = 0.0
    num_groups: int = 0
    """How many groups of sums the estimates are made of."""
    scatter: float = 0.0
    freedom: int = 0
    """Of the sums in the present group: their scatter and its degrees of freedom."""

    def state(self) -> dict[str, Any]:
        """Return the estimates for a checkpoint, without the present group."""
        return {name: getattr(self, name) for name in ESTIMATES}

    def restore(self, state: dict[str, Any]) -> None:
        """Take the estimates of a checkpoint."""
        for name in ESTIMATES:
            setattr(self, name, state[name])

    @property
    def is_known(self) -> bool:
        """True once a group was complete."""
        return self.num_groups > 0

    def add(self, norm: float, weight: float) -> None:
        """Count a gradient, which the present sum contains."""
        self.squares += weight * squared(norm)

    def end_sum(self, total: GradientSum, num_workers: int) -> None:
        """Take what a sum that is complete tells, and estimate if it completes a group."""
        self.scatter += self._scatter_of(total)
        self.freedom += total.count - 1
        self.squares = 0.0
        self.group.merge(total)
        if self.group.count >= max(8, min(num_workers, 16)) and self.freedom > 0:
            self._end_group()

    def _scatter_of(self, total: GradientSum) -> float:
        """Return the sum of the squared distances of the gradients in the present sum from their mean."""
        return self.squares - squared(total.norm) / total.weight

    def _end_group(self) -> None:
        weight, variance = self.group.weight, self.scatter / self.freedom
        mean_squared = squared(self.group.norm / weight) - variance / weight
        self.group.clear()
        self.scatter, self.freedom = 0.0, 0
        self.num_groups += 1
        new = max(NEW_GROUP, 1 / self.num_groups)
        self.variance += new * (variance - self.variance)
        self.mean_squared += new * (mean_squared - self.mean_squared)

    def scale(self, factor: float, begun: GradientSum, weight: float = 1.0) -> float:
        """Return B: how many gradients a mean needs so that its noise is as large as the gradient, times a factor.

        The variance is that of gradients of weight 1, and the answer counts gradients of this weight.
        Before the first group is complete, the estimate is that of its sums and of the present sum; 0 without any two
        gradients at the same point.
        """
        variance, mean_squared = self.variance, self.mean_squared
        if not self.is_known and (freedom := self.freedom + max(0, begun.count - 1)) > 0:
            variance = (self.scatter + max(0.0, self._scatter_of(begun) if begun.count > 1 else 0.0)) / freedom
            larger = max(begun, self.group, key=lambda total: total.weight)
            mean_squared = squared(larger.norm / larger.weight) - variance / larger.weight
        variance /= weight
        at_least = variance / 1000
        return factor * variance / max(mean_squared, at_least) if at_least > 0 else 0.0


def squared(norm: float) -> float:
    """Return norm² with the same bits everywhere, unlike ``norm**2``, and without an exception if it overflows."""
    return norm * norm
