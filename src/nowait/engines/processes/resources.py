"""What the server and the worker processes of one machine share: memory, pipes and the pickled job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from nowait.core.memory import Slots
from nowait.engines.processes.mailbox import Mailbox
from nowait.fleet.wire.records import Job
from nowait.fleet.wire.shared import Payload, shared_slots
from nowait.problems.encodings import AS_THEY_ARE, Encodings


@final
@dataclass(frozen=True)
class SharedResources:
    """Slots for points and gradients, the mailbox for reports, and the job. All zygotes of a machine get them."""

    points: Slots
    gradients: Slots
    mailbox: Mailbox
    payload: Payload
    encoded: bool = False
    """True if slots have vectors as they are sent between machines: workers decode points, and encode gradients."""
    encodings: Encodings = AS_THEY_ARE
    """How vectors are sent to other machines."""


@contextlib.contextmanager
def shared_resources(points: Slots, job: Job) -> Iterator[SharedResources]:
    """Open the resources of a run, and close them (and ``points``) at its end."""
    with contextlib.ExitStack() as stack:
        stack.callback(points.close)
        gradients = shared_slots(job.memory, points.length, points.dtype)
        stack.callback(gradients.close)
        mailbox = stack.enter_context(contextlib.closing(Mailbox.open()))
        payload = stack.enter_context(contextlib.closing(Payload.of(job)))
        yield SharedResources(points, gradients, mailbox, payload, encodings=Encodings.of(job.problem))
