"""The contract of a method, as checks that run on any method. Each raises ``AssertionError``.

@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
def test_my_method(check):
    check(MyMethod(nw.Constant(0.1)))

Those of ``METHOD_MEMORY_CHECKS`` take the memory that vectors are in, too. ``METHOD_CHECKS`` contains them for vectors
that are tensors; without PyTorch, whose tensors are the only other memory, these check nothing.
"""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path

import numpy as np

from nowait import methods
from nowait.core import (
    Method,
    Output,
    RandomIterate,
    Server,
    Sgd,
    StepsizeWeightedAverage,
    StronglyConvexAverage,
    UniformAverage,
    UniformIterate,
    Update,
)
from nowait.core.memory import HOST, Memory, to_host
from nowait.core.types import Vector
from nowait.engines.budget import Budget, EvaluationPlan
from nowait.engines.progress import Progress
from nowait.engines.session import Parts
from nowait.engines.simulator import NotPlannable, replay, simulate, simulate_compiled
from nowait.engines.simulator.plan import READING_VECTORS, READS_UPDATE
from nowait.engines.simulator.planner import Planner
from nowait.engines.simulator.schedule import scheduled_plan
from nowait.problems import NoisyQuadratic
from nowait.recording import Run, Trace, TraceRecorder
from nowait.speeds import Exponential, Faults
from nowait.testing.catalogue import CATALOGUE
from nowait.testing.servers import OverwritingLog
from nowait.testing.workers import ScriptedWorkers

PROBLEM = NoisyQuadratic(dimension=5, L=1.0, mu=0.5, sigma=0.1)
SPEEDS = Exponential([0.3, 1.0, 1.0, 2.0, 7.0])
SEED = 3
BECAUSE_OVERWRITTEN = (
    "because a gradient or point was overwritten after its on_arrival: keep a copy (arrival.gradient.copy()) or a "
    "server.sum(), because engines use that memory again"
)
VERBS_FIRST = "call the server's verbs before the method changes state of its own"
NOT_COMPILED = (
    methods.AdaptiveRevision,
    methods.Auto,
    methods.ClippedASGD,
    methods.DelayCompensatedSGD,
    methods.PickySGD,
)
"""The methods of this library that read vectors or the update, and have no plan for that reason."""


def two_runs_of_one_object_are_equal(method: Method) -> None:
    """``start`` initialises all run state."""
    first, second = _run(method), _run(method)
    same = np.array_equal(first.trace.arrivals, second.trace.arrivals) and np.array_equal(first.last, second.last)
    assert same, "two runs of one object differ: start must initialise all run state"


def gradients_and_points_are_not_kept(method: Method) -> None:
    """``arrival.gradient`` and ``arrival.point`` are not used after ``on_arrival``, when other values are in them."""
    kept = _params_after_events(ScriptedWorkers(method, num_workers=3, overwrite=False))
    try:
        overwritten = _params_after_events(ScriptedWorkers(method, num_workers=3))
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} ({error}) {BECAUSE_OVERWRITTEN}") from error
    for event, (expected, params) in enumerate(zip_longest(kept, overwritten)):
        assert np.array_equal(expected, params), f"params changed at event {event} {BECAUSE_OVERWRITTEN}"


def _params_after_events(workers: ScriptedWorkers) -> list[Vector]:
    """Return params after each of 30 events; fewer if the run diverges."""
    params: list[Vector] = []
    while len(params) < 30 and workers.server.diverged is None:
        workers.next_event()
        params.append(workers.server.params.copy())
    return params


def params_cannot_be_written(method: Method) -> None:
    """Params and points are read-only for a method."""
    workers = ScriptedWorkers(method, num_workers=3)
    for _ in range(10):
        workers.next_arrival()
        reachable = [workers.server.point(ticket) for ticket in workers.server.in_flight.values()]
        writeable = [point.flags.writeable for point in [*reachable, workers.server.params]]
        assert not any(writeable), "a method could write params"


def a_budget_ends_the_run(method: Method) -> None:
    """Budgets of steps, gradients and seconds end a run exactly."""
    steps = _run(method, Budget(steps=25)).stats.steps
    assert steps == 25, f"a budget of 25 steps ended after {steps}: one arrival should make at most one step"
    gradients = _run(method, Budget(gradients=50)).stats.gradients
    assert gradients == 50, f"a budget of 50 gradients ended after {gradients}"
    seconds = _run(method, Budget(seconds=20.0)).stats.seconds
    assert seconds == 20.0, f"a budget of 20 seconds ended after {seconds}"


