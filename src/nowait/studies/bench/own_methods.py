"""Methods of the user's own in the benchmark: ``my_method.py:Mine``."""

from __future__ import annotations

import hashlib
from functools import cache

from nowait.studies.bench.contenders import EITHER, PLAIN, Contender
from nowait.studies.own_code import TRIED, makers_in, parts_of


@cache
def own_contender(text: str) -> Contender:
    """Return the search space of ``file.py:name``.

    The name is a class or function of the stepsize, or a dictionary of such functions, one for each choice of
    parameters. Momentum is tried as well, unless the method makes its own update.
    """
    choices = makers_in(text)
    own_updates = any(make(TRIED).makes_its_own_update for make in choices.values())
    return Contender(choices, updates=PLAIN if own_updates else EITHER)


def own_source(text: str) -> str:
    """Return a hash of the file of a method: when it changes, the method is computed again."""
    return hashlib.sha256(parts_of(text)[0].read_bytes()).hexdigest()[:16]


def normalised(text: str) -> str:
    """Return the same method for every way to write its path.

    >>> normalised("./methods//mine.py:Mine")
    'methods/mine.py:Mine'
    """
    path, name = parts_of(text)
    return f"{path.as_posix()}:{name}"
