"""Formulas of the pages, from LaTeX to MathML, which browsers show without scripts."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', flags=re.DOTALL)
"""What pymdownx.arithmatex makes of ``$…$`` (a span) and ``$$…$$`` (a div)."""

SPACING = (
    ("<mo>&#x0002F;</mo>", '<mo lspace="0" rspace="0">&#x0002F;</mo>'),
    ("&#x00028;</mo><mo>&#x02212;</mo>", '&#x00028;</mo><mo form="prefix">&#x02212;</mo>'),
)
"""A division sign without space around it, and a minus after a bracket as a sign, as LaTeX sets them."""


def with_mathml(page: str) -> str:
    """Return the HTML of a page with its formulas in MathML."""
    return FORMULA.sub(lambda match: mathml(html.unescape(match[2]), block=match[1] == "div"), page)


def mathml(latex: str, *, block: bool = False) -> str:
    """Return one formula in MathML; raise for a command that the converter does not know."""
    result = convert(latex.strip(), display="block" if block else "inline")
    if "\\" in result:
        raise ValueError(f"the formula {latex!r} has a command that latex2mathml does not know: {result}")
    for plain, spaced in SPACING:
        result = result.replace(plain, spaced)
    return f'<div class="formula">{result}</div>' if block else result