def the_loss_falls(method: Method) -> None:
    """The loss of a quadratic falls by a factor of ten."""
    history = _run(method, Budget(steps=400)).history
    first, last = history.loss[0], history.loss[-1]
    assert last < first / 10, f"the loss of an easy quadratic went from {first:.3g} to {last:.3g} only"


def a_replay_is_the_run(method: Method, memory: Memory = HOST) -> None:
    """A saved trace with joins and leaves replays to the same params, bit for bit."""
    run = _run(method, faults=_turmoil(), memory=memory)
    with tempfile.TemporaryDirectory() as folder:
        run.trace.save(Path(folder) / "trace.npz")
        trace = Trace.load(Path(folder) / "trace.npz")
    parts = _parts(method, trace.initial_workers.tolist(), Budget(gradients=len(trace) + 1), memory=memory)
    again = replay(parts, trace, SEED, progress=False)
    same = np.array_equal(again.trace.arrivals, run.trace.arrivals) and np.array_equal(again.last, run.last)
    same = same and again.trace.notes == run.trace.notes == trace.notes
    assert same, "the replay differs: a method may depend on events, server.now and server.random alone"


def a_resumed_run_is_its_replay(method: Method, memory: Memory = HOST) -> None:
    """What ``state`` returns is enough: ``resume`` goes on from a checkpoint as in a replay, which has seen it all."""
    for events in (1, 5, 18, 30):
        replayed = ScriptedWorkers(method, num_workers=3, memory=memory).after(events)
        other = dataclasses.replace(method) if dataclasses.is_dataclass(method) else copy.copy(method)
        ScriptedWorkers(other, num_workers=3, memory=memory).after(7)  # it has the state of another run
        resumed = replayed.resumed_with(other)
        replayed.resume()
        for _ in range(25):
            resumed.next_event()
            replayed.next_event()
            same = np.array_equal(to_host(resumed.server.params), to_host(replayed.server.params))
            assert same, (
                f"a run that is resumed after {events} events is not its replay: resume must initialise all run state "
                f"from what state returns"
            )


def leaves_at_any_event_are_survived(method: Method, memory: Memory = HOST) -> None:
    """Any worker may leave after any event, without a rejoin, and steps are still made."""
    for events in range(12):
        for worker in range(4):
            workers = ScriptedWorkers(method, num_workers=4, memory=memory).after(events)
            workers.lose(worker)
            _steps_go_on(workers)


def all_but_one_may_leave(method: Method) -> None:
    """One remaining worker still makes steps."""
    for events in range(8):
        workers = ScriptedWorkers(method, num_workers=4).after(events)
        for worker in (3, 1, 0):
            workers.lose(worker)
        _steps_go_on(workers)


def joins_at_any_event_are_used(method: Method, memory: Memory = HOST) -> None:
    """A worker that joins after any event gets tickets, also one that returns after all have left."""
    for events in range(12):
        workers = ScriptedWorkers(method, num_workers=3, memory=memory).after(events)
        workers.join(7)
        _steps_go_on(workers)
        for worker in tuple(workers.server.workers):
            workers.lose(worker)
        workers.join(1)
        _steps_go_on(workers)


def a_bad_gradient_is_as_if_it_never_came(method: Method, memory: Memory = HOST) -> None:
    """A NaN gradient at any event changes no state: the gradient of its reissued ticket is used in its place."""
    clean = to_host(ScriptedWorkers(method, num_workers=3, memory=memory).after(20).server.params)
    for place in range(20):
        workers = ScriptedWorkers(method, num_workers=3, memory=memory).after(place)
        workers.next_arrival(bad_first=True)
        workers.after(19 - place)
        same = np.array_equal(to_host(workers.server.params), clean)
        assert same, f"a NaN at event {place} changed the run: {VERBS_FIRST}"
        _a_gradient_between_changes_nothing(method, place, memory)


def _a_gradient_between_changes_nothing(method: Method, place: int, memory: Memory) -> None:
    """Let the gradient of another worker arrive between a NaN and the gradient of the reissued ticket."""
    ends: list[Vector] = []
    for bad in (False, True):
        workers = ScriptedWorkers(method, num_workers=3, memory=memory).after(place)
        busy = workers.busy()
        if len(busy) < 2:
            return
        first, other = (workers.server.in_flight.of(busy[(place + k) % len(busy)])[0] for k in (0, 1))
        if bad:
            first = workers.reject(first)
        for ticket in (other, first):
            if ticket.id in workers.server.in_flight:
                workers.finish(ticket)
        ends.append(to_host(workers.after(18 - place if place < 18 else 0).server.params).copy())
    clean, changed = ends
    assert np.array_equal(clean, changed), (
        f"a NaN at event {place}, with another worker's gradient before its repetition, changed the run: {VERBS_FIRST}"
    )


