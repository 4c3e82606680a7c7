"""The package as a whole: fast imports, docstrings, layers and doctests."""

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

import nowait as nw

MODULES = sorted(
    module.name for module in pkgutil.walk_packages(nw.__path__, prefix="nowait.") if "__main__" not in module.name
)


def test_importing_nowait_loads_nothing_heavy():
    heavy = ("numba", "scipy", "matplotlib", "torch", "ray", "rich", "typer", "safetensors")
    code = f"import sys, nowait; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


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
    for name in ("Fixed", "Exponential", "LogNormal", "Pareto", "TimeVarying", "UpDown", "Adversary", "BySample"):
        assert callable(getattr(nw.speeds, name))
    for name in ("LeastSquares", "LogisticRegression", "NoisyQuadratic"):
        assert callable(getattr(nw.problems, name))


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
    assert nw.__version__.count(".") == 2
