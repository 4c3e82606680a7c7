"""A server whose vectors are tensors: what is the same as in host memory, and what is not."""

import math
import re

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import nowait as nw
from nowait.core import BadWorkerError, GradientArrived, Server
from nowait.core.memory import HOST, memory_of, to_host
from nowait.core.types import norm
from nowait.engines.budget import Budget, EvaluationPlan
from nowait.engines.session import Parts
from nowait.engines.simulator import NotPlannable, simulate, simulate_compiled
from nowait.problems import NoisyQuadratic
from nowait.pytorch import TorchMemory, TorchOptimizer
from nowait.pytorch.memory import _one_operation, _two_operations
from nowait.recording import Callback, TraceRecorder
from nowait.speeds import Faults, Fixed
from nowait.testing import ScriptedWorkers, gradient_from

MEMORY = TorchMemory("cpu")
PLAIN = nw.AsynchronousSGD(nw.Constant(0.5))
PROBLEM = NoisyQuadratic(dimension=4, L=1.0, mu=0.5, sigma=0.1)
SPEEDS = Fixed([1.0, 2.5])


def tensor(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def a_tensor_server(method=PLAIN, num_workers=1, dtype=np.float64, dimension=2, **parts):
    server = Server(method, np.zeros(dimension, dtype), num_workers, memory=MEMORY, **parts)
    server.start()
    return server


def parts_of(memory, callbacks=(), **parts):
    recorder, budget = TraceRecorder([0, 1]), Budget(steps=20)
    server = Server(PLAIN, PROBLEM.initial(), 2, log=recorder, memory=memory, **parts)
    return Parts(PROBLEM, server, recorder, budget, EvaluationPlan.of(5, budget), callbacks=callbacks)


def run_in(memory, callbacks=(), **parts):
    return simulate(parts_of(memory, callbacks, **parts), SPEEDS.clock(0), Faults([]), 0, progress=False)


# The server


def test_params_and_points_are_tensors():
    server = a_tensor_server()
    server.handle(gradient_from(server, 0, tensor(2.0, -4.0)))
    assert torch.equal(server.params, tensor(-1.0, 2.0))
    assert torch.equal(server.point(server.in_flight.first_of(0)), server.params)
    assert server.sum().vector.device == server.params.device


@pytest.mark.parametrize("update", [nw.Sgd(), nw.Momentum(0.9), nw.Nesterov(0.9)], ids=repr)
def test_a_run_has_the_bits_of_host_memory(update):
    run, expected = run_in(MEMORY, update=update), run_in(HOST, update=update)
    assert np.array_equal(run.last, expected.last)
    assert np.array_equal(run.history.loss, expected.history.loss)


def test_results_are_arrays():
    run = run_in(MEMORY, output=nw.UniformAverage())
    expected = run_in(HOST, output=nw.UniformAverage())
    assert isinstance(run.last, np.ndarray)
    np.testing.assert_allclose(run.params, expected.params, rtol=1e-14)
    assert run.params.dtype == run.last.dtype == np.float64


def test_averages_of_float32_params_are_kept_in_float64():
    server = a_tensor_server(dtype=np.float32, output=nw.UniformAverage())
    server.handle(gradient_from(server, 0, tensor(2.0, -4.0, dtype=torch.float32)))
    assert server.output.mean.dtype == torch.float64
    assert server.finish().dtype == np.float32


def test_callbacks_receive_arrays_also_after_the_run():
    class Keep(Callback):
        def on_step(self, control):
            self.control, self.during = control, control.params

    keep = Keep()
    parts = parts_of(MEMORY, (keep,))
    run = simulate(parts, SPEEDS.clock(0), Faults([]), 0, progress=False)
    assert np.array_equal(keep.during, run.last)
    assert not keep.during.flags.writeable
    parts.server.close(run.last)
    assert np.array_equal(keep.control.params, run.last)


def test_a_closed_server_has_its_last_params_as_an_array():
    server = a_tensor_server()
    server.handle(gradient_from(server, 0, tensor(2.0, -4.0)))
    version = server.params
    server.close()
    version[:] = 7.0  # somebody else's memory, by now
    assert np.array_equal(server.params, [-1.0, 2.0])


def test_versions_may_be_slots_of_somebody_else():
    slots = list(torch.zeros(5, 2, dtype=torch.float64).unbind())
    left = iter(slots)
    server = a_tensor_server(allocate=lambda: next(left))
    server.handle(gradient_from(server, 0, tensor(2.0, -4.0)))
    assert torch.equal(slots[server.retain().slot], tensor(-1.0, 2.0))
    assert server.params.data_ptr() in {slot.data_ptr() for slot in slots}


def test_runs_of_tensors_are_not_compiled():
    with pytest.raises(NotPlannable, match="params are not in host memory"):
        simulate_compiled(parts_of(MEMORY), SPEEDS, Faults([]), 0, progress=False)


@pytest.mark.parametrize("update", [nw.Sgd(), nw.Momentum(0.5), TorchOptimizer(torch.optim.AdamW)], ids=repr)
@pytest.mark.parametrize("memories", [(MEMORY, HOST), (HOST, MEMORY)], ids=["to the host", "from the host"])
def test_a_checkpoint_of_one_memory_is_resumed_in_the_other(memories, update):
    first, second = memories
    parts = {"update": update, "output": nw.UniformAverage()}
    expected = ScriptedWorkers(PLAIN, 1, memory=second, **parts).after(8).server.finish()
    state = ScriptedWorkers(PLAIN, 1, memory=first, **parts).after(5).server.state()
    vectors = [state.params, *(value for value in [*state.update.values(), *state.output.values()])]
    assert not any(isinstance(value, torch.Tensor) for value in vectors)
    server = Server(PLAIN, state.params, 1, memory=second, **parts)
    server.resume(state)
    for _ in range(3):
        [ticket] = server.in_flight.values()
        server.handle(GradientArrived(ticket, server.point(ticket) - 1.0, server.now + 1.0))
    np.testing.assert_allclose(server.finish(), expected, rtol=1e-12)


# Checks of gradients and directions


@pytest.mark.parametrize("method", [PLAIN, nw.RennalaSGD(0.5, batch=1)], ids=["apply", "sum"])
def test_a_large_gradient_whose_squares_overflow_float32_is_used(method):
    recorder = TraceRecorder([0])
    server = a_tensor_server(method, dtype=np.float32, log=recorder)
    server.handle(gradient_from(server, 0, tensor(3e25, 4e25, dtype=torch.float32)))
    assert server.counts.rejected == 0
    assert server.params.tolist() == [pytest.approx(-1.5e25), pytest.approx(-2e25)]
    assert recorder.row(0).gradient_norm == pytest.approx(5e25)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("update", [nw.Sgd(), nw.Momentum(0.5)], ids=repr)
def test_a_gradient_that_is_not_finite_is_rejected(update, bad):
    server = a_tensor_server(update=update, num_workers=2)
    server.handle(gradient_from(server, 0, tensor(1.0, bad)))
    assert (server.counts.rejected, server.steps) == (1, 0)


def test_params_that_would_overflow_end_the_run():
    server = a_tensor_server(nw.AsynchronousSGD(nw.Constant(1e25)), dtype=np.float32)
    server.handle(gradient_from(server, 0, tensor(1e18, 0.0, dtype=torch.float32)))
    assert server.diverged == "params after step 1 would not be finite"


def test_params_that_are_very_large_mean_that_the_run_diverged_and_not_that_a_worker_is_broken():
    server = Server(PLAIN, np.full(2, 1e20, np.float32), 2, memory=MEMORY)
    server.start()
    for _ in range(5):
        server.handle(gradient_from(server, 0, math.nan))
    assert server.diverged == "the last 5 gradients of worker 0 are not finite"


@pytest.mark.parametrize(
    ("gradient", "came"),
    [
        (np.zeros(2), "float64 of shape (2,)"),
        (torch.zeros(2), "torch.float32 of shape (2,)"),
        (tensor(1.0), "torch.float64 of shape (1,)"),
        (None, "NoneType"),
    ],
    ids=["array", "dtype", "shape", "nothing"],
)
def test_a_worker_that_sends_something_else_is_named(gradient, came):
    server = a_tensor_server()
    for _ in range(4):
        server.handle(gradient_from(server, 0, gradient))
    message = re.escape(f"sent {came} for a gradient, but params are torch.float64 of shape (2,)")
    with pytest.raises(BadWorkerError, match=message):
        server.handle(gradient_from(server, 0, gradient))


class WithoutGradients:
    """A problem whose gradients are not arrays."""

    dimension = 2

    def initial(self):
        return np.zeros(2)

    def gradient(self, point, sample):
        return "none"

    def loss(self, point):
        return 0.0


def test_a_simulated_problem_that_returns_something_else_is_named():
    recorder, budget = TraceRecorder([0]), Budget(steps=20)
    server = Server(PLAIN, np.zeros(2), 1, log=recorder, memory=MEMORY)
    parts = Parts(WithoutGradients(), server, recorder, budget, EvaluationPlan.of(5, budget))
    with pytest.raises(
        BadWorkerError, match=r"sent <U4 of shape \(\) for a gradient, but params are torch.float64 of shape \(2,\)"
    ):
        simulate(parts, Fixed([1.0]).clock(0), Faults([]), 0, progress=False)


class Along(nw.Method):
    """Steps along a direction."""

    def __init__(self, direction):
        self.direction = direction

    def on_arrival(self, server, arrival):
        server.apply(arrival, 1.0, direction=self.direction)


@pytest.mark.parametrize(
    ("direction", "message"),
    [
        (np.ones(2), "a direction must be a tensor on cpu, as params are, got ndarray"),
        (torch.ones(2, dtype=torch.complex64), "a direction must have real entries, got torch.complex64"),
        (torch.ones(2, device="meta"), "a direction must be a tensor on cpu, as params are, got one on meta"),
    ],
    ids=["array", "complex", "device"],
)
def test_a_direction_of_another_kind_is_an_error(direction, message):
    server = a_tensor_server(Along(direction))
    with pytest.raises(TypeError, match=message):
        server.handle(gradient_from(server, 0))


def test_a_direction_gets_the_dtype_of_params():
    server = a_tensor_server(Along(torch.ones(2, dtype=torch.int32)))
    server.handle(gradient_from(server, 0))
    assert torch.equal(server.params, tensor(-1.0, -1.0))


# Statistics


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", [PLAIN, nw.RennalaSGD(0.1, batch=3), nw.DelayCompensatedSGD(0.1)], ids=repr)
def test_statistics_are_merged_as_in_host_memory(method, dtype):
    gradients = [np.array([1.0, -2.0, 0.3 * number, 1.0 / number, 1.0], dtype) for number in range(1, 7)]
    servers = [Server(method, np.arange(5).astype(dtype), 2, statistics=3, memory=memory) for memory in (HOST, MEMORY)]
    for server in servers:
        server.start()
        for number, gradient in enumerate(gradients):
            ticket = next(iter(server.in_flight.values()))
            server.handle(GradientArrived(ticket, server.memory.from_host(gradient), float(number)))
    expected, here = (to_host(server.params) for server in servers)
    np.testing.assert_allclose(here, expected, rtol=1e-6 if dtype == np.float32 else 1e-14)
    assert not np.array_equal(expected[2:4], [2.0, 3.0])


def test_statistics_that_are_not_finite_reject_the_gradient():
    server = a_tensor_server(dimension=3, statistics=2, num_workers=2)
    server.handle(gradient_from(server, 0, tensor(1.0, math.nan, 1.0)))
    assert (server.counts.rejected, server.steps) == (1, 0)


# The memory itself


class Operations(TorchDispatchMode):
    """Records the names of the operations that tensors are used in."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.__name__.partition(".")[0])
        return function(*args, **(kwargs or {}))


def test_a_step_of_sgd_waits_for_the_device_once():
    server = a_tensor_server()
    server.handle(gradient_from(server, 0, tensor(1.0, 1.0)))  # allocates the last version that one worker needs
    event = gradient_from(server, 0, tensor(2.0, -4.0))
    with Operations() as operations:
        server.handle(event)
    # ``tolist`` reads both norms together; an ``item`` would be a _local_scalar_dense here
    assert operations.names == ["linalg_vector_norm", "mul", "sub", "linalg_vector_norm"]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW], ids=lambda kind: kind.__name__)
def test_a_step_of_a_fused_optimiser_waits_for_the_device_once(kind):
    server = a_tensor_server(update=TorchOptimizer(kind))
    server.handle(gradient_from(server, 0, tensor(1.0, 1.0)))
    event = gradient_from(server, 0, tensor(2.0, -4.0))
    with Operations() as operations:
        server.handle(event)
    assert operations.names.count("linalg_vector_norm") == 2
    assert "_local_scalar_dense" not in operations.names


def test_the_step_of_other_devices_differs_in_rounding_only():
    params, direction = torch.linspace(-1, 1, 1000), torch.linspace(3, -2, 1000)
    results = [torch.empty(1000), torch.empty(1000)]
    for step, out in zip((_one_operation, _two_operations), results, strict=True):
        step(params, direction, 0.1, out)
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-7)


def test_copies_from_and_for_the_host_do_not_change_later():
    values = np.array([1.0, 2.0], np.float32)
    vector = MEMORY.from_host(values)
    values[:] = 3.0
    copy, view = MEMORY.copy_to_host(vector), MEMORY.to_host(vector)
    vector[:] = 5.0
    assert copy.tolist() == [1.0, 2.0]
    assert view.tolist() == [5.0, 5.0]
    assert copy.flags.writeable
    assert not view.flags.writeable


def test_the_memory_of_a_vector():
    assert memory_of(np.zeros(2)) is HOST
    assert memory_of(torch.zeros(2)).device == torch.device("cpu")
    with pytest.raises(TypeError, match="a vector must be a numpy array or a tensor, got list"):
        memory_of([1.0])


@pytest.mark.parametrize("scale", [1.0, 1e30, 1e-30])
def test_norms_neither_overflow_nor_underflow(scale):
    assert norm(torch.tensor([3.0 * scale, -4.0 * scale])) == pytest.approx(5.0 * scale)


# Optimisers


@pytest.mark.parametrize(
    ("optimizer", "fused"),
    [
        (TorchOptimizer(torch.optim.AdamW), True),
        (TorchOptimizer(torch.optim.AdamW, fused=False), False),
        (TorchOptimizer(torch.optim.AdamW, fused="device"), True),
        (TorchOptimizer(torch.optim.RMSprop), None),
    ],
    ids=repr,
)
def test_the_fused_implementation_is_used_where_there_is_one(optimizer, fused):
    for params in (torch.zeros(3), np.zeros(3)):
        optimizer.start(params)
        [running] = optimizer._running.optimizers
        assert running.defaults.get("fused") is fused
        fused = False if "device" in repr(optimizer) else fused


@pytest.mark.parametrize(
    "optimizer",
    [TorchOptimizer(torch.optim.SGD, momentum=0.9), TorchOptimizer(torch.optim.AdamW)],
    ids=repr,
)
def test_a_bad_first_gradient_leaves_a_fused_optimiser_as_it_was(optimizer):
    params, good, out = torch.ones(3), torch.tensor([1.0, 2.0, 3.0]), torch.empty(3)
    results = []
    for bad in (None, torch.tensor([1.0, math.nan, 1.0])):
        optimizer.start(params)
        step = optimizer.stepper(params)
        if bad is not None:
            assert math.isnan(step(params, bad, 0.1, out)[0])
            assert optimizer.state() == {}
        assert step(params, good, 0.1, out) == (pytest.approx(14.0), 0.0)
        step(out.clone(), good, 0.1, out)
        results.append(out.tolist())
    assert results[0] == results[1]


def test_a_large_gradient_is_used_by_a_fused_optimiser():
    optimizer = TorchOptimizer(torch.optim.SGD, momentum=0.9)
    params, out = torch.zeros(2), torch.empty(2)
    optimizer.start(params)
    squares, zero = optimizer.stepper(params)(params, torch.tensor([3e25, 4e25]), 1.0, out)
    assert (squares, zero) == (pytest.approx(25e50), 0.0)
    assert out.tolist() == [pytest.approx(-3e25), pytest.approx(-4e25)]


def test_an_optimiser_does_not_keep_the_memory_of_params():
    optimizer = TorchOptimizer(torch.optim.SGD, momentum=0.9)
    params, out = torch.ones(3), torch.empty(3)
    optimizer.start(params)
    optimizer.apply(params, params, 0.5, out)
    assert out.tolist() == [0.5, 0.5, 0.5]
    assert [parameter.numel() for parameter in optimizer._running._parameters] == [0]


# Checkpoints


@pytest.mark.parametrize("update", [nw.Momentum(0.5), TorchOptimizer(torch.optim.AdamW)], ids=str)
def test_a_snapshot_has_the_values_of_its_moment_and_becomes_arrays_later(update):
    server = a_tensor_server(update=update, output=nw.UniformAverage())
    [ticket] = server.in_flight.tickets.values()
    [assign] = server.handle(GradientArrived(ticket, tensor(1.0, -2.0), time=1.0))
    version, expected, snapshot = server.retain(), server.state(), server.snapshot()
    server.handle(GradientArrived(assign.ticket, tensor(3.0, 5.0), time=2.0))
    found = snapshot.on_host()
    server.release(version)
    assert isinstance(found.params, np.ndarray)
    for part in ("update", "output"):
        ours, theirs = getattr(found, part), getattr(expected, part)
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            assert type(value) is type(theirs[name])
            assert np.array_equal(value, theirs[name]), name
    assert np.array_equal(found.params, expected.params)
    assert not np.array_equal(found.params, to_host(server.params))
