"""``nw.simulate``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import Any

from nowait.api.different_data import usual_seconds, warn_of_different_data
from nowait.api.parts import make_parts, warn_of_split
from nowait.core import Method, Output, Problem, Update, checks
from nowait.core.randomness import checked_seed
from nowait.engines.budget import Budget
from nowait.engines.simulator import run_simulation
from nowait.engines.watch import Watch
from nowait.recording import Run, describe
from nowait.speeds import Faults, Speeds


def simulate(
    problem: Problem,
    method: Method,
    speeds: Speeds,
    *,
    steps: int | None = None,
    gradients: int | None = None,
    seconds: float | None = None,
    target_loss: float | None = None,
    target: Mapping[str, Any] | None = None,
    evaluate_every: int | None = None,
    evaluate_seconds: float | None = None,
    update: Update | None = None,
    output: Output | None = None,
    callbacks: Iterable[Any] = (),
    initial: Any = None,
    seed: int = 0,
    faults: Faults | None = None,
    engine: str | None = None,
    trace: str = "full",
    labels: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> Run:
    """Train in virtual time with workers of any speed.

    The run ends at whichever of ``steps``, ``gradients``, ``seconds`` (virtual), ``target_loss`` and ``target`` comes
    first; ``target={"accuracy": 0.9}`` names metrics, see ``nw.train``. The loss is evaluated before the first step,
    every ``evaluate_every`` steps, at multiples of ``evaluate_seconds`` (virtual) and at the end; None for both spreads
    about a hundred evaluations over the budget. ``callbacks`` are functions of ``control``, called after every step, or
    ``nw.Callback`` objects. ``update`` is the step that the server makes, plain SGD by default; ``output`` says which
    combination of the iterates is ``run.params``, the last one by default. ``seed`` determines samples and random
    durations: runs with the same seed are equal. ``faults`` makes workers leave and join. ``initial`` is a vector; for
    a ``TorchProblem`` also a state dict, a model or a ``.safetensors`` file. ``progress`` None shows a bar on a
    terminal.

    Ctrl-C and SIGTERM end the run and raise ``nw.Interrupted``, a ``KeyboardInterrupt`` that has the run so far as
    ``run``, so that a loop over many runs ends as well.

    Linear models and ``NoisyQuadratic`` with plain SGD and a method that does not read gradients run compiled. This
    changes only the speed (and the rounding of averages of iterates); ``run.stats.engine`` is then "compiled".
    (While the cache of compiled code is empty, short runs are not compiled if that gives the same bits.)
    ``engine="reference"`` prevents it. ``labels`` are kept in ``run.config``. ``trace="sampled"`` keeps all of a
    worker's first 1,024 arrivals in the trace and then one in 64, ``trace="none"`` keeps none: for very long runs,
    which cannot be replayed then.

    >>> import nowait as nw
    >>> problem = nw.problems.NoisyQuadratic(dimension=10, sigma=0.1)
    >>> method = nw.AsynchronousSGD(nw.DelayAdaptive(0.1))
    >>> run = nw.simulate(problem, method, nw.speeds.Fixed([1, 1, 10]), steps=210)
    >>> run.stats.seconds
    100.0
    >>> run.stats.work_share.round(2).tolist()
    [0.48, 0.48, 0.05]
    """
    called = perf_counter()
    checks.instance(speeds, Speeds, "speeds", "nw.speeds.Fixed([1.0, 1.0, 10.0])")
    faults = Faults([]) if faults is None else checks.instance(faults, Faults, "faults", "nw.speeds.Faults([...])")
    faults.check_leavers(speeds.num_workers)
    seed = checked_seed(seed)
    progress, kept_labels = checks.flag_or_none(progress, "progress"), checks.labels(labels)
    if engine is not None and not (isinstance(engine, str) and engine == "reference"):
        raise ValueError(
            f"engine must be None or 'reference', got {checks.shown(engine)}: a run is compiled wherever that is "
            f"possible"
        )
    parts = make_parts(
        problem,
        method,
        faults.present_at_start(speeds.num_workers),
        Budget(steps, gradients, seconds, target_loss, target),
        evaluate_every=evaluate_every,
        evaluate_seconds=evaluate_seconds,
        update=update,
        output=output,
        callbacks=callbacks,
        initial=initial,
        seed=seed,
        trace=trace,
        on_host=True,
    )
    parts.called = called
    warn_of_split(problem, speeds.num_workers)
    named = {type(method).__name__: method}
    warn_of_different_data(problem, named, speeds.num_workers, usual_seconds(speeds), parts.server.params)
    parts.config |= {
        "speeds": describe(speeds),
        "faults": describe(faults),
        "labels": describe(kept_labels),
        "trace": trace,
    }
    with Watch():
        return run_simulation(parts, speeds, faults, seed, progress, compiled=engine is None)
