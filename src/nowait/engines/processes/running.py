"""A run with real workers on this machine, from start to end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import numpy as np

from nowait.engines.live import LiveView
from nowait.engines.processes.engine import Engine, ProcessOptions
from nowait.engines.processes.home import Home
from nowait.engines.processes.mailbox import Mailbox
from nowait.engines.processes.payload import Payload
from nowait.engines.processes.places import Places
from nowait.engines.processes.shared import SharedSlots
from nowait.engines.processes.staff import Office
from nowait.engines.processes.worker import Job
from nowait.engines.session import Parts
from nowait.engines.signals import Interruption
from nowait.recording import Run


def train(parts: Parts, points: SharedSlots, options: ProcessOptions, seed: int, progress: bool | None) -> Run:
    """Run to the end of the budget with real workers on this machine."""
    threads = max(1, (os.cpu_count() or 1) // max(1, len(parts.server.workers)))
    with open_office(parts, points, options, seed) as office:
        return run_with(Home(office, threads, options.log), parts, options, progress)


@contextlib.contextmanager
def open_office(parts: Parts, points: SharedSlots, options: ProcessOptions, seed: int) -> Iterator[Office]:
    """What the server and the workers of this machine share, for as long as a run takes."""
    gradients = SharedSlots(points.length, points.dtype)
    mailbox = Mailbox()
    try:
        job = Job(parts.problem, seed, points.length, points.dtype.str, options.slowdown, options.speeds)
        payload = Payload.of(job)
        try:
            yield Office(points, gradients, mailbox, payload)
        finally:
            payload.close()
    finally:
        mailbox.close()
        gradients.close()
        points.close()


def run_with(places: Places, parts: Parts, options: ProcessOptions, progress: bool | None) -> Run:
    """Run to the end of the budget with workers in these places."""
    view = LiveView(str(parts.config["method"]["type"]), parts.budget, parts.recorder, progress)
    engine = Engine(parts, places, options, view)
    try:
        with Interruption(engine.interrupt, hangup=True), np.errstate(over="ignore", invalid="ignore"):
            engine.open()
            with view:
                engine.run()
                return engine.result()
    finally:
        engine.close()
