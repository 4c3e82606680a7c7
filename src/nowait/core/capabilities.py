"""The optional members of a problem, resolved once where the problem enters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from nowait.core import checks
from nowait.core.gradient_into import CheckedGradientInto, is_of_the_library
from nowait.core.layout import Layout
from nowait.core.memory import Memory
from nowait.core.method import Method
from nowait.core.randomness import Sample
from nowait.core.schedule import speaks_for
from nowait.core.stepsizes import Stepsize
from nowait.core.types import Vector
from nowait.core.updates import Sgd, Update

GradientInto = Callable[[Vector, Sample, Vector], Any]
COMPUTED_BY = ("gradient", "gradient_into", "gradient_with_memory", "add_penalty_gradient")
"""The methods that ``compiled_data`` stands for."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Capabilities:
    """What a problem can do. Each field is the problem's member of the same name, or what is used in its place.

    A problem needs only the members of ``nowait.core.Problem``; it may have any of the others below. This class is the
    only place that looks for them: a run resolves them once, with ``Capabilities.of(problem)``, and everything else
    reads the result. An attribute that is not callable does not count as a method.

    A problem that wraps another one defines ``capabilities()``, which returns this object. No field has a default, so
    such a wrapper decides for every field whether it passes it on.
    """

    gradient: Callable[[Vector, Sample], Vector]
    """``gradient(point, sample)``, which every problem has."""
    gradient_into: Callable[[Vector, Sample, Vector], None] | None
    """``gradient_into(point, sample, out)`` writes the gradient into ``out``, which saves a copy, and returns nothing.

    The first gradient of a process is compared with that of ``gradient``.
    """
    gradient_with_memory: Callable[[Vector, Sample, Vector, Vector], None] | None
    """``gradient_with_memory(point, sample, memory, out)``, for workers that keep a vector between gradients.

    ``memory`` is a vector like params that belongs to the worker; it is zero when the worker joins. The engine keeps
    it, and undoes its change if the gradient arrives late. Error feedback uses it.
    """
    device_memory: Callable[[], Memory | None]
    """``device_memory()`` says where params and gradients are while workers of this machine train. Default: the host.

    The problem then receives points, and ``out`` of ``gradient_into``, as vectors of that memory.
    """
    prepare: Callable[[], Any]
    """``prepare()`` loads or compiles what gradients need; called before workers are forked. Default: does nothing.

    If it returns False, this process must not be forked: every worker is started as a new interpreter.
    """
    process_settings: Callable[[], Any]
    """``process_settings()`` returns the global settings of this process that change results.

    It is called in the process of the run. What it returns has ``values``, a dictionary by name, which ``config.json``
    keeps as text, and ``apply()``, which every process that computes for the problem calls before ``prepare``.
    Default: None, there are none.
    """
    take_share: Callable[[int, int], None]
    """``take_share(share, num_shares)`` is called in the process of a worker, before ``start_worker``.

    The workers that a run is started or resumed with have the shares 0 to ``num_shares`` - 1, one each. A worker that
    joins later has one of these too. Default: does nothing.
    """
    start_worker: Callable[[int, int], None]
    """``start_worker(worker, num_workers)`` is called in the process of a worker, before it uses params or gradients.

    ``num_workers`` is the number of workers that the run was started with; workers that join later have larger numbers.
    Default: does nothing.
    """
    between_gradients: Callable[[], None] | None
    """``between_gradients()`` is called by a worker while the server uses the gradient it has just sent.

    This is a good time to prepare the data of the next gradient.
    """
    message_bytes: Callable[[Vector], int]
    """``message_bytes(params)`` is the size of one gradient message. Default: ``params.nbytes``."""
    gradient_encoding: str | None
    """How gradients are sent between machines: a name of ``nowait.problems.encodings``. Default: None, as they are.

    All gradients must be representable in this way: encoding them loses nothing.
    """
    point_encoding: str | None
    """How points are sent between machines. Gradients depend on nothing that this loses. Default: None, as they are."""
    encoded_gradient: Callable[[Vector, Sample, Vector, Vector, Any], None] | None
    """``encoded_gradient(point, sample, before, after, code)`` writes the code of a gradient, which saves copies.

    Used instead of ``gradient_with_memory`` on other machines. The point was rounded already. The memory is read from
    ``before`` and written to ``after``.
    """
    num_statistics: int
    """How many of the last params are statistics, see ``nowait.core.statistics``. Default: 0."""
    statistics_momentum: float
    """By what fraction at most a gradient moves statistics towards those of its batch. Default: 1, all the way."""
    layout: Layout | None
    """``layout`` says where the tensors of a model are in params, without the statistics. Default: None, one vector."""
    num_shards: int
    """The number of workers that the data are split for; 1 if all workers draw from the same data. Default: 1."""
    items_of: Callable[[int], int] | None
    """``items_of(worker)`` says how many items a worker's gradients are the means of. Default: None, all the same.

    Methods that average fresh gradients of the same data weight them by it.
    """
    auto_batch_sizes: Any
    """``auto_batch_sizes`` has ``chosen``, ``choose(seconds)`` and ``use(sizes)``. Default: None, sizes are given.

    ``nw.train`` measures how long a gradient of each worker takes and lets it choose, once.
    """
    replayable: bool
    """False if gradients depend on more than the point and the sample: such a run is not replayed. Default: True."""
    repeatable: bool
    """True if every worker process computes the same gradient from a point and a sample, whoever's sample it is.

    Then gradients can be audited. Default: False if there is a ``take_share``, after which processes differ.
    """
    uses_job_numbers: bool
    """True if ``sample.job`` decides which data a gradient uses, as with epochs. Default: False, they are drawn.

    Each of a worker's local steps then has a job number of its own, see ``Sample.of_local_step``.
    """
    usual_update: Callable[[], Update]
    """``usual_update()`` is the update of a run that is not given one. Default: ``Sgd()``."""
    usual_stepsize: Callable[[], Stepsize] | None
    """``usual_stepsize()`` is the stepsize rule of the framework that the problem comes from; its schedule is not
    recorded, so ``nw.resume`` takes it from there."""
    evaluate: Callable[[Vector], Mapping[str, Any]] | None
    """``evaluate(params)`` returns metrics by name. If "loss" is among them, ``loss`` is not called as well."""
    training_loss: Callable[[], float | None] | None
    """``training_loss()`` is the loss from which the latest gradient of this process was computed; None if unknown."""
    loading_seconds: Callable[[], tuple[float, float]] | None
    """``loading_seconds()`` is how long the latest gradient of this process waited for its data.

    It returns the seconds inside of computing the gradient, and those before it, in ``between_gradients``.
    """
    device_of: Callable[[int], str]
    """``device_of(worker)`` is the name of the device on which a worker computes. Default: "cpu"."""
    write_files: Callable[[Vector, Any], None] | None
    """``write_files(params, folder)`` is called at the end of a run that has a folder."""
    write_model: Callable[[Vector, Any, Mapping[str, str]], None] | None
    """``write_model(params, path, metadata)`` writes a safetensors file from which the model can be loaded."""
    checkpoint_model: Callable[[], Any]
    """``checkpoint_model()`` returns what checkpoints have in ``model.safetensors``, as a ``ModelFile``.

    Default: None, they do not have that file.
    """
    model: Callable[[Vector], Any] | None
    """``model(params)`` returns the model with these params."""
    params_of: Callable[[Any], Vector] | None
    """``params_of(source)`` returns the params in a state dict, a model or a file, for ``initial=``."""
    parts_to_send: Callable[[], Mapping[str, Any]] | None
    """``parts_to_send()`` names the parts of the problem, so that an error can say which one does not pickle."""
    split: Callable[..., Any] | None
    """``split(workers, …)`` returns the problem with separate data for each worker."""
    minimum: Callable[[], tuple[Vector, float]] | None
    """``minimum()`` returns a minimiser and the lowest loss."""
    constants: Callable[[], Any] | None
    """``constants()`` returns the ``nowait.theory.Constants`` of the objective."""
    full_gradient: Callable[[Vector], Vector] | None
    """``full_gradient(point)`` is the gradient of ``loss``; the gradients of workers are unbiased estimates of it."""
    gradient_of_worker: Callable[[Vector, int], Vector] | None
    """``gradient_of_worker(point, worker)`` is what the gradients of a worker are unbiased estimates of, exactly."""
    losses_at: Callable[[Any], Any] | None
    """``losses_at(points)`` is the loss of every row of a matrix, in one pass over the data."""
    compiled_data: Callable[[], Any] | None
    """``compiled_data()`` returns the arrays that compiled simulations use, or None.

    Only a method of the class counts, and only while no subclass overrides how gradients are computed: then the
    compiled code would compute something else.
    """

    @property
    def auditable(self) -> bool:
        """True if a second worker can compute a gradient again."""
        return self.repeatable and self.replayable and self.gradient_with_memory is None

    @classmethod
    def of(cls, problem: Any) -> Capabilities:
        """Resolve the members of a problem, or call its own ``capabilities()``."""
        if has_own_capabilities(problem):
            own = problem.capabilities()
            return checks.instance(own, Capabilities, f"{type(problem).__name__}.capabilities()", "Capabilities")
        return cls(
            gradient=problem.gradient,
            gradient_into=_gradient_into(problem),
            gradient_with_memory=_faster_gradient(problem, "gradient_with_memory"),
            device_memory=_method(problem, "device_memory") or _do_nothing,
            prepare=_method(problem, "prepare") or _do_nothing,
            process_settings=_method(problem, "process_settings") or _do_nothing,
            take_share=_method(problem, "take_share") or _start_nothing,
            start_worker=_method(problem, "start_worker") or _start_nothing,
            between_gradients=_method(problem, "between_gradients"),
            message_bytes=_method(problem, "message_bytes") or size_in_bytes,
            gradient_encoding=getattr(problem, "gradient_encoding", None),
            point_encoding=getattr(problem, "point_encoding", None),
            encoded_gradient=_faster_gradient(problem, "encoded_gradient"),
            num_statistics=checks.at_least(
                0, getattr(problem, "num_statistics", 0), "num_statistics", "it is the number of params that they take"
            ),
            statistics_momentum=checks.positive(
                getattr(problem, "statistics_momentum", 1.0), "statistics_momentum", "statistics would never change"
            ),
            layout=_layout(problem),
            num_shards=checks.at_least(
                1, getattr(problem, "num_shards", 1), "num_shards", "all workers together have one shard at least"
            ),
            items_of=_method(problem, "items_of"),
            auto_batch_sizes=getattr(problem, "auto_batch_sizes", None),
            replayable=_is_replayable(problem),
            repeatable=bool(getattr(problem, "repeatable", _method(problem, "take_share") is None)),
            uses_job_numbers=bool(getattr(problem, "uses_job_numbers", False)),
            usual_update=_method(problem, "usual_update") or Sgd,
            usual_stepsize=_method(problem, "usual_stepsize"),
            evaluate=_method(problem, "evaluate"),
            training_loss=_method(problem, "training_loss"),
            loading_seconds=_method(problem, "loading_seconds"),
            device_of=_method(problem, "device_of") or _on_processor,
            write_files=_method(problem, "write_files"),
            write_model=_method(problem, "write_model"),
            checkpoint_model=_method(problem, "checkpoint_model") or _do_nothing,
            model=_method(problem, "model"),
            params_of=_method(problem, "params_of"),
            parts_to_send=_method(problem, "parts_to_send"),
            split=_method(problem, "split"),
            minimum=_method(problem, "minimum"),
            constants=_method(problem, "constants"),
            full_gradient=_method(problem, "full_gradient"),
            gradient_of_worker=_method(problem, "gradient_of_worker"),
            losses_at=_method(problem, "losses_at"),
            compiled_data=_compiled_data(problem),
        )

    def update_for(self, method: Method) -> Update:
        """Return the update of a run with this method that is not given one."""
        if method.makes_its_own_update:
            return Sgd()
        update = method.usual_update() or self.usual_update()
        return Sgd() if update.is_plain and method.momentum_with(update) > 0 else update

    def gradient_function(self) -> tuple[GradientInto, bool]:
        """Return ``function(point, sample, out)``, and True if it always writes the gradient into ``out``.

        If it does not, the function returns None after writing into ``out``, and otherwise the gradient itself: one
        that does not fit into ``out``, which the server rejects with the reason.
        """
        if self.gradient_into is not None:
            return self.gradient_into, True
        return partial(_compute_and_copy, self.gradient), False

    def fill_with_gradient(self) -> Callable[[Vector, Sample, Vector], None]:
        """Return ``function(point, sample, out)`` that writes the gradient into ``out``, or raises if it cannot."""
        return partial(_fill, self.gradient) if self.gradient_into is None else self.gradient_into


