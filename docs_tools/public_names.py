"""Every public name, the page of the reference it stands on, and what is wrong with the reference."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import griffe

from sources import ROOT, member, public_modules, target_of

PAGES = ROOT / "docs" / "reference"
ENTRY = re.compile(r"^::: (\S+)$", flags=re.MULTILINE)
"""A line of a page at which mkdocstrings puts what the docstring of a name says."""


@dataclass(frozen=True)
class PublicName:
    """One object, and the paths under which users import it."""

    paths: tuple[str, ...]
    """``nowait.Constant`` and ``nowait.stepsizes.Constant``; the first is the one for the reference."""
    docstring: str

    @property
    def summary(self) -> str:
        """The first sentence of the docstring, in Markdown."""
        paragraph = " ".join(self.docstring.partition("\n\n")[0].split())
        return re.split(r"(?<=[^.\d]\.) (?=[A-Z`])", paragraph, maxsplit=1)[0]


def public_names(package: griffe.Module) -> list[PublicName]:
    """Return the public modules and what is in their ``__all__``, each object once."""
    paths: dict[str, list[str]] = defaultdict(list)
    docstrings: dict[str, str] = {}
    for path in public_paths(package):
        target = target_of(member(package, path))
        paths[target.path].append(path)
        docstrings[target.path] = target.docstring.value if target.docstring else ""
    return [PublicName(tuple(paths[target]), docstrings[target]) for target in paths]


def public_paths(package: griffe.Module) -> list[str]:
    """Return the path of every public module but ``nowait`` itself, and of every name in an ``__all__``."""
    modules = public_modules(package)
    names = [f"{module}.{name}" for module in ("nowait", *modules) for name in member(package, module).exports]
    return [*dict.fromkeys([*names, *modules])]


def entries(folder: Path = PAGES) -> list[tuple[str, str]]:
    """Return ``(page, path)`` for every entry of the reference."""
    return [(page.name, path) for page in sorted(folder.glob("*.md")) for path in ENTRY.findall(page.read_text())]


def problems(package: griffe.Module, listed: Iterable[tuple[str, str]]) -> list[str]:
    """Return a sentence for every public name without a docstring, without a page, or with more than one."""
    pages: dict[str, list[str]] = defaultdict(list)
    for page, path in listed:
        pages[path].append(page)
    return [problem for name in public_names(package) for problem in problems_of(name, pages)]


def problems_of(name: PublicName, pages: dict[str, list[str]]) -> list[str]:
    """Return what is wrong with one public name."""
    found = [page for path in name.paths for page in pages.get(path, ())]
    path, wrong = name.paths[0], []
    if not name.docstring:
        wrong.append(f"{path} has no docstring: the reference cannot say what it is")
    if not found:
        wrong.append(f"{path} is on no page of the reference: add the line '::: {path}' to a page in docs/reference")
    if len(found) > 1:
        wrong.append(f"{path} is on {len(found)} pages of the reference ({', '.join(found)}): leave it on one of them")
    return wrong


def table(package: griffe.Module, listed: Iterable[tuple[str, str]]) -> str:
    """Return the table of docs/reference/names.md: every public name, its page, and what it is."""
    page_of = {path: page for page, path in listed}
    rows = ["| name | page | what it is |", "|---|---|---|"]
    for name in sorted(public_names(package), key=lambda name: name.paths[0].lower()):
        path = next(path for path in name.paths if path in page_of)
        others = "".join(f"<br>`{other}`" for other in name.paths if other != path)
        title = page_of[path].removesuffix(".md")
        summary = name.summary.replace("|", "\\|")
        rows.append(f"| [`{path}`]({page_of[path]}#{path}){others} | [{title}]({page_of[path]}) | {summary} |")
    return "\n".join(rows)
