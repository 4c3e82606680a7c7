"""``nw.replay``."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import Any

from nowait.api.parts import make_parts
from nowait.core import Method, Output, Problem, Update, checks
from nowait.core.randomness import checked_seed
from nowait.engines.budget import Budget
from nowait.engines.simulator import replay as run_replay
from nowait.engines.watch import Watch
from nowait.fleet.options import sent_through
from nowait.recording import Run, Trace


def replay(
    trace: Trace,
    problem: Problem,
    method: Method,
    *,
    seed: int = 0,
    evaluate_every: int | None = None,
    update: Update | None = None,
    output: Output | None = None,
    callbacks: Iterable[Any] = (),
    initial: Any = None,
    progress: bool | None = None,
) -> Run:
    """Run the events of a trace again, with gradients recomputed: the iterates are the same, bit for bit.

    Problem, method, seed, update and initial params must be those of the run. A trace of others is refused at the first
    row where a ticket, a delay, an outcome, a stepsize or a gradient's norm differs. If all norms agree but the params
    have other bits than those of the run, as on another kind of processor, a warning says so, and ``stats.advice`` has
    it. ``output`` may be another rule: it computes another answer from the same iterates. Vectors are rounded as they
    were for sending: the trace says how.
    ``evaluate_every``, ``callbacks`` and ``progress`` are those of ``nw.simulate``. Ctrl-C and SIGTERM raise
    ``nw.Interrupted``.

    >>> import nowait as nw
    >>> problem = nw.problems.NoisyQuadratic(dimension=10, sigma=0.1)
    >>> method = nw.AsynchronousSGD(nw.Constant(0.1))
    >>> run = nw.simulate(problem, method, nw.speeds.Exponential(1.0, workers=4), steps=100)
    >>> bool((nw.replay(run.trace, problem, method).params == run.params).all())
    True
    """
    called = perf_counter()
    progress = checks.flag_or_none(progress, "progress")
    checks.instance(trace, Trace, "trace", "run.trace")
    if trace.kept != "full":
        raise ValueError(f'the run kept only a part of its trace (trace="{trace.kept}"), so it cannot be replayed')
    if len(trace) == 0:
        raise ValueError("the trace has no arrivals: there is nothing to replay")
    with Watch():
        seed = checked_seed(seed)
        sent = trace.sent
        parts = make_parts(
            problem if sent is None else sent_through(problem, sent.wire, sent.points_wire),
            method,
            trace.initial_workers.tolist(),
            Budget(gradients=len(trace) + 1),
            evaluate_every=evaluate_every,
            update=update,
            output=output,
            callbacks=callbacks,
            initial=initial,
            seed=seed,
        )
        if not parts.capabilities.replayable:
            raise ValueError(
                f"runs of this {type(problem).__name__} cannot be replayed: its gradients depend on more than the point"
                f" and the sample, such as the order of a stream of data"
            )
        sizes = parts.capabilities.auto_batch_sizes
        if sizes is not None and sizes.chosen is None:
            raise ValueError(
                'batch_size="auto" has not chosen sizes yet: make the problem with batch_size=run.config["batch_sizes"]'
            )
        parts.replaying, parts.called = True, called
        parts.given_problem, parts.recorder.sent = problem, sent
        return run_replay(parts, trace, seed, progress)
