"""Vectors that travel as codes: from the server's slots to a worker and back, with the bits of the wrapped problem."""

import contextlib
import json
import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cryptography")

import nowait as nw
from nowait.api.training_plan import TrainingPlan
from nowait.core import Ticket, sampler
from nowait.fleet.options import sent_through
from nowait.fleet.server.remote import Exchange, RemoteHost
from nowait.fleet.server.vectors import ServerVectors
from nowait.fleet.wire.hub import Hub
from nowait.fleet.wire.messages import AHEAD, SMALL, Message, MessageKind
from nowait.fleet.wire.records import REPORT, Instruction, ReportKind
from nowait.fleet.wire.shared import SharedSlots
from nowait.fleet.worker.compute import EncodedComputation
from nowait.problems.encodings import AS_THEY_ARE, Encodings, codec_of
from nowait.recording import describe
from nowait.recording.sent import Sent

WIRES = [("float16", "float16"), ("bfloat16", None), (None, "float32"), ("int8", "bfloat16"), ("topk:0.1", None)]


class Both:
    """One worker of a host, as the server and as the host see it, with slots but without processes and sockets."""

    fd, closed, queued = -1, False, ()

    def __init__(self, problem, dimension, stack):
        def slots(*shape):
            return stack.enter_context(contextlib.closing(SharedSlots(*shape)))

        self.points, self.gradients = slots(dimension, "<f8"), slots(dimension, "<f8")
        self.points.allocate()
        encodings = Encodings.of(problem)
        self.vectors = ServerVectors(self.points, self.gradients, encodings)
        owner = SimpleNamespace(ready=lambda host: None, lost=self.lost)
        exchange = Exchange(Hub(), self.vectors, lambda *_: None, lambda event: None, self.take, owner)
        self.connection = self
        self.host = RemoteHost(exchange, self, b"1", lambda host: None)
        self.arrived, self.sent, self.details = [Message(MessageKind.READY, AHEAD.pack(0.0), ())], [], []
        self.host.read()
        self.order = self.host.start(0, 10, 0.0)
        shapes = self.vectors.shapes
        self.host_points, self.slot = slots(*shapes.points), slots(*shapes.gradients)[0]
        codecs, like = encodings.codecs(dimension, "<f8"), np.zeros(dimension)
        setup = (0, problem, 0, self.slot, self.send_details)
        self.compute = EncodedComputation(*setup, like=like, codecs=codecs).compute

    def take(self, records, gradients):
        self.result = gradients[0]

    def lost(self, host, cause, *, wrong, lasting):
        self.result = cause

    def receive(self):
        return self.arrived.pop() if self.arrived else None

    def send(self, kind, content=b"", vectors=()):
        self.sent += [np.array(vector) for vector in vectors]

    def write(self):
        return True

    def close(self):
        self.closed = True

    def send_details(self, worker, ticket, details):
        self.details.append(details)

    def gradient(self, ticket, point, instruction=Instruction.KEEP):
        """Return what the server gets for a ticket at this point."""
        self.points[0][:] = point
        self.order(Ticket(ticket, 0, ticket, ticket), 0, instruction)
        self.host.flush()
        self.host_points[0][:] = self.sent[-1]
        kind = self.compute(ticket, ticket, self.host_points[0], instruction)
        reports = REPORT.pack(ticket, 0.0, 0.0, 0, kind)
        [place] = self.host.destinations(MessageKind.REPORTS, reports, 1)
        place[:] = self.slot  # as the connection does
        return self.reported(reports, [place] if place.nbytes >= SMALL else [self.slot.copy()])

    def reported(self, reports, vectors):
        """Return the gradient that the server gets from a message, or why it disconnects the host."""
        self.arrived.append(Message(MessageKind.REPORTS, reports, vectors))
        self.host.read()
        return self.result


@pytest.fixture
def stack():
    with contextlib.ExitStack() as closed_at_the_end:
        yield closed_at_the_end


