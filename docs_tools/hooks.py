"""Hooks of mkdocs: check the reference, write the list of all names, and typeset formulas."""

from __future__ import annotations

from typing import Any

from mkdocs.exceptions import PluginError

import public_names
import sources
from formulas import with_mathml

PLACE_OF_THE_NAMES = "(The table is made when the site is built: `make docs`.)"


def on_pre_build(config: Any) -> None:
    """End the build if a public name has no docstring or not exactly one page."""
    wrong = public_names.problems(sources.load(), public_names.entries())
    if wrong:
        raise PluginError("the API reference is incomplete:\n" + "\n".join(wrong))


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Write the table of docs/reference/names.md."""
    if PLACE_OF_THE_NAMES not in markdown:
        return markdown
    return markdown.replace(PLACE_OF_THE_NAMES, public_names.table(sources.load(), public_names.entries()))


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Typeset the formulas of a page."""
    return with_mathml(html)