def _method(problem: Any, name: str) -> Any:
    """The method of this name, or None."""
    found = getattr(problem, name, None)
    return found if callable(found) else None


def _layout(problem: Any) -> Layout | None:
    """The layout of the params; None if the problem has none, or something else of this name."""
    found = getattr(problem, "layout", None)
    return found if isinstance(found, Layout) else None


def has_own_capabilities(problem: Any) -> bool:
    """Return True if the class of a problem defines ``capabilities()``; what ``__getattr__`` finds does not count."""
    return callable(getattr(type(problem), "capabilities", None))


def _faster_gradient(problem: Any, name: str) -> Any:
    """The method of this name; None if a subclass overrides ``gradient`` alone, which it would not agree with."""
    found = _method(problem, name)
    inherited = hasattr(type(problem), name) and not speaks_for(type(problem), name, ("gradient",))
    return None if inherited else found


def _gradient_into(problem: Any) -> Callable[[Vector, Sample, Vector], None] | None:
    """Return ``gradient_into``; that of a user's class with checks, which those of this library do not need."""
    found: Callable[[Vector, Sample, Vector], None] | None = _faster_gradient(problem, "gradient_into")
    if found is None or is_of_the_library(found):
        return found
    other = _method(problem, "gradient") if _is_replayable(problem) else None
    return CheckedGradientInto(found, other, type(problem).__name__)


