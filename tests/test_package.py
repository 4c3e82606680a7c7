"""The package as a whole: fast imports, docstrings, layers and doctests."""

import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import nowait as nw
import nowait.core
import nowait.methods
import nowait.recording

NOT_IMPORTED = ("__main__",) if importlib.util.find_spec("triton") else ("__main__", "triton")
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(nw.__path__, prefix="nowait.")
    if not any(word in module.name for word in NOT_IMPORTED)
)


def test_importing_nowait_loads_nothing_heavy():
    heavy = ("numba", "scipy", "matplotlib", "torch", "triton", "ray", "rich", "typer", "safetensors", "jax", "optax")
    heavy += ("pyarrow",)
    code = f"import sys, nowait; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_delay_rules_need_numpy_alone():
    """Code that does not use nowait's engines may import them where nothing else is installed."""
    code = """
import sys
before = set(sys.modules)
import nowait.rules
assert nowait.rules.delay_adaptive(8, workers=4) == 0.5
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(loaded - set(sys.stdlib_module_names) - {"nowait", "numpy", "_distutils_hack"}))"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_help_of_the_command_line_loads_no_library_for_computing():
    heavy = ("numba", "scipy", "matplotlib", "torch", "triton", "ray")
    code = f"""
import sys
from nowait.cli import app
app(["--help"], standalone_mode=False)
print([name for name in {heavy} if name in sys.modules])"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.rstrip().splitlines()[-1] == "[]"
    assert "certify" in result.stdout


def test_every_exported_name_is_there():
    for name in nw.__all__:
        assert getattr(nw, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = nw.nothing


def test_the_fixed_names_of_the_public_api():
    for name in ("simulate", "replay", "load", "AsynchronousSGD", "MinibatchSGD", "RennalaSGD", "RingmasterASGD"):
        assert callable(getattr(nw, name))
    for name in ("GradientTable", "RingleaderASGD", "RandomAssignment", "Constant", "DelayAdaptive"):
        assert callable(getattr(nw, name))
    for name in (
        "Fixed",
        "Exponential",
        "LogNormal",
        "HalfNormal",
        "Pareto",
        "TimeVarying",
        "UpDown",
        "Adversary",
        "BySample",
    ):
        assert callable(getattr(nw.speeds, name))
    for name in ("LeastSquares", "LogisticRegression", "NoisyQuadratic"):
        assert callable(getattr(nw.problems, name))


@pytest.mark.parametrize(
    ("namespace", "kinds"),
    [
        (nw.stepsizes, (nw.Stepsize, nw.WindowRule)),
        (nw.updates, (nw.Update, Callable)),
        (nw.outputs, (nw.Output,)),
    ],
)
def test_a_namespace_holds_its_whole_family(namespace, kinds):
    members = {name: getattr(namespace, name) for name in namespace.__all__}
    assert all(issubclass(member, kinds) for member in members.values())
    family = {
        name
        for module in (nowait.core, nowait.methods)
        for name in module.__all__
        if inspect.isclass(getattr(module, name)) and issubclass(getattr(module, name), kinds[0])
    }
    assert family <= set(members)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("Box", "updates"),
        ("Ball", "updates"),
        ("L1", "updates"),
        ("EqualParts", "stepsizes"),
        ("ShareOfTheRest", "stepsizes"),
    ],
)
def test_a_name_that_moved_is_where_the_error_says(name, place):
    with pytest.raises(AttributeError, match=f"nowait.{name} has moved: it is nowait.{place}.{name} now"):
        getattr(nw, name)
    assert name not in nw.__all__
    assert inspect.isclass(getattr(getattr(nw, place), name))


@pytest.mark.parametrize(
    "verb",
    [
        nw.simulate,
        nw.train,
        nw.sweep,
        nw.replay,
        nw.resume,
        nw.plan,
        nw.race,
        nw.theory.estimate,
        nw.theory.check_lemmas,
    ],
)
def test_public_verbs_say_what_a_problem_is(verb):
    annotation = inspect.signature(verb).parameters["problem"].annotation
    assert annotation in ("Problem", "Problem | None")
    assert inspect.getmodule(verb).Problem is nw.Problem


def test_the_interfaces_of_annotations_are_exported():
    assert (nw.Server, nw.Arrival, nw.Problem) == (nowait.core.Server, nowait.core.Arrival, nowait.core.Problem)
    assert nw.Control is nowait.recording.Control


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_are_true(name):
    module = importlib.import_module(name)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(module, optionflags=flags).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_has_a_docstring(name):
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    for thing_name, thing in vars(module).items():
        own = getattr(thing, "__module__", None) == name
        if own and not thing_name.startswith("_") and (inspect.isclass(thing) or inspect.isfunction(thing)):
            assert thing.__doc__, f"{name}.{thing_name} has no docstring"


def test_the_version_is_that_of_the_package():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert nw.__version__ == project["version"]