@pytest.mark.parametrize(("wire", "points_wire"), WIRES)
@pytest.mark.parametrize("dimension", [7, 40_003])
def test_the_server_gets_the_bits_that_the_problem_computes(wire, points_wire, dimension, stack):
    quadratic = nw.problems.NoisyQuadratic(dimension=dimension, L=1.0, mu=0.3, sigma=0.3)
    problem = sent_through(quadratic, wire, points_wire)
    both, rng = Both(problem, dimension, stack), np.random.default_rng(0)
    memory, before, expected = np.zeros(dimension), np.zeros(dimension), np.empty(dimension)
    keep, undo, forget = Instruction.KEEP, Instruction.UNDO, Instruction.FORGET
    for ticket, instruction in enumerate([forget, keep, keep, undo, undo, keep, forget, keep]):
        point = rng.normal(size=dimension)
        memory = {keep: memory, undo: before, forget: 0 * memory}[instruction]
        before, memory = memory, memory.copy()
        problem.gradient_with_memory(point, sampler(0).sample(0, ticket), memory, expected)
        assert both.gradient(ticket, point, instruction).tobytes() == expected.tobytes()
    sizes = [both.sent[-1].nbytes, both.slot.nbytes]
    codecs = Encodings.of(problem).codecs(dimension, np.float64)
    assert sizes == [8 * dimension if codec is None else codec.num_bytes for codec in codecs]
    assert min(sizes) < 8 * dimension


def test_compressed_gradients_take_the_bytes_that_they_have(stack):
    problem = nw.problems.Compressed(nw.problems.NoisyQuadratic(dimension=1_000), nw.problems.TopK(10))
    both, expected = Both(problem, 1_000, stack), np.empty(1_000)
    problem.gradient_with_memory(np.ones(1_000), sampler(0).sample(0, 0), np.zeros(1_000), expected)
    assert both.gradient(0, np.ones(1_000)).tobytes() == expected.tobytes()
    assert both.slot.nbytes == 10 * 12


class NotAsItSays:
    """A problem that says that it has few entries, and has many."""

    dimension, gradient_encoding = 100, "topk:3"

    def initial(self):
        return np.zeros(100)

    def gradient(self, point, sample):
        return np.ones(100)

    def loss(self, point):
        return 1.0


def test_a_gradient_that_its_encoding_cannot_represent_is_an_error_of_the_problem(stack):
    both = Both(NotAsItSays(), 100, stack)
    both.points[0][:] = 0
    assert both.compute(0, 0, both.points[0], Instruction.KEEP) == ReportKind.ERROR
    assert "a gradient has more than the 3 entries that are sent" in both.details[0][1]


def test_a_code_that_no_vector_has_ends_the_connection(stack):
    problem = nw.problems.Compressed(nw.problems.NoisyQuadratic(dimension=1_000), nw.problems.TopK(10))
    both = Both(problem, 1_000, stack)
    code = np.full(both.slot.nbytes, 255, np.uint8)
    cause = both.reported(REPORT.pack(0, 0.0, 0.0, 0, 0), [code])
    assert cause == "a gradient cannot be decoded: an index is beyond the 1000 entries of the vector"
    assert both.closed


def test_a_version_is_encoded_once_for_all_hosts(stack, monkeypatch):
    points, gradients = (stack.enter_context(contextlib.closing(SharedSlots(50, "<f8"))) for _ in range(2))
    vectors = ServerVectors(points, gradients, Encodings(points="float16"))
    points[0][:], points[1][:] = 1 / 3, 2 / 3
    first, second = vectors.point(0, version=7), vectors.point(1, version=8)
    assert first.view(np.float16)[0] == np.float16(1 / 3)
    points[0][:] = 0.0
    assert vectors.point(0, version=7) is first
    assert first.view(np.float16)[0] == np.float16(1 / 3), (
        "the version in a slot does not change: it is not encoded again"
    )
    assert vectors.point(0, version=9).view(np.float16)[0] == 0.0
    assert second.view(np.float16)[0] == np.float16(2 / 3)


# Settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"wire": "float8"}, "wire must be None, 'float32', 'float16', 'bfloat16', 'int8', or 'topk:' with"),
        ({"wire": "topk:2.5"}, "got 'topk:2.5'"),
        ({"points_wire": "int8"}, "points_wire must be None, 'float32', 'float16' or 'bfloat16', got 'int8'"),
    ],
)
def test_bad_wires_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        nw.RayCluster(**values)


