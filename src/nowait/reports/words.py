"""Names of classes and problems in words, for titles and legends."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

LONGEST_TEXT = 90


def in_words(name: str) -> str:
    """Split the name of a class into words; abbreviations stay as they are.

    >>> in_words("AsynchronousSGD"), in_words("LeastSquares"), in_words("RingmasterASGD")
    ('Asynchronous SGD', 'Least squares', 'Ringmaster ASGD')
    """
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name).split(" ")
    return " ".join([parts[0], *(part if part.isupper() and len(part) > 1 else part.lower() for part in parts[1:])])


def problem_in_words(text: str) -> str:
    """Return the ``repr`` of a problem in words, with its size.

    >>> problem_in_words(
    ...     "LeastSquares(10000 dense rows, dimension 400, batch_size=1, l2=0.0)"
    ... )
    'Least squares, 10,000 × 400'
    >>> problem_in_words("NoisyQuadratic(dimension=4, L=1.0, mu=0.1)")
    'Noisy quadratic, dimension 4'
    """
    found = re.match(r"<?(?:[\w.]+\.)?(\w+)", text)
    if not found or not found[1][0].isupper():
        return text[:LONGEST_TEXT]
    wrapped = re.match(r"\w+\((\w+\(.*)", text)
    if wrapped and found[1] in ("Compressed", "Encoded", "LocalSteps"):
        return f"{problem_in_words(wrapped[1])}, {in_words(found[1]).lower()}"
    return ", ".join(filter(None, [_names().get(found[1], in_words(found[1])), _size(text)]))


def _names() -> dict[str, str]:
    return {"TorchProblem": "PyTorch model"}


def _size(text: str) -> str:
    rows = re.search(r"(\d+) (?:dense|sparse) rows, dimension (\d+)", text)
    if rows:
        return f"{int(rows[1]):,} × {int(rows[2]):,}"
    model = re.search(r"\(([\d,]+ params)[^,]*, ([\d,]+ items|a stream)", text)
    if model:
        return f"{model[1]}, {model[2]}"
    dimension = re.search(r"dimension[= ](\d+)", text)
    return f"dimension {int(dimension[1]):,}" if dimension else ""


def title_of(configs: Iterable[dict[str, Any]], workers: Iterable[int]) -> str:
    """Return a title for runs: what they have in common of problem, method and number of workers."""
    configs, counts = list(configs), set(workers)
    problems = {problem_in_words(str(config["problem"])) for config in configs if config.get("problem")}
    methods = {_method(config) for config in configs} - {""}
    method = in_words(min(methods)) if len(methods) == 1 else ""
    parts = []
    if len(problems) == 1:
        parts.append(min(problems))
    elif problems:
        parts.append(f"{len(problems)} problems")
    if len(counts) == 1 and (count := min(counts)):
        parts.append(f"{count:,} worker{'s' if count > 1 else ''}")
    title = ", ".join(parts)
    return f"{method}: {title}" if method and title else method or title or "nowait report"


def _method(config: dict[str, Any]) -> str:
    method = config.get("method")
    return str(method["type"]) if isinstance(method, dict) and "type" in method else ""
