"""The optional members of problems: how they are resolved, and that wrappers pass them on."""

import ast
from dataclasses import MISSING, fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import nowait as nw
from nowait.core import Layout, Sgd
from nowait.core.capabilities import Capabilities
from nowait.core.problem import prepare
from nowait.problems import Compressed, LocalSteps, TopK

FIELDS = [field.name for field in fields(Capabilities)]
METHOD = nw.AsynchronousSGD(nw.Constant(0.1))


class Bare:
    """Nothing but the members that every problem has."""

    dimension = 3

    def initial(self):
        return np.zeros(3)

    def gradient(self, point, sample):
        return point - 1.0

    def loss(self, point):
        return float(np.sum((point - 1.0) ** 2) / 2)


class Everything(Bare):
    """Every optional member, none of them with the value that is used without it."""

    num_statistics = 1
    statistics_momentum = 0.25
    layout = Layout.of({"first": (2,), "second": (1,)})
    num_shards = 4
    auto_batch_sizes = SimpleNamespace(chosen={"default": 1})
    replayable = False
    uses_job_numbers = True
    gradient_encoding = "float16"
    point_encoding = "bfloat16"

    def __init__(self, num_statistics=1):
        self.num_statistics = num_statistics

    def gradient_into(self, point, sample, out):
        np.subtract(point, 1.0, out=out)

    def gradient_with_memory(self, point, sample, memory, out):
        np.subtract(point, 1.0, out=out)

    def encoded_gradient(self, point, sample, before, after, code):
        pass

    def device_memory(self):
        return None

    def prepare(self):
        pass

    def process_settings(self):
        return 7

    def take_share(self, share, num_shares):
        pass

    def start_worker(self, worker, num_workers):
        pass

    def items_of(self, worker):
        return 1 + worker

    def between_gradients(self):
        pass

    def evaluate(self, params):
        return {}

    def training_loss(self):
        return 0.5

    def loading_seconds(self):
        return 0.0, 0.0

    def device_of(self, worker):
        return f"cuda:{worker}"

    def write_model(self, params, path, metadata):
        pass

    def checkpoint_model(self):
        pass

    def model(self, params):
        return params

    def params_of(self, source):
        return source

    def message_bytes(self, params):
        return 7

    def usual_update(self):
        return nw.Momentum(0.1)

    def usual_stepsize(self):
        return nw.Constant(0.1)

    def write_files(self, params, folder):
        (folder / "params.txt").write_text(str(params.tolist()))

    def parts_to_send(self):
        return {"everything": self}

    def split(self, workers):
        return self

    def minimum(self):
        return np.ones(3), 0.0

    def constants(self):
        return nw.theory.Constants(L=1.0, sigma=3.0)

    def full_gradient(self, point):
        return point - 1.0

    def gradient_of_worker(self, point, worker):
        return point - 1.0

    def losses_at(self, points):
        return [self.loss(point) for point in points]

    def compiled_data(self):
        return None


class Plain(Everything):
    """Everything that a wrapper can go around."""

    gradient_with_memory = None


def plain():
    return Plain(num_statistics=0)


WRAPPERS = {
    "LocalSteps": lambda problem: LocalSteps(problem, steps=2, stepsize=0.1),
    "Compressed": lambda problem: Compressed(problem, TopK(1)),
    "Compressed, LocalSteps": lambda problem: Compressed(LocalSteps(problem, steps=2, stepsize=0.1), TopK(1)),
}
WITHHELD = {
    "gradient": "each wrapper has its own",
    "gradient_into": "each wrapper has its own, or none",
    "gradient_with_memory": "each wrapper has its own, or none",
    "device_memory": "some wrappers compute with NumPy",
    "encoded_gradient": "what is sent is not a gradient of the wrapped problem",
    "gradient_encoding": "what is sent is not a gradient of the wrapped problem",
    "message_bytes": "what is sent is not a gradient of the wrapped problem",
    "num_statistics": "some wrappers refuse statistics",
    "statistics_momentum": "some wrappers refuse statistics",
    "full_gradient": "it is not the mean of what workers send",
    "gradient_of_worker": "it is not the mean of what a worker sends",
    "compiled_data": "compiled code would compute gradients of the wrapped problem",
}
"""The capabilities that wrappers do not pass on, and why. All others they have if the wrapped problem has them."""


@pytest.fixture(params=WRAPPERS, ids=WRAPPERS.keys())
def wrap(request):
    return WRAPPERS[request.param]


# How members are resolved


def test_the_example_has_every_capability_so_that_no_test_below_forgets_one():
    everything, bare = Capabilities.of(Everything()), Capabilities.of(Bare())
    same = [name for name in FIELDS if getattr(everything, name) == getattr(bare, name)]
    assert same == [], "a new capability must be added to Everything"


