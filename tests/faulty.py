"""Problems whose workers fail or wait at points chosen by a test. Imported by worker processes."""

import os
import signal
from dataclasses import dataclass, field

import numpy as np

import nowait as nw


def shared_memory():
    """Return the names of shared memory, which a run must not leave behind; semaphores belong to other programs."""
    return sorted(name for name in os.listdir("/dev/shm") if not name.startswith("sem."))


@dataclass
class Quadratic:
    """``nw.problems.NoisyQuadratic`` with L = 1 and mu = 0.5 in plain numpy: its workers need not load numba."""

    dimension: int
    sigma: float

    def __post_init__(self):
        self.eigenvalues = np.geomspace(0.5, 1.0, self.dimension)
        self.solution = np.full(self.dimension, 1 / np.sqrt(self.dimension))

    def initial(self):
        return np.zeros(self.dimension)

    def loss(self, point):
        return sum((0.5 * self.eigenvalues * (point - self.solution) ** 2).tolist())  # a fixed order of additions

    def gradient(self, point, sample):
        noise = self.sigma / np.sqrt(self.dimension) * sample.normals(self.dimension)
        return self.eigenvalues * (point - self.solution) + noise


@dataclass
class Faulty:
    """A noisy quadratic; ``faults`` maps (worker, job), or a worker, to the name of a fault below."""

    faults: dict = field(default_factory=dict)
    dimension: int = 5
    sigma: float = 0.1

    def __post_init__(self):
        self.problem = Quadratic(self.dimension, self.sigma)

    def initial(self):
        return self.problem.initial()

    def loss(self, point):
        return self.problem.loss(point)

    def gradient(self, point, sample):
        fault = self.faults.get((sample.worker, sample.job)) or self.faults.get(sample.worker)
        gradient = self.problem.gradient(point, sample)
        return gradient if fault is None else getattr(self, fault)(gradient)

    def kill(self, gradient):
        os.kill(os.getpid(), signal.SIGKILL)

    def leave(self, gradient):
        os._exit(3)

    def fail(self, gradient):
        raise ArithmeticError("this sample cannot be computed")

    def run_out_of_memory(self, gradient):
        raise MemoryError("no room for this sample")

    def nan(self, gradient):
        return gradient * np.nan

    def misfit(self, gradient):
        return np.zeros(3)

    def hang(self, gradient):
        signal.pause()


@dataclass
class Conducted(Faulty):
    """Worker m finishes a gradient only after it has read a byte from the named pipe ``folder/m``."""

    folder: str = ""

    def gradient(self, point, sample):
        gradient = super().gradient(point, sample)
        with open(f"{self.folder}/{sample.worker}", "rb", buffering=0) as pipe:
            pipe.read(1)
        return gradient


class Conductor:
    """Lets workers of a ``Conducted`` problem finish in a chosen order."""

    def __init__(self, folder, workers):
        self.folder = str(folder)
        self.pipes = []
        for worker in range(workers):
            os.mkfifo(f"{folder}/{worker}")
            self.pipes.append(os.open(f"{folder}/{worker}", os.O_RDWR))

    def let(self, worker):
        os.write(self.pipes[worker], b".")

    def close(self):
        for pipe in self.pipes:
            os.close(pipe)


@dataclass
class InOrder(nw.Method):
    """Wraps a method; workers arrive in a given order, and those without a ticket are skipped, as in ``Adversary``."""

    method: nw.Method
    order: list
    conductor: object

    def start(self, server):
        self.place = 0
        self.method.start(server)
        self.release_next(server)

    def on_arrival(self, server, arrival):
        self.method.on_arrival(server, arrival)
        self.release_next(server)

    def release_next(self, server):
        while not server.in_flight.of(self.order[self.place]):
            self.place = (self.place + 1) % len(self.order)
        self.conductor.let(self.order[self.place])
        self.place = (self.place + 1) % len(self.order)


class Watched(nw.Method, nw.Callback):
    """Wraps a method and stops the run when ``enough(jobs)`` is true, so that tests do not depend on timing.

    ``jobs`` is the latest job of each worker that arrived.
    """

    def __init__(self, method, enough):
        self.method, self.enough = method, enough
        self.on_join, self.on_leave = method.on_join, method.on_leave
        self.on_timer, self.on_reissue, self.pending_stepsize = (
            method.on_timer,
            method.on_reissue,
            method.pending_stepsize,
        )
        self.jobs = {}

    def start(self, server):
        self.method.start(server)

    def on_arrival(self, server, arrival):
        self.method.on_arrival(server, arrival)
        self.jobs[arrival.ticket.worker] = arrival.ticket.job

    def on_step(self, control):
        if self.enough(self.jobs):
            control.stop()


def train_until(enough, problem, method, callbacks=(), **options):
    """Train until ``enough(jobs)``, where ``jobs`` is the latest job of each worker that arrived."""
    watched = Watched(method, enough)
    return nw.train(problem, watched, steps=10**9, callbacks=[watched, *callbacks], **options)


class Waiting(Faulty):
    """Its second evaluation of the loss waits for a byte from a named pipe that the test writes to."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.evaluations = folder, 0

    def loss(self, point):
        self.evaluations += 1
        if self.evaluations == 2:
            with open(f"{self.folder}/0", "rb", buffering=0) as pipe:
                pipe.read(1)
        return super().loss(point)
