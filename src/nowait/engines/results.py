"""Builds the ``Run`` of a finished session."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.core.capabilities import Capabilities
from nowait.core.memory import memory_of, to_host
from nowait.core.types import Integers, Vector, norm
from nowait.engines.parts import Parts
from nowait.engines.run_server import RunRecorder, RunServer
from nowait.problems.encodings import codec_of
from nowait.recording import HistoryRecorder, Run, Stats
from nowait.recording.files import vector_checksum
from nowait.recording.sent import Sent
from nowait.recording.worker_stats import stats_of_workers

HOPELESS = 1e20
"""A loss this many times larger than the first one means that the run diverged."""


def is_reasonable(loss: float, first: float) -> bool:
    """Return True if a loss is finite and at most ``HOPELESS`` times the larger of 1 and the first loss."""
    return math.isfinite(loss) and loss <= HOPELESS * max(1.0, abs(first))


@final
@dataclass(frozen=True)
class Ending:
    """How a run ended; these fields go into ``Stats``."""

    seconds: float
    wall_seconds: float
    engine: str
    diverged: bool
    advice: str
    interrupted: bool


def build_run(
    parts: Parts, server: RunServer[Any], recorder: RunRecorder, history: HistoryRecorder, ending: Ending
) -> Run:
    """Return the run that a server has made of the parts."""
    last_norm = norm(to_host(server.params))  # before params are copied, because it needs memory as well
    last = memory_of(server.params).copy_to_host(server.params)
    recorder.params_are(server.steps, vector_checksum(last))
    counts, tally = server.counts, recorder.tally()
    if parts.keeper is not None:
        parts.keeper.folder.keep_trace()
        parts.recorder.finish(ending.seconds, last_norm)
    trace = recorder.trace(ending.seconds, last_norm)
    bytes_of_gradient, bytes_of_point = bytes_sent(trace.sent, parts.capabilities, last)
    phases = tally.phases
    by_worker = () if phases is None else stats_of_workers(phases, tally.valid, trace.placements, ending.seconds)
    work = _padded(tally.valid, int(max(trace.initial_workers, default=-1)) + 1)
    return Run(
        params=server.finish(last),
        last=last,
        trace=trace,
        history=history.history(),
        stats=Stats(
            steps=server.steps,
            gradients=counts.gradients,
            dropped=counts.dropped,
            rejected=counts.rejected,
            late=counts.late,
            lost=counts.lost,
            cancelled=counts.cancelled,
            seconds=ending.seconds,
            wall_seconds=ending.wall_seconds,
            work_share=work / max(1, work.sum()),
            engine=ending.engine,
            diverged=ending.diverged,
            advice=ending.advice,
            interrupted=ending.interrupted,
            bytes_up=tally.arrivals * bytes_of_gradient,
            bytes_down=(server.num_tickets - tally.repeats) * bytes_of_point,
            notes=len(trace.notes),
            last_note=str(trace.notes[-1]) if trace.notes else "",
            by_worker=by_worker,
        ),
        config=parts.config,
        problem=parts.problem if parts.given_problem is None else parts.given_problem,
    )


def bytes_sent(sent: Sent | None, can: Capabilities, params: Vector) -> tuple[int, int]:
    """Return the bytes of a gradient and of a point as they were sent, or would be."""
    if sent is not None:
        return sent.gradient_bytes, sent.point_bytes
    codec = codec_of(can.point_encoding, params.size, params.dtype, can.num_statistics)
    return can.message_bytes(params), params.nbytes if codec is None else codec.num_bytes


def _padded(counts: Integers, size: int) -> Integers:
    """Return the counts, followed by zeros up to ``size`` entries."""
    return np.concatenate([counts, np.zeros(max(0, size - len(counts)), counts.dtype)])
