"""Problems named on the command line: a LIBSVM file, or a function in a Python file or module."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import nowait as nw
from nowait.cli.names import choice
from nowait.core.problem import checked_problem
from nowait.engines.progress import spinner
from nowait.studies.own_code import module_in
from nowait.studies.units import stepsize_unit

LOSSES = {"least-squares": nw.problems.LeastSquares, "logistic": nw.problems.LogisticRegression}
BUILT_IN_LOSS = "least-squares"
COMMAND = "command"
"""The label of a run that stores the options of the command."""


def load_problem(text: str | None, loss: str, batch_size: int) -> Any:
    """Return the problem that ``--problem`` names: ``file.libsvm``, ``module:function`` or ``file.py:function``.

    None is the paper's least squares problem.
    """
    with spinner("loading the problem"):
        return _loaded(text, loss, batch_size)


def _loaded(text: str | None, loss: str, batch_size: int) -> Any:
    loss = choice(loss, LOSSES, "--loss")
    if text is None:
        if loss != BUILT_IN_LOSS:
            raise ValueError("the built-in problem is least squares: give --problem FILE for another loss")
        return nw.problems.LeastSquares.random(batch_size=batch_size, seed=42)
    code = code_of(text)
    if code is not None:
        return _made_by(*code)
    if not Path(text).is_file():
        raise ValueError(f"--problem: there is no file {text}; for a function write file.py:function")
    features, targets = nw.problems.read_libsvm(Path(text))
    return LOSSES[loss](features, targets, batch_size=batch_size)


def remembered(text: str | None) -> str | None:
    """Return a name that is valid in other folders too, with the absolute path of a file."""
    if text is None:
        return None
    code = code_of(text)
    if code is None:
        return str(Path(text).resolve())
    place, function = code
    return f"{Path(place).resolve()}:{function}" if place.endswith(".py") else text


def code_of(text: str) -> tuple[str, str] | None:
    """Return the file or module and the function that ``--problem`` names; None if it names a data file."""
    place, colon, function = text.rpartition(":")
    return (place, function) if colon and function.isidentifier() and not Path(text).exists() else None


def source_file(place: str) -> str | None:
    """Return the file that ``_module`` would run, without running anything; None if it is not known."""
    if place.endswith(".py"):
        return str(Path(place).resolve())
    names = place.split(".")
    with _searching_here():
        spec = _spec(names[0], None)
        for number in range(1, len(names)):
            if spec is None or spec.submodule_search_locations is None:
                return None
            spec = _spec(".".join(names[: number + 1]), list(spec.submodule_search_locations))
    return None if spec is None else spec.origin


def _spec(name: str, search: list[str] | None) -> ModuleSpec | None:
    """Return the spec of a module. Unlike ``importlib.util.find_spec``, this does not import its package."""
    found = (finder.find_spec(name, search) for finder in sys.meta_path)
    return next((spec for spec in found if spec is not None), None)


@contextlib.contextmanager
def _searching_here() -> Iterator[None]:
    """Search modules in the current folder first, as ``_module`` does."""
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = before


def unit_of(problem: Any) -> float:
    """Return the order of magnitude of stepsizes: 1/L, exact for built-in problems, else estimated."""
    with spinner("estimating the problem's constants"):
        return stepsize_unit(problem, nw.theory.estimate(problem), gradients=10_000)


def _made_by(place: str, function: str) -> Any:
    """Call the user's function without arguments and return its problem."""
    make = getattr(_module(place), function, None)
    if not callable(make):
        raise ValueError(f"{place} has no function {function}: --problem {place}:{function} calls it")
    try:
        inspect.signature(make).bind()
    except TypeError:
        raise ValueError(f"--problem {place}:{function}: it is called without arguments, but needs some") from None
    return checked_problem(make())


def _module(place: str) -> Any:
    """Import the module of this name, or in this file; its folder stays on the path, for worker processes."""
    if place.endswith(".py"):
        return _module_in_file(Path(place))
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise ValueError(f"--problem: there is no module {error.name}, which {place} needs") from error
    except SyntaxError as error:
        raise ValueError(f"--problem: {error}") from error


def _module_in_file(path: Path) -> Any:
    """Import a file; raise if its name is that of another module, which workers would import instead."""
    if not path.is_file():
        raise ValueError(f"--problem: there is no file {path}")
    module = module_in(path)
    if module.__name__ != path.stem:
        raise ValueError(f"--problem: there is another module named {path.stem}; give the file {path} another name")
    return module