def test_a_problem_without_optional_members_gets_the_defaults():
    found = Capabilities.of(Bare())
    absent = [name for name in FIELDS if getattr(found, name) is None]
    assert absent == [
        "gradient_into",
        "gradient_with_memory",
        "between_gradients",
        "gradient_encoding",
        "point_encoding",
        "encoded_gradient",
        "layout",
        "items_of",
        "auto_batch_sizes",
        "usual_stepsize",
        "evaluate",
        "training_loss",
        "loading_seconds",
        "write_files",
        "write_model",
        "model",
        "params_of",
        "parts_to_send",
        "split",
        "minimum",
        "constants",
        "full_gradient",
        "gradient_of_worker",
        "losses_at",
        "compiled_data",
    ]
    assert (found.num_statistics, found.num_shards, found.replayable) == (0, 1, True)
    assert found.usual_update() == Sgd()
    assert found.message_bytes(np.zeros(3, np.float32)) == 12
    assert found.prepare() is None
    assert found.device_memory() is None
    assert found.device_of(3) == "cpu"


def test_attributes_that_are_not_callable_do_not_count_as_methods():
    problem = Bare()
    problem.split, problem.minimum, problem.constants, problem.prepare = 0.8, 3.0, {"L": 1.0}, True
    found = Capabilities.of(problem)
    assert (found.split, found.minimum, found.constants) == (None, None, None)
    assert nw.simulate(problem, METHOD, nw.speeds.Fixed([1.0]), steps=3).stats.steps == 3


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_shards", 0, "num_shards must be an integer of at least 1, got 0"),
        ("num_shards", 2.0, "num_shards must be an integer of at least 1, got 2.0"),
        ("num_statistics", -1, "num_statistics must be an integer of at least 0, got -1"),
        ("capabilities", dict, r"Bare.capabilities\(\) must be a nowait Capabilities"),
    ],
)
def test_members_of_the_wrong_kind_are_refused_where_the_problem_enters(name, value, message):
    problem = type("Bare", (Bare,), {name: staticmethod(value) if callable(value) else value})()
    with pytest.raises((ValueError, TypeError), match=message):
        nw.simulate(problem, METHOD, nw.speeds.Fixed([1.0]), steps=3)


def test_compiled_data_count_only_while_they_stand_for_the_gradient():
    class Twice(nw.problems.NoisyQuadratic):
        def gradient(self, point, sample):
            return 2 * super().gradient(point, sample)

    class Renamed(nw.problems.NoisyQuadratic):
        pass

    assert Capabilities.of(nw.problems.NoisyQuadratic(3)).compiled_data is not None
    assert Capabilities.of(Renamed(3)).compiled_data is not None
    assert Capabilities.of(Twice(3)).compiled_data is None