def test_compressed_gradients_have_no_second_wire():
    problem = nw.problems.Compressed(nw.problems.NoisyQuadratic(dimension=5), nw.problems.TopK(1))
    with pytest.raises(ValueError, match="gradients of Compressed are compressed already"):
        sent_through(problem, "float16", None)
    assert sent_through(problem, None, None) is problem


def plan_of(config, engine=None):
    return TrainingPlan.of(config, None, engine)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    problem, method = nw.problems.NoisyQuadratic(dimension=3), nw.AsynchronousSGD(nw.Constant(0.1))
    folder = tmp_path_factory.mktemp("wire") / "run"
    run = nw.train(problem, method, workers=1, steps=1, folder=folder, progress=False)
    assert run.trace.sent is None, "nothing is sent on one machine"
    return json.loads((folder / "config.json").read_text("utf-8"))


def test_a_resumed_run_keeps_its_wires(config):
    cluster = nw.RayCluster(wire="int8", points_wire="float16")
    config = config | {"wire": "int8", "points_wire": "float16", "engine": describe(cluster)}
    for engine in (None, "processes", "ray", replace(cluster, encrypt=False)):
        plan = plan_of(config, engine)
        assert (plan.wire, plan.points_wire) == ("int8", "float16")
    assert plan_of(config).engine == cluster
    with pytest.raises(
        ValueError, match="the run began with wire='int8', which a resumed run keeps: engine= has 'topk:5'"
    ):
        plan_of(config, nw.RayCluster(wire="topk:5"))
    with pytest.raises(ValueError, match=r"config.json, entry 'wire': it must be None, .*got 'zip'"):
        plan_of(config | {"wire": "zip"})


def test_a_run_from_before_wires_is_resumed_without(config):
    config = {name: value for name, value in config.items() if name not in ("wire", "points_wire")}
    assert plan_of(config).wire is None
    with pytest.raises(ValueError, match="the run began with points_wire=None"):
        plan_of(config, nw.RayCluster(points_wire="float16"))


# What the trace says


def test_the_trace_says_what_was_sent_and_a_replay_rounds_in_the_same_way(tmp_path):
    problem, method = nw.problems.NoisyQuadratic(dimension=50, sigma=0.3), nw.AsynchronousSGD(nw.Constant(0.1))
    encoded = sent_through(problem, "int8", "float16")
    run = nw.simulate(encoded, method, nw.speeds.Exponential(1.0, workers=3), steps=40)
    sent = Sent("int8", "float16", 64, 104, "int8", "float16")
    trace = replace(run.trace, sent=sent)
    trace.save(tmp_path / "trace.npz")
    trace.write(tmp_path / "trace.rows")
    assert pickle.loads(pickle.dumps(trace)).sent == sent
    for loaded in (trace, nw.Trace.load(tmp_path / "trace.npz"), nw.Trace.load(tmp_path / "trace.rows")):
        assert loaded.sent == sent
        again = nw.replay(loaded, problem, method)
        assert again.last.tobytes() == run.last.tobytes()
        assert again.trace.sent == sent
        assert again.problem is problem
        assert (again.stats.bytes_up, again.stats.bytes_down) == (run.stats.bytes_up, run.stats.bytes_down)
        assert run.stats.bytes_up == 64 * len(run.trace)
        assert run.stats.bytes_down == 104 * (40 + 3)
    with pytest.raises(ValueError, match="gradient norm"):
        nw.replay(run.trace, problem, method)


@pytest.mark.parametrize(
    "values", [{}, {"wire": "int8"}, [], {"gradients": 1, "points": "", "gradient_bytes": 1, "point_bytes": 1}]
)
def test_what_does_not_say_it_is_refused(values):
    with pytest.raises(ValueError, match="it does not say how vectors were sent"):
        Sent.read(values)


def test_vectors_that_are_sent_as_they_are_have_no_codecs():
    assert AS_THEY_ARE.codecs(10, np.float64) == (None, None)
    assert codec_of(None, 10, np.float32) is None
