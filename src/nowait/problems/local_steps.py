"""Local steps: a worker makes several steps per ticket, of SGD or of any update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Self, final

import numpy as np

from nowait.core import Sample, Sgd, Update, checks
from nowait.core.capabilities import Capabilities
from nowait.core.layout import checked_layout
from nowait.core.memory import HOST, memory_of, namespace_of
from nowait.core.types import Vector
from nowait.numerics.elementary import integer_power
from nowait.problems.local_descent import LocalDescent, SgdDescent, UpdateDescent, like, without_run_state
from nowait.problems.wrapper import LOCAL_STEPS, Wrapper


@final
class LocalSteps(Wrapper):
    """Workers make ``steps`` steps, from x to y, and send the difference x − y in place of a gradient.

    With a stepsize of 1 the server applies the whole difference. This is what the clients of FedAvg, FedBuff and FedAT
    compute, and the workers of local SGD (Stich, "Local SGD Converges Fast and Communicates Little", 2019). ``steps``
    is one number for all workers or one per worker: with more steps for fast workers all of them send about equally
    often (if their data differ, fast workers then have more weight). The seconds of a speed model are those of all
    local steps together. ``proximal`` adds proximal/2·‖y − x‖² to the local objective, which keeps y near x (Li et
    al., "Federated Optimization in Heterogeneous Networks", 2020).

    ``update`` makes the local steps, with ``stepsize``: any update, such as ``nw.Adam()``, ``nw.Muon()`` or
    ``TorchOptimizer(torch.optim.AdamW, weight_decay=0.1)``; by default plain SGD. AdamW here and Nesterov's momentum
    at the server are DiLoCo (Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models",
    2023). A worker of DiLoCo keeps the moments of AdamW from one round to the next; here every job starts with
    moments of zero, because what a worker sends must depend only on its point and its sample. Only then can a run be
    replayed and resumed, and a lost job be computed again. The default update of the server is plain SGD, even if the
    wrapped problem has another default: a difference x − y is already a step.

    Statistics, such as those of batch normalisation, follow the local steps as in a plain loop: each step begins with
    those that the step before measured, and the worker sends the last ones, not a difference. If a step is not finite,
    the job ends there and the server rejects it, as it rejects a gradient that is not finite.

    With ``update``, or if the problem takes its data in order (``sampling="epochs"``), step k of a worker's job j uses
    the sample of job j·steps + k, so that batches can be prefetched and epochs are complete.

    >>> import nowait as nw
    >>> problem = nw.problems.LocalSteps(
    ...     nw.problems.NoisyQuadratic(dimension=4), steps=8, stepsize=0.1
    ... )
    >>> run = nw.simulate(
    ...     problem,
    ...     nw.FedBuff(nw.Constant(1.0)),
    ...     nw.speeds.Exponential(1.0, workers=4),
    ...     steps=100,
    ... )
    >>> bool(run.history.loss[-1] < 1e-4)
    True
    """

    passes_statistics_on = True

    def __init__(
        self,
        problem: Any,
        steps: int | Sequence[int],
        stepsize: float,
        proximal: float = 0.0,
        update: Update | None = None,
    ) -> None:
        super().__init__(problem)
        inner = _checked_inner(problem)
        counts = checks.listed(steps, "steps") if isinstance(steps, Sequence | np.ndarray) else [steps]
        self.steps = tuple(checks.at_least(1, count, "steps", "a job is at least one step") for count in counts)
        self.stepsize = checks.positive(stepsize, "stepsize", "local steps would not move")
        self.proximal = checks.not_negative(proximal, "proximal", "it weighs ‖y − x‖²/2")
        self._trained = checked_layout(inner.layout, self.dimension - inner.num_statistics)
        self.update = update
        if update is not None:
            checks.instance(update, Update, "update", "nw.Adam()")
            update.check(self._trained)
            self.update = without_run_state(update)  # the server may have been given the same object
        self._numbers_steps = update is not None or inner.uses_job_numbers
        self._fill, self._inner_loading_seconds = inner.fill_with_gradient(), inner.loading_seconds
        self._loading_seconds = (0.0, 0.0)
        self._here: Any = None
        self._descent: LocalDescent | None = None

    def capabilities(self) -> Capabilities:
        """Return those of the wrapped problem, with ``gradient_into``; the first step begins at the whole point."""
        inner = Capabilities.of(self.problem)
        return replace(
            super().capabilities(),
            gradient_into=self.gradient_into,
            device_memory=inner.device_memory,
            prepare=self.prepare,
            point_encoding=None,
            num_statistics=inner.num_statistics,
            statistics_momentum=self._statistics_momentum(inner.statistics_momentum),
            usual_update=Sgd,
            loading_seconds=None if inner.loading_seconds is None else self.loading_seconds,
            parts_to_send=None if inner.parts_to_send is None else self.parts_to_send,
        )

    def prepare(self) -> Any:
        """Prepare the wrapped problem, and load the code that checks steps: the first job would wait seconds for it."""
        result = Capabilities.of(self.problem).prepare()
        for dtype in (np.float32, np.float64):
            HOST.is_finite(np.zeros(1, dtype))
        return result

    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """Return x − y, where x is the point."""
        out: Vector = namespace_of(point).empty_like(point)
        self.gradient_into(point, sample, out)
        return out

    def gradient_into(self, point: Vector, sample: Sample, out: Vector) -> None:
        """Write x − y into ``out``, where x is the point, and after it the statistics of the last step."""
        end = self._trained.length
        self._here = here = like(point, self._here)
        here[:] = point
        self._loading_seconds = (0.0, 0.0)
        descent = self._descent_of_process()
        descent.start(point[:end], here[:end])
        with np.errstate(over="ignore", invalid="ignore"):
            for part in self._samples(sample):
                self._fill(here, part, out)
                self._count_loading_seconds()
                if self.proximal:
                    out[:end] += self.proximal * (here[:end] - point[:end])
                if not descent.step(here[:end], out[:end]):
                    break
                here[end:] = out[end:]
            descent.write_difference(here[:end], out[:end])
        memory_of(out).wait()  # another process reads it next

    def loading_seconds(self) -> tuple[float, float]:
        """Return how long all steps of the latest job of this process waited for their data."""
        return self._loading_seconds

    def parts_to_send(self) -> dict[str, Any]:
        """Return the parts of the wrapped problem, and the update."""
        parts = dict(self._inner_method("parts_to_send")())
        return parts if self.update is None else parts | {"update": self.update}

    def _samples(self, sample: Sample) -> Iterator[Sample]:
        """Yield a sample for each step of a job."""
        steps = self.steps[sample.worker % len(self.steps)]
        for number in range(steps):
            if self._numbers_steps:
                yield sample.of_local_step(number, steps)
            else:  # the samples of earlier versions
                yield sample if number == 0 else sample.part(LOCAL_STEPS + number)

    def _descent_of_process(self) -> LocalDescent:
        if self._descent is None:
            self._descent = (
                SgdDescent(self.stepsize)
                if self.update is None
                else UpdateDescent(self.update, self.stepsize, self._trained)
            )
        return self._descent

    def _statistics_momentum(self, momentum: float) -> float:
        """Return by what fraction the steps of a job together move statistics: 1 − (1 − momentum)^steps."""
        steps = max(self.steps)
        return momentum if steps == 1 or momentum >= 1 else float(1 - integer_power(1 - momentum, steps))

    def _count_loading_seconds(self) -> None:
        if self._inner_loading_seconds is not None:
            inside, before = self._inner_loading_seconds()
            self._loading_seconds = (self._loading_seconds[0] + inside, self._loading_seconds[1] + before)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process."""
        return self.__dict__ | {"_here": None, "_descent": None}

    def _rewrapped(self, problem: Any) -> Self:
        return type(self)(problem, self.steps, self.stepsize, self.proximal, self.update)

    def __repr__(self) -> str:
        steps = self.steps[0] if len(self.steps) == 1 else list(self.steps)
        update = "" if self.update is None else f", update={self.update!r}"
        return (
            f"LocalSteps({self.problem!r}, steps={steps}, stepsize={self.stepsize}, proximal={self.proximal}{update})"
        )


def _checked_inner(problem: Any) -> Capabilities:
    """Return the capabilities of a problem that can be wrapped, or raise."""
    inner = Capabilities.of(problem)
    if isinstance(problem, LocalSteps):
        raise TypeError("LocalSteps cannot wrap LocalSteps: multiply the numbers of steps instead")
    if inner.gradient_with_memory is not None:
        raise TypeError(
            f"LocalSteps cannot wrap {type(problem).__name__}: put LocalSteps inside it, because only what "
            f"a worker sends is compressed"
        )
    return inner