def _is_replayable(problem: Any) -> bool:
    return bool(getattr(problem, "replayable", True))


def _compiled_data(problem: Any) -> Callable[[], Any] | None:
    kind = type(problem)
    declared = callable(getattr(kind, "compiled_data", None)) and speaks_for(kind, "compiled_data", COMPUTED_BY)
    found: Callable[[], Any] | None = problem.compiled_data if declared else None
    return found


def _do_nothing() -> None:
    """Return None; used for methods that a problem does not have, such as ``prepare``."""


def _start_nothing(number: int, count: int) -> None:
    """Do nothing; used if a problem has no ``take_share`` or ``start_worker``."""


def _on_processor(_: int) -> str:
    """Return "cpu"; used if a problem has no ``device_of``."""
    return "cpu"


def size_in_bytes(params: Vector) -> int:
    """Return ``params.nbytes``: the size of a gradient that is sent as it is."""
    return int(params.nbytes)


def _compute_and_copy(compute: Callable[[Vector, Sample], Vector], point: Vector, sample: Sample, out: Vector) -> Any:
    gradient = np.asarray(compute(point, sample))
    if gradient.shape != out.shape or gradient.dtype.kind == "c":
        return gradient
    out[:] = gradient
    return None


def _fill(compute: Callable[[Vector, Sample], Vector], point: Vector, sample: Sample, out: Vector) -> None:
    gradient = np.asarray(compute(point, sample))
    if gradient.shape != out.shape:
        raise ValueError(f"the gradient has shape {gradient.shape}, but params {out.shape}")
    if gradient.dtype.kind == "c":
        raise TypeError(f"the gradient must have real entries, got {gradient.dtype}: params are {out.dtype}")
    out[:] = gradient
