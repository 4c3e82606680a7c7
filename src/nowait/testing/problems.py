"""The contract of a problem, as checks that run on any problem. Each raises ``AssertionError``.

@pytest.mark.parametrize("check", PROBLEM_CHECKS, ids=lambda check: check.__name__)
def test_my_problem(check):
    check(MyProblem())

A check of an optional member passes if the problem does not have it. ``the_mean_gradient_is_the_slope_of_the_loss`` is
not in the list, because not every problem promises it: take it for problems whose workers send gradients of ``loss``.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nowait.core import Constant, Sample, Server, Sgd, Update, sampler
from nowait.core.capabilities import Capabilities
from nowait.core.problem import Problem, checked_problem, evaluation, initial_params, loss_of
from nowait.core.types import Floats, Vector
from nowait.engines.budget import Budget, EvaluationPlan
from nowait.engines.session import Parts
from nowait.engines.simulator import replay, simulate, simulate_compiled
from nowait.methods import AsynchronousSGD
from nowait.recording import TraceRecorder
from nowait.speeds import Exponential, Faults

SEED = 5
SPEEDS = Exponential([0.3, 1.0, 2.0])
METHOD = AsynchronousSGD(Constant(1e-3))
GRADIENTS = 3_000
"""How many gradients are averaged where a mean is compared."""
STANDARD_ERRORS = 6.0
"""How far a mean of gradients may be from its expectation."""


# What every problem has


def the_required_members_are_there(problem: Any) -> None:
    """The problem has the four required members, and ``initial()`` has ``dimension`` entries."""
    try:
        initial_params(checked_problem(problem))
    except (TypeError, ValueError) as error:
        raise AssertionError(str(error)) from error


def initial_params_are_new_every_time(problem: Any) -> None:
    """Writing to the array that ``initial()`` returned does not change the next one."""
    first = problem.initial()
    expected = first.copy()
    first[:] = math.nan
    assert _same(problem.initial(), expected), "initial() must return the same values in a new array every time"


def the_loss_is_a_finite_number(problem: Any) -> None:
    """The loss is a finite number at the initial params and near them."""
    for point in _points(problem):
        loss = loss_of(problem, point)
        assert math.isfinite(loss), f"the loss near the initial params is {loss}"


def metrics_are_numbers_by_name(problem: Any) -> None:
    """What ``evaluate`` returns can be recorded, and a loss in it is that of ``loss``."""
    params = initial_params(problem)
    try:
        found = evaluation(problem, Capabilities.of(problem))(params)
    except (TypeError, ValueError) as error:
        raise AssertionError(str(error)) from error
    assert found.loss == loss_of(problem, params), "evaluate(params) returns another loss than loss(params)"


def a_gradient_has_one_finite_number_per_param(problem: Any) -> None:
    """Gradients have the shape of params and are finite, at the initial params and near them."""
    for point in _points(problem):
        for sample in _samples():
            gradient = np.asarray(problem.gradient(point, sample))
            assert gradient.shape == point.shape, f"the gradient has shape {gradient.shape}, params {point.shape}"
            assert gradient.dtype.kind == "f", f"a gradient must have float entries, got {gradient.dtype}"
            assert np.isfinite(gradient).all(), "a gradient near the initial params is not finite"


def gradients_depend_on_point_and_sample_alone(problem: Any) -> None:
    """The same point and sample give the same bits, whatever was computed in between."""
    if not Capabilities.of(problem).replayable:
        return
    tickets = [(point, sample) for point in _points(problem) for sample in _samples()]
    first = [np.array(problem.gradient(point, sample)) for point, sample in tickets]
    for (point, sample), expected in reversed(list(zip(tickets, first, strict=True))):
        same = _same(np.asarray(problem.gradient(point, sample)), expected)
        assert same, "a gradient changed: it must depend on point and sample only, or replayable must be False"


def points_are_not_written(problem: Any) -> None:
    """Gradients and losses do not write to the point: other workers read the same memory."""
    can = Capabilities.of(problem)
    for point in _points(problem):
        before, out = point.copy(), np.empty_like(point)
        problem.gradient(point, _samples()[0])
        problem.loss(point)
        if can.gradient_into is not None:
            can.gradient_into(point, _samples()[0], out)
        if can.gradient_with_memory is not None:
            can.gradient_with_memory(point, _samples()[0], np.zeros_like(point), out)
        if can.full_gradient is not None:
            can.full_gradient(point)
        assert _same(point, before), "the point was written to"


def workers_get_the_same_problem(problem: Any) -> None:
    """A pickled copy, as worker processes get it, has the same gradients and losses, bit for bit."""
    import cloudpickle

    sent = cloudpickle.loads(cloudpickle.dumps(problem))
    point, sample = _points(problem)[1], _samples()[1]
    assert sent.dimension == problem.dimension, "a pickled copy has another dimension"
    assert loss_of(sent, point) == loss_of(problem, point), "a pickled copy has another loss"
    if Capabilities.of(problem).replayable:
        same = _same(np.asarray(sent.gradient(point, sample)), np.asarray(problem.gradient(point, sample)))
        assert same, "a pickled copy has other gradients"


def a_replay_is_the_run(problem: Any) -> None:
    """The trace of a short simulation replays to the same params, bit for bit."""
    if not Capabilities.of(problem).replayable:
        return
    budget = Budget(gradients=20)
    run = simulate(_parts(problem, budget), SPEEDS.clock(SEED), Faults([]), SEED, progress=False)
    try:
        again = replay(_parts(problem, Budget(gradients=21)), run.trace, SEED, progress=False)
    except ValueError as error:
        raise AssertionError(f"the run of a problem that is replayable does not replay: {error}") from error
    assert _same(again.last, run.last), "the replay ends at other params"


# Optional members


def gradient_into_is_gradient(problem: Any) -> None:
    """``gradient_into`` writes every entry of ``out``, with the same bits as ``gradient``."""
    can = Capabilities.of(problem)
    if can.gradient_into is None or not can.replayable:
        return
    for point in _points(problem):
        for sample in _samples():
            out = np.full_like(point, math.nan)
            try:
                can.gradient_into(point, sample, out)
            except (TypeError, ValueError) as error:
                raise AssertionError(f"gradient_into and gradient differ: {error}") from error
            expected = np.asarray(problem.gradient(point, sample)).astype(point.dtype)
            assert _same(out, expected), "gradient_into and gradient differ"


def memory_is_all_that_a_worker_remembers(problem: Any) -> None:
    """``gradient_with_memory`` is a function of its arguments, and with a memory of zero it is ``gradient``."""
    can = Capabilities.of(problem)
    if can.gradient_with_memory is None or not can.replayable:
        return
    point, (first, second, *_) = _points(problem)[1], _samples()
    memory, out = np.zeros_like(point), np.full_like(point, math.nan)
    can.gradient_with_memory(point, first, memory, out)
    expected = np.asarray(problem.gradient(point, first)).astype(point.dtype)
    assert _same(out, expected), "with a memory of zero gradient_with_memory must be gradient"
    results = []
    for _ in range(2):
        kept = memory.copy()
        can.gradient_with_memory(point, second, kept, out)
        results.append((out.copy(), kept))
    same = all(_same(one, other) for one, other in zip(*results, strict=True))
    assert same, "the same memory gave another gradient: nothing else may be kept between gradients"


def the_full_gradient_is_the_slope_of_the_loss(problem: Any) -> None:
    """``full_gradient`` agrees with finite differences of ``loss`` in random directions."""
    full_gradient = Capabilities.of(problem).full_gradient
    if full_gradient is None:
        return
    for point in _points(problem):
        gradient = np.asarray(full_gradient(point), dtype=np.float64)
        for direction in _directions(problem):
            slope, tolerance = _slope(problem, point, direction)
            along = float(gradient @ direction)
            assert abs(along - slope) <= tolerance, f"full_gradient has a slope of {along:.6g}, the loss of {slope:.6g}"


def gradients_are_unbiased(problem: Any) -> None:
    """The mean of the gradients over samples and workers is ``full_gradient``."""
    full_gradient = Capabilities.of(problem).full_gradient
    if full_gradient is None:
        return
    point = _points(problem)[-1]
    gradients = _gradients(problem, point)
    away = float(np.linalg.norm(gradients.mean(axis=0) - full_gradient(point)))
    error = math.sqrt(float(gradients.var(axis=0).sum()) / len(gradients))
    rounding = _rounding(point) * (1 + float(np.linalg.norm(full_gradient(point))))
    assert away <= STANDARD_ERRORS * error + rounding, (
        f"the mean of {len(gradients)} gradients is {away:.3g} from full_gradient, the standard error is {error:.3g}"
    )


def losses_at_is_loss(problem: Any) -> None:
    """``losses_at`` returns the loss of each row of a matrix."""
    losses_at = Capabilities.of(problem).losses_at
    if losses_at is None:
        return
    points = np.array(_points(problem))
    expected = [loss_of(problem, point) for point in points]
    np.testing.assert_allclose(np.asarray(losses_at(points)), expected, rtol=_rounding(points[0]))


def the_minimum_is_the_lowest_loss(problem: Any) -> None:
    """``minimum()`` returns a point and its loss, and the loss is not lower near it or near the initial params."""
    minimum = Capabilities.of(problem).minimum
    if minimum is None:
        return
    solution, lowest = minimum()
    tolerance = _rounding(problem.initial()) * (1 + abs(lowest))
    assert abs(loss_of(problem, solution) - lowest) <= tolerance, "minimum() has another loss than its params"
    nearby = [np.asarray(solution + 0.1 * direction, solution.dtype) for direction in _directions(problem)]
    for point in (*_points(problem), *nearby):
        loss = loss_of(problem, point)
        assert loss >= lowest - tolerance, f"a loss of {loss:.9g} is below minimum(), {lowest:.9g}"


def the_constants_hold(problem: Any) -> None:
    """L, mu and G bound ``full_gradient`` between points, B and Delta are distances to ``minimum()``."""
    can = Capabilities.of(problem)
    if can.constants is None:
        return
    constants, slack = can.constants(), 1 + 1e3 * _rounding(problem.initial())
    if can.minimum is not None:
        solution, lowest = can.minimum()
        away, above = np.linalg.norm(problem.initial() - solution), loss_of(problem, problem.initial()) - lowest
        assert constants.B is None or math.isclose(constants.B, away, rel_tol=1e-5), "B is not ‖x_0 − x*‖"
        assert constants.Delta is None or constants.Delta >= above / slack, "Delta is less than F(x_0) − F*"
    if can.full_gradient is not None:
        for first, second in zip(_points(problem)[1:], _points(problem)[:-1], strict=True):
            apart = np.asarray(first - second, dtype=np.float64)
            change = np.asarray(can.full_gradient(first) - can.full_gradient(second), dtype=np.float64)
            longest = float(np.linalg.norm(can.full_gradient(first)))
            distance = float(np.linalg.norm(apart))
            assert constants.L is None or np.linalg.norm(change) <= constants.L * distance * slack, "L is too small"
            assert constants.mu is None or change @ apart >= constants.mu * distance**2 / slack, "mu is too large"
            assert constants.G is None or longest <= constants.G * slack, "G is too small"


def a_split_leaves_the_problem_alone(problem: Any) -> None:
    """``split(2)`` makes another problem with the same params; one that cannot be split raises ``TypeError``."""
    can = Capabilities.of(problem)
    if can.split is None:
        return
    before = loss_of(problem, problem.initial())
    try:
        apart = can.split(2)
    except TypeError:
        return
    assert apart.dimension == problem.dimension, "a split has another dimension"
    assert _same(apart.initial(), problem.initial()), "a split has other initial params"
    shards = Capabilities.of(apart).num_shards
    assert shards in (1, 2), f"a split for two workers has num_shards={shards}"
    assert Capabilities.of(problem).num_shards == can.num_shards, "split changed the problem itself"
    assert loss_of(problem, problem.initial()) == before, "split changed the loss of the problem itself"


def statistics_end_with_a_one(problem: Any) -> None:
    """Statistics are the last entries of params, with a 1 after them in params and gradients."""
    count = Capabilities.of(problem).num_statistics
    if count == 0:
        return
    assert count < problem.dimension, f"all {problem.dimension} params are statistics: nothing is trained"
    assert problem.initial()[-1] == 1, "the last of the statistics in initial() must be 1"
    gradient = problem.gradient(problem.initial(), _samples()[0])
    assert gradient[-1] == 1, "the last of the statistics in a gradient must be 1"


def prepare_can_be_called_again(problem: Any) -> None:
    """``prepare`` changes no gradient and no loss, the first time and later."""
    can = Capabilities.of(problem)
    point, sample = _points(problem)[1], _samples()[1]
    loss = loss_of(problem, point)
    gradient = np.array(problem.gradient(point, sample)) if can.replayable else None
    for _ in range(2):
        can.prepare()
        assert loss_of(problem, point) == loss, "prepare changed the loss"
        if gradient is not None:
            assert _same(np.asarray(problem.gradient(point, sample)), gradient), "prepare changed a gradient"


def message_bytes_are_a_size(problem: Any) -> None:
    """``message_bytes`` is an integer of at least 1."""
    size = Capabilities.of(problem).message_bytes(problem.initial())
    assert isinstance(size, int | np.integer), f"message_bytes must return an integer, got {size!r}"
    assert size >= 1, f"message_bytes must be at least 1, got {size}"


def the_usual_update_is_new_every_time(problem: Any) -> None:
    """``usual_update`` makes an ``Update``; two runs do not share its state."""
    usual = Capabilities.of(problem).usual_update
    first, second = usual(), usual()
    assert isinstance(first, Update), f"usual_update must return a nowait Update, got {first!r}"
    assert first is not second, "usual_update must make a new update every time"


def files_go_into_the_folder(problem: Any) -> None:
    """``write_files`` writes files into the folder it is given, and not into params."""
    write_files = Capabilities.of(problem).write_files
    if write_files is None:
        return
    params = _points(problem)[0]
    before = params.copy()
    with tempfile.TemporaryDirectory() as folder:
        write_files(params, Path(folder))
        assert any(Path(folder).iterdir()), "write_files wrote no file into the folder"
    assert _same(params, before), "write_files changed params"


def a_wrapper_passes_on_what_the_problem_can_do(problem: Any) -> None:
    """A problem with another problem among its attributes is replayable, split and written as that one is."""
    can = Capabilities.of(problem)
    for part in getattr(problem, "__dict__", {}).values():
        if not isinstance(part, Problem):
            continue
        inner = Capabilities.of(part)
        assert inner.replayable or not can.replayable, "the wrapped problem is not replayable, so neither is this"
        assert can.num_shards == inner.num_shards, f"the wrapped problem has num_shards={inner.num_shards}"
        passed = inner.write_files is None or can.write_files is not None
        assert passed, "the wrapped problem has write_files, this has not"


def compiled_runs_are_the_reference_runs(problem: Any) -> None:
    """``compiled_data`` describes the gradients that the problem computes."""
    can = Capabilities.of(problem)
    if can.compiled_data is None or can.compiled_data() is None:
        return
    budget = Budget(steps=40)
    compiled = simulate_compiled(_parts(problem, budget, Sgd()), SPEEDS, Faults([]), SEED, progress=False)
    reference = simulate(_parts(problem, budget, Sgd()), SPEEDS.clock(SEED), Faults([]), SEED, progress=False)
    assert compiled is not None, "a problem with compiled_data was not simulated by compiled code"
    tolerance = _rounding(problem.initial())
    np.testing.assert_allclose(compiled.last, reference.last, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(compiled.history.loss, reference.history.loss, rtol=tolerance)


PROBLEM_CHECKS: list[Callable[[Any], None]] = [
    the_required_members_are_there,
    initial_params_are_new_every_time,
    the_loss_is_a_finite_number,
    metrics_are_numbers_by_name,
    a_gradient_has_one_finite_number_per_param,
    gradients_depend_on_point_and_sample_alone,
    points_are_not_written,
    workers_get_the_same_problem,
    a_replay_is_the_run,
    gradient_into_is_gradient,
    memory_is_all_that_a_worker_remembers,
    the_full_gradient_is_the_slope_of_the_loss,
    gradients_are_unbiased,
    losses_at_is_loss,
    the_minimum_is_the_lowest_loss,
    the_constants_hold,
    a_split_leaves_the_problem_alone,
    statistics_end_with_a_one,
    prepare_can_be_called_again,
    message_bytes_are_a_size,
    the_usual_update_is_new_every_time,
    files_go_into_the_folder,
    a_wrapper_passes_on_what_the_problem_can_do,
    compiled_runs_are_the_reference_runs,
]
"""Checks of a problem. A check of an optional member passes if the problem does not have it."""


def the_mean_gradient_is_the_slope_of_the_loss(problem: Any) -> None:
    """The mean of what workers send agrees with finite differences of ``loss``.

    For problems whose workers send unbiased gradients of ``loss``: not for local steps or biased compression, nor for
    a loss on other data than the gradients.
    """
    for point in _points(problem)[:2]:
        gradients = _gradients(problem, point)
        for direction in _directions(problem):
            slope, tolerance = _slope(problem, point, direction)
            along = gradients @ direction
            mean, error = float(along.mean()), float(along.std()) / math.sqrt(len(along))
            assert abs(mean - slope) <= STANDARD_ERRORS * error + tolerance, (
                f"gradients have a mean slope of {mean:.6g} ± {error:.2g}, the loss of {slope:.6g}"
            )


# Points, samples and runs


def _points(problem: Any) -> list[Vector]:
    """Return the initial params and points near them, read-only; statistics keep their initial values."""
    start = problem.initial()
    trained = start.size - Capabilities.of(problem).num_statistics
    points = [start.copy() for _ in range(4)]
    for number, (point, size) in enumerate(zip(points, (0.0, 0.1, 0.2, 0.5), strict=True)):
        point[:trained] += size * sampler(SEED).sample(0, number).normals(trained)
    for point in points:
        point.flags.writeable = False
    return points


def _samples() -> list[Sample]:
    return [sampler(SEED).sample(worker, job) for worker in (0, 1, 4) for job in (0, 3)]


def _directions(problem: Any) -> list[Floats]:
    """Return directions of length 1 that are zero in the statistics."""
    directions = []
    for number in range(3):
        direction = sampler(SEED).sample(1, number).normals(problem.dimension)
        direction[problem.dimension - Capabilities.of(problem).num_statistics :] = 0
        directions.append(direction / np.linalg.norm(direction))
    return directions


def _gradients(problem: Any, point: Vector) -> Floats:
    """Return gradients at a point, one per row, equally many for each shard of the data."""
    workers = Capabilities.of(problem).num_shards
    jobs = -(-GRADIENTS // workers)
    samples = (sampler(SEED).sample(worker, job) for worker in range(workers) for job in range(jobs))
    return np.array([problem.gradient(point, sample) for sample in samples], dtype=np.float64)


def _slope(problem: Any, point: Vector, direction: Floats) -> tuple[float, float]:
    """Return a central difference of the loss in a direction, and a tolerance for it."""
    length = float(np.finfo(point.dtype).eps) ** (1 / 3)
    ahead, behind = (np.asarray(point + side * direction, point.dtype) for side in (length, -length))
    above, below = loss_of(problem, ahead), loss_of(problem, behind)
    slope = (above - below) / (2 * length)
    return slope, 1e3 * length**2 * max(1.0, abs(above), abs(slope))


def _rounding(vector: Vector) -> float:
    """Return a relative tolerance for rounding errors."""
    return 1e-9 if vector.dtype == np.float64 else 1e-4


def _same(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one, other))


def _parts(problem: Any, budget: Budget, update: Update | None = None) -> Parts:
    workers = list(range(SPEEDS.num_workers))
    recorder, can = TraceRecorder(workers), Capabilities.of(problem)
    server = Server(
        METHOD,
        initial_params(problem),
        workers,
        update=can.usual_update() if update is None else update,
        seed=SEED,
        log=recorder,
        statistics=can.num_statistics,
        statistics_momentum=can.statistics_momentum,
        layout=can.layout,
    )
    return Parts(problem, server, recorder, budget, EvaluationPlan.of(None, budget))