def every_output_can_be_asked_for(method: Method) -> None:
    """Averaging outputs work with a new method object: they need the stepsizes of gradients in flight."""
    fresh = dataclasses.replace(method) if dataclasses.is_dataclass(method) else method
    for output in (
        UniformAverage(),
        StepsizeWeightedAverage(),
        StronglyConvexAverage(0.5),
        RandomIterate(),
        UniformIterate(),
    ):
        run = _run(fresh, Budget(steps=40), output=output)
        assert np.isfinite(run.params).all(), f"{type(output).__name__} is not finite"
        assert run.stats.steps == 40


def it_is_tuned_as_a_method(method: Method) -> None:
    """``tuned_as`` returns a method that is tuned itself, and an update for it."""
    tuned, update = method.tuned_as(Sgd())
    assert isinstance(tuned, Method), f"tuned_as returned {tuned!r} instead of a method"
    assert isinstance(update, Update), f"tuned_as returned {update!r} instead of an update"
    assert tuned.tuned_as(Sgd())[0] is tuned, f"{type(tuned).__name__} is tuned as yet another method"
    assert update.is_plain or not tuned.makes_its_own_update, f"{type(tuned).__name__} makes its own update"


def compiled_runs_are_the_reference_runs(method: Method) -> None:
    """A run from a plan has the same trace, params and losses. Methods that read vectors or the update have no plan."""
    for faults in (Faults([]), _turmoil()):
        compiled, reason = _compiled_run(method, faults)
        if compiled is None:
            is_known = reason in (*READING_VECTORS, READS_UPDATE) and not _is_expected_to_compile(method)
            assert is_known, f"the run was not compiled: {reason}"
            continue
        assert type(method) not in NOT_COMPILED, "the run was compiled: remove the method from NOT_COMPILED"
        reference = _run(method, None, faults)
        columns = [name for name in reference.trace.arrivals.dtype.names or () if name != "gradient_norm"]
        same = all(np.array_equal(compiled.trace.arrivals[name], reference.trace.arrivals[name]) for name in columns)
        assert same, "the plan has another trace: a method must act on the server's verbs and answers alone"
        assert np.array_equal(compiled.trace.events, reference.trace.events), "the plan has other events"
        assert compiled.trace.notes == reference.trace.notes, "the plan has other notes"
        np.testing.assert_allclose(compiled.last, reference.last, rtol=1e-10)
        np.testing.assert_allclose(compiled.history.loss, reference.history.loss, rtol=1e-10)


def _is_expected_to_compile(method: Method) -> bool:
    """Whether it is a method of this library that does not read gradients, points or params."""
    return type(method) in {type(known) for known in CATALOGUE.values()} - set(NOT_COMPILED)


def _compiled_run(method: Method, faults: Faults) -> tuple[Run | None, str]:
    """Return the compiled run, or None and why there is none."""
    parts = _parts(method, faults.present_at_start(SPEEDS.num_workers), Budget(steps=60))
    try:
        return simulate_compiled(parts, SPEEDS, faults, SEED, progress=False), ""
    except NotPlannable as error:
        return None, error.reason


def the_schedule_is_what_the_method_does(method: Method) -> None:
    """A declared schedule gives the plan that the method itself makes, stepsizes and instructions included."""
    declared = method.schedule()
    if declared is None:
        return
    workers, budget = list(range(SPEEDS.num_workers)), Budget(gradients=300)
    planner = Planner(method, workers, SPEEDS.clock(SEED), Faults([]), budget, seed=SEED, averaging=True)
    made, scheduled = (
        planner.plan(Progress("", shown=False)),
        scheduled_plan(declared, SPEEDS.formula(SEED), workers, budget, averaging=True),
    )
    assert np.array_equal(made.arrivals, scheduled.arrivals), "the schedule has other arrivals than the method"
    assert np.array_equal(made.codes, scheduled.codes), "the schedule has other instructions than the method"
    assert np.array_equal(made.numbers, scheduled.numbers), "the schedule has other stepsizes than the method"
    assert made.counts == scheduled.counts, "the schedule counts otherwise than the method"
    assert made.uses is not None
    assert scheduled.uses is not None
    for name in ("version", "stepsize", "stepsize_sum"):
        same = np.allclose(getattr(made.uses, name), getattr(scheduled.uses, name), rtol=1e-12, atol=0.0)
        assert same, f"the schedule tells outputs another {name} than the method"


