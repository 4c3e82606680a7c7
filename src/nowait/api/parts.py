"""Checks the parts of a run and puts them together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from nowait.core import LastIterate, Method, Output, Problem, Schedule, Scheduled, Server, Sgd, Update, checks
from nowait.core.capabilities import Capabilities
from nowait.core.layout import checked_layout
from nowait.core.memory import Memory
from nowait.core.problem import checked_problem, initial_params
from nowait.core.types import Vector
from nowait.engines.budget import Budget, EvaluationPlan
from nowait.engines.session import Parts
from nowait.recording import TraceRecorder, checked_callbacks, describe
from nowait.recording.environment import environment
from nowait.recording.files import read_tensors
from nowait.recording.journal import KEPT

logger = logging.getLogger("nowait")

MANY_WORKERS = 4
UPDATES = "nw.Momentum(0.9) or nowait.pytorch.TorchOptimizer(torch.optim.AdamW)"
"""Examples for errors."""


def make_parts(
    problem: Problem,
    method: Method,
    workers: list[int],
    budget: Budget,
    *,
    evaluate_every: int | None,
    evaluate_seconds: float | None = None,
    update: Update | None,
    output: Output | None,
    callbacks: Iterable[Any],
    initial: Any,
    seed: int,
    resumed: bool = False,
    trace: str = "full",
    on_host: bool = False,
    share: Callable[[Vector, Memory | None], Callable[[], Vector]] | None = None,
) -> Parts:
    """Return everything an engine needs, checked.

    Params are in the device memory of the problem, if it has one, unless ``on_host``. ``share(params, memory)`` returns
    an allocator of vectors for them; a memory of None is that of the host.
    """
    capabilities = Capabilities.of(checked_problem(problem))
    checks.instance(method, Method, "method", "nw.AsynchronousSGD(nw.DelayAdaptive(0.01))")
    if not workers and not resumed:
        raise ValueError("there are no workers at the start: a run needs at least one")
    if update is None:
        update = capabilities.update_for(method)
    checks.instance(update, Update, "update", UPDATES)
    method.check_update(update)
    say_whose_momentum(update, method)
    if method.needs_shared_data and capabilities.num_shards > 1:
        raise ValueError(
            f"every worker has data of its own, and {type(method).__name__} would leave out those of slow workers: use "
            f"a method for different data, such as nw.GradientTable or nw.RingleaderASGD, or let all workers draw from "
            f"the same data"
        )
    output = checks.instance(LastIterate() if output is None else output, Output, "output", "nw.UniformAverage()")
    warn_of_momentum(update, method, len(workers))
    warn_of_ended_schedule(method, budget.steps)
    evaluations = EvaluationPlan.of(evaluate_every, budget, evaluate_seconds=evaluate_seconds)
    checked = checked_callbacks(callbacks)
    recorder = TraceRecorder(workers, checked_kept(trace))
    params = initial_params(problem, initial_vector(capabilities, initial))
    layout = checked_layout(capabilities.layout, len(params) - capabilities.num_statistics)
    update.check(layout)  # the last check: memory is shared next
    memory = None if on_host else capabilities.device_memory()
    server = Server(
        method,
        params,
        workers,
        update=update,
        output=output,
        seed=seed,
        log=recorder,
        memory=memory,
        allocate=None if share is None else share(params, memory),
        statistics=capabilities.num_statistics,
        statistics_momentum=capabilities.statistics_momentum,
        layout=layout,
        keep_cancelled=share is not None,
    )
    if capabilities.items_of is not None and capabilities.num_shards == 1:
        server.items_of = capabilities.items_of  # the objective of split data is the mean over workers, not over items
    return Parts(
        problem=problem,
        server=server,
        recorder=recorder,
        budget=budget,
        evaluations=evaluations,
        callbacks=checked,
        config={
            "problem": repr(problem),
            "method": describe(method),
            "update": describe(update),
            "output": describe(output),
            "budget": describe(budget),
            "seed": seed,
            "environment": environment(),
        },
    )


def initial_vector(capabilities: Capabilities, initial: Any) -> Any:
    """Return ``initial`` as a vector: a state dict, a model or a file is passed to the problem, if it can read it."""
    if initial is None or isinstance(initial, np.ndarray | list | tuple):
        return initial
    if capabilities.params_of is not None:
        return capabilities.params_of(initial)
    if not isinstance(initial, str | Path):
        return initial
    vectors = read_tensors(Path(initial), None)
    if "params" not in vectors:
        raise ValueError(f"initial={str(initial)!r} has no vector params, only {', '.join(sorted(vectors))}")
    return vectors["params"]


def checked_kept(trace: Any) -> str:
    """Return how much of the trace is kept, or raise."""
    if not isinstance(trace, str) or trace not in KEPT:
        came = checks.shown(trace)
        raise ValueError(f'trace must be "full", "sampled" or "none", got {came}: it says how much of it is kept')
    return trace


def warn_of_momentum(update: Update, method: Method, num_workers: int) -> None:
    """Warn of large momentum with many workers: asynchrony itself acts like momentum, which adds to it.

    Means of gradients, as in Adam, were measured to do no harm (docs/optimisers.md).
    """
    sums = update.momentum_factor > 0.5 and not update.averages_gradients
    if sums and num_workers >= MANY_WORKERS and method.schedule() is not None:
        logger.warning(
            "momentum %.2g may be unstable: gradients are about %d steps old, which acts like additional momentum; "
            "start from no momentum, or use nw.DelayedNesterov or a method of minibatches or buffers",
            update.momentum_factor,
            num_workers,
        )


def say_whose_momentum(update: Update, method: Method) -> None:
    """Log that a method with momentum of its own leaves it out, because the update is not plain SGD."""
    if method.momentum_with(Sgd()) > method.momentum_with(update) == 0.0:
        logger.info("%s adds no momentum of its own to the steps of %r", type(method).__name__, update)


def warn_of_ended_schedule(method: Method, steps: int | None) -> None:
    """Warn if the schedule of the stepsize is 0 before the run ends, as when a run is resumed beyond its schedule."""
    rule = getattr(method, "stepsize", None)
    if steps is None or not isinstance(rule, Scheduled) or not isinstance(rule.schedule, Schedule):
        return
    if rule.schedule(steps) == 0.0:
        logger.warning(
            "the schedule of the stepsize, %r, is 0 before step %d, where the run ends: the last steps do not change "
            "params; give the schedule as many steps as the run",
            rule.schedule,
            steps,
        )


def warn_of_split(problem: Problem, num_workers: int) -> None:
    """Warn if the data are split for another number of workers: worker w then has shard w modulo their number."""
    num_shards = Capabilities.of(checked_problem(problem)).num_shards
    if num_shards in (1, num_workers):
        return
    consequence = "shards without a worker are not used" if num_workers < num_shards else "some workers share a shard"
    logger.warning("the problem is split for %d workers, but there are %d: %s", num_shards, num_workers, consequence)