def probes(source):
    """The names that a module looks for with ``hasattr`` or ``getattr``."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and len(node.args) > 1]
    asking = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in ("hasattr", "getattr")]
    return {call.args[1].value for call in asking if isinstance(call.args[1], ast.Constant)}


def test_nothing_else_looks_for_optional_members():
    package = Path(nw.__file__).parent
    files = {file.relative_to(package).as_posix(): probes(file.read_text("utf-8")) for file in package.rglob("*.py")}
    assert files["core/capabilities.py"] == {
        "auto_batch_sizes",
        "capabilities",
        "compiled_data",
        "gradient_encoding",
        "layout",
        "num_shards",
        "num_statistics",
        "point_encoding",
        "repeatable",
        "replayable",
        "statistics_momentum",
        "uses_job_numbers",
    }
    optional = set(FIELDS) - {"constants"}  # an Estimate has constants, too
    found = {name for name, names in files.items() if names & optional} - {"core/capabilities.py"}
    assert found == set()


# Wrappers


def test_wrappers_decide_about_every_capability():
    """No field has a default, so a capability that a wrapper does not name is a TypeError."""
    defaults = [
        field.name for field in fields(Capabilities) if (field.default, field.default_factory) != (MISSING,) * 2
    ]
    assert defaults == []


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in WITHHELD])
def test_wrappers_pass_on_what_the_problem_can_do(wrap, name):
    inner, bare = Capabilities.of(plain()), Capabilities.of(wrap(Bare()))
    problem = wrap(plain())
    wrapped = getattr(Capabilities.of(problem), name)
    if name == "point_encoding" and "LocalSteps" in repr(problem):
        assert wrapped is None, "only its first step is at the rounded point"
        return
    if name == "prepare" and "LocalSteps" in repr(problem):
        assert wrapped is not inner.prepare, "it loads code as well"
        return
    if name == "usual_update" and "LocalSteps" in repr(problem):
        assert wrapped() == Sgd(), "a difference is a step already"
        return
    assert getattr(inner, name) != getattr(Capabilities.of(Bare()), name), "the example has it"
    assert wrapped != getattr(bare, name), f"{name} of the wrapped problem is lost"
    assert getattr(bare, name) == getattr(Capabilities.of(Bare()), name), "and it is not there if the problem has none"


def test_values_and_results_come_from_the_wrapped_problem(wrap, tmp_path):
    wrapped = Capabilities.of(wrap(plain()))
    assert (wrapped.num_shards, wrapped.replayable) == (4, False)
    assert wrapped.minimum()[1] == 0.0
    assert wrapped.losses_at(np.zeros((2, 3))) == [1.5, 1.5]
    assert wrapped.constants() == nw.theory.Constants(L=1.0), "sigma is that of gradients, which are not sent"
    assert type(wrapped.split(4)) is type(wrap(plain()))
    assert list(wrapped.parts_to_send()) == ["everything"]
    wrapped.write_files(np.zeros(3), tmp_path)
    assert (tmp_path / "params.txt").exists()


@pytest.mark.parametrize("name", ["num_statistics", "full_gradient", "compiled_data"])
def test_wrappers_withhold_what_is_about_gradients(wrap, name):
    assert getattr(Capabilities.of(wrap(plain())), name) == getattr(Capabilities.of(Bare()), name)


def test_each_wrapper_has_a_gradient_of_its_own():
    local, compressed = (Capabilities.of(WRAPPERS[name](plain())) for name in ("LocalSteps", "Compressed"))
    assert local.gradient_into is not None
    assert local.gradient_with_memory is None
    assert local.message_bytes(np.zeros(3)) == 24, "the difference is sent uncompressed"
    assert compressed.gradient_into is None
    assert compressed.gradient_with_memory is not None
    assert compressed.message_bytes(np.zeros(3)) == 12


def test_a_wrapped_problem_that_cannot_be_replayed_is_refused_by_replay(wrap):
    problem = wrap(plain())
    run = nw.simulate(problem, METHOD, nw.speeds.Fixed([1.0] * 4), steps=5)
    with pytest.raises(ValueError, match="cannot be replayed"):
        nw.replay(run.trace, problem, METHOD)


@pytest.mark.parametrize("name", ["minimum", "constants", "split"])
def test_a_wrapper_says_what_the_wrapped_problem_does_not_have(wrap, name):
    with pytest.raises(TypeError, match=rf"Bare has no {name}\(\)|LocalSteps.* has no {name}\(\)"):
        getattr(wrap(Bare()), name)()


def test_constants_of_a_wrapped_problem_without_minimum_are_estimated():
    found = nw.theory.estimate(LocalSteps(Bare(), steps=1, stepsize=0.5), samples=8, iterations=3, descent=3)
    assert pytest.approx(0.5, rel=1e-3) == found.L


# Gradients that a subclass overrides


class Doubled(nw.problems.LeastSquares):
    def gradient(self, point, sample):
        return 2 * super().gradient(point, sample)


class Hidden:
    """Finds everything in the problem that it holds."""

    def __init__(self, problem):
        self.problem = problem

    def __getattr__(self, name):
        return getattr(self.__dict__["problem"], name)

    def gradient(self, point, sample):
        return 2 * self.problem.gradient(point, sample)


def test_a_gradient_that_a_subclass_overrides_is_the_one_that_runs_use():
    """Not the inherited ``gradient_into``, which computes another one."""
    plain = nw.problems.LeastSquares.random(samples=30, dimension=3, noise=0.1, seed=0)
    doubled = Doubled(plain.features, plain.targets)
    half, whole = (
        nw.simulate(problem, nw.AsynchronousSGD(size), nw.speeds.Fixed([1.0, 3.0]), steps=20, engine="reference")
        for problem, size in ((doubled, 0.01), (plain, 0.02))
    )
    assert np.allclose(half.last, whole.last, rtol=1e-12)
    assert Capabilities.of(doubled).gradient_into is None
    assert Capabilities.of(plain).gradient_into is not None


def test_capabilities_of_a_problem_inside_do_not_count():
    inside = nw.problems.LocalSteps(nw.problems.NoisyQuadratic(dimension=3), steps=2, stepsize=0.1)
    assert Capabilities.of(Hidden(inside)).gradient.__self__.problem is inside


def test_a_wrapped_problem_is_prepared_once():
    class Counting(nw.problems.NoisyQuadratic):
        def prepare(self):
            calls.append(self)

    calls = []
    prepare(nw.problems.LocalSteps(Counting(dimension=3), steps=2, stepsize=0.1))
    assert len(calls) == 1
    prepare(Hidden(Counting(dimension=3)))
    assert len(calls) >= 2, "one that is held without being wrapped, too"