def runs_in_this_memory_are_those_of_host_memory(method: Method, memory: Memory) -> None:
    """A run with vectors in another memory has the same trace, and the same params and average up to rounding."""
    run, expected = (
        _run(method, faults=_turmoil(), output=StepsizeWeightedAverage(), memory=place) for place in (memory, HOST)
    )
    for name in expected.trace.arrivals.dtype.names or ():
        here, there = run.trace.arrivals[name], expected.trace.arrivals[name]
        same = here.shape == there.shape and np.allclose(here, there, rtol=1e-12, atol=0.0)
        assert same, f"the trace has another {name} than in host memory"
    np.testing.assert_allclose(run.last, expected.last, rtol=1e-10)
    np.testing.assert_allclose(run.params, expected.params, rtol=1e-10)
    np.testing.assert_allclose(run.history.loss, expected.history.loss, rtol=1e-10)


METHOD_MEMORY_CHECKS: list[Callable[[Method, Memory], None]] = [
    runs_in_this_memory_are_those_of_host_memory,
    a_replay_is_the_run,
    a_resumed_run_is_its_replay,
    leaves_at_any_event_are_survived,
    joins_at_any_event_are_used,
    a_bad_gradient_is_as_if_it_never_came,
]
"""Checks of a method with its vectors in a memory, such as ``nowait.pytorch.TorchMemory("cpu")``."""


def _with_tensors(check: Callable[[Method, Memory], None]) -> Callable[[Method], None]:
    """Return a check of ``METHOD_MEMORY_CHECKS`` as a check of ``METHOD_CHECKS``, with vectors that are tensors."""

    def with_tensors(method: Method) -> None:
        if find_spec("torch") is None:
            return
        from nowait.pytorch import TorchMemory

        check(method, TorchMemory("cpu"))

    with_tensors.__name__ = f"{check.__name__}_with_tensors"
    with_tensors.__doc__ = check.__doc__
    return with_tensors


METHOD_CHECKS: list[Callable[[Method], None]] = [
    gradients_and_points_are_not_kept,
    two_runs_of_one_object_are_equal,
    params_cannot_be_written,
    a_budget_ends_the_run,
    the_loss_falls,
    a_replay_is_the_run,
    a_resumed_run_is_its_replay,
    leaves_at_any_event_are_survived,
    all_but_one_may_leave,
    joins_at_any_event_are_used,
    a_bad_gradient_is_as_if_it_never_came,
    every_output_can_be_asked_for,
    it_is_tuned_as_a_method,
    compiled_runs_are_the_reference_runs,
    the_schedule_is_what_the_method_does,
    *(_with_tensors(check) for check in METHOD_MEMORY_CHECKS),
]
"""Checks of a method. Each is a function of one method, and raises ``AssertionError`` if it breaks the contract."""


# Runs in the simulator


def _turmoil() -> Faults:
    return Faults([(2.0, "leave", 0), (4.0, "join", 5), (6.5, "join", 0), (8.0, "leave", 3), (9.0, "leave", 1)])


def _parts(
    method: Method, workers: list[int], budget: Budget, output: Output | None = None, memory: Memory = HOST
) -> Parts:
    recorder = TraceRecorder(workers)
    log = OverwritingLog(recorder)
    server = Server(method, PROBLEM.initial(), workers, output=output, seed=SEED, log=log, memory=memory)
    return Parts(PROBLEM, server, recorder, budget, EvaluationPlan.of(None, budget))


def _run(
    method: Method,
    budget: Budget | None = None,
    faults: Faults | None = None,
    output: Output | None = None,
    memory: Memory = HOST,
) -> Run:
    faults = Faults([]) if faults is None else faults
    parts = _parts(method, faults.present_at_start(SPEEDS.num_workers), budget or Budget(steps=60), output, memory)
    return simulate(parts, SPEEDS.clock(SEED), faults, SEED, progress=False)


def _steps_go_on(workers: ScriptedWorkers) -> None:
    steps = workers.server.steps
    for _ in range(200):
        workers.next_event()
        if workers.server.steps >= steps + 3:
            return
    raise AssertionError(f"no three steps in 200 events, with workers {list(workers.server.workers)}")
