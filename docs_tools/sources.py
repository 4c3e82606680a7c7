"""The package as griffe reads it from its sources, without importing it: PyTorch, JAX and Ray are not needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parent.parent
EXTRA_MODULES = ("nowait.testing", "nowait.pytorch", "nowait.optax")
"""Public modules that users import by themselves; the others are names in ``nowait``."""


class Package(griffe.Extension):
    """Reads the package as Python does, and its docstrings as Markdown. mkdocstrings uses it, too (mkdocs.yml)."""

    def on_class_instance(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        cls.decorators = [as_dataclass(decorator) for decorator in cls.decorators]

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        for thing in own_objects(pkg):
            if thing.docstring is not None:
                thing.docstring.value = with_fenced_examples(thing.docstring.value)
        loader.resolve_aliases(implicit=True, external=False)
        for thing in own_objects(pkg):
            if isinstance(thing, griffe.Class):
                leave_out_overrides(thing)
        for path in ("nowait", *public_modules(pkg), "nowait.studies"):
            replace_modules_by_functions(member(pkg, path))


def load() -> griffe.Module:
    """Return the package, with all aliases resolved that lead to its own objects."""
    extensions = griffe.load_extensions("dataclasses", Package)
    package = griffe.load("nowait", search_paths=[ROOT / "src"], extensions=extensions, allow_inspection=False)
    assert isinstance(package, griffe.Module)
    return package


def public_modules(package: griffe.Module) -> list[str]:
    """Return the paths of the modules, besides ``nowait``, whose ``__all__`` is public."""
    exported = [str(name) for name in package.exports or ()]
    own = [f"nowait.{name}" for name in exported if f"nowait.{name}" == target_of(package.members[name]).path]
    return [*(path for path in own if member(package, path).is_module), *EXTRA_MODULES]


def target_of(thing: Any) -> griffe.Object:
    """Return the object that an alias leads to."""
    found = thing.final_target if thing.is_alias else thing
    assert isinstance(found, griffe.Object)
    return found


def member(package: griffe.Module, path: str) -> Any:
    """Return what a dotted path that starts with the package's own name leads to."""
    _, _, rest = path.partition(".")
    return package[rest] if rest else package


def own_objects(thing: griffe.Object) -> list[griffe.Object]:
    """Return an object and everything defined in it."""
    children = [child for child in thing.members.values() if isinstance(child, griffe.Object)]
    return [thing, *(inner for child in children for inner in own_objects(child))]


def leave_out_overrides(thing: griffe.Class) -> None:
    """Remove the methods that a base class documents: the page of ``nw.Method`` says what ``on_arrival`` is for."""
    documented = {name for base in thing.mro() for name, inner in base.members.items() if inner.has_docstring}
    for name, inner in list(thing.members.items()):
        if name in documented and isinstance(inner, griffe.Function) and not name.startswith("_"):
            thing.del_member(name)


def as_dataclass(decorator: griffe.Decorator) -> griffe.Decorator:
    """Return the decorator, or ``dataclass`` for ours, which griffe does not know."""
    if str(decorator.value) != "method_dataclass":
        return decorator
    known = griffe.ExprName("dataclasses.dataclass")
    return griffe.Decorator(known, lineno=decorator.lineno, endlineno=decorator.endlineno)


def replace_modules_by_functions(module: griffe.Module) -> None:
    """Make ``nowait.train`` the function, as in Python; griffe takes the module ``train`` that the function is in."""
    for name in map(str, module.exports or ()):
        function = function_in(module.members[name], name)
        if function is not None:
            module.members[name] = griffe.Alias(name, function, parent=module)


def function_in(thing: Any, name: str) -> griffe.Function | None:
    """Return the function of the same name that is in a module, or in a module of that name in it."""
    found = thing.final_target if thing.is_alias else thing
    while isinstance(found, griffe.Module) and name in found.members:
        found = found.members[name]
    return found if isinstance(found, griffe.Function) and found is not thing else None


EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!>>> )\S.*\n?)*)+", flags=re.MULTILINE)
"""Lines of a doctest: prompts, and what follows them up to an empty line."""


def with_fenced_examples(docstring: str) -> str:
    """Return a docstring whose doctests are code blocks without flags; to Markdown they would be quotations."""
    docstring = re.sub(r" *# doctest: .*", "", docstring)
    return EXAMPLE.sub(lambda match: f"\n```pycon\n{match[0].rstrip()}\n```\n", docstring)
