"""Groups runs for a report: runs that differ only in their seed form one group."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nowait.recording import Run
from nowait.reports.config_entries import COMMAND_KEYS
from nowait.reports.tables import NONE, flat
from nowait.reports.words import in_words, problem_in_words

SEED_KEYS = {"seed", "labels.seed"}
STORAGE_KEYS = {"checkpoint_every", "checkpoint_seconds", "keep_checkpoints", "labels.folder", "run"}
"""Entries of a configuration that do not affect the result of the run."""
ENVIRONMENT = "environment."
COMMAND = "labels.command."
FIRST = ("method", "update", "output", "problem", "speeds", "engine", "workers")
"""The entries that are tried first to name a group, in this order."""
NORM = "fingerprint.gradient_norm"
DIRECTION = "fingerprint.gradient_direction"
"""Left out: some gradients differ in the last digits between runs, and the norm tells problems apart."""
STEPSIZE = "method.stepsize.gamma"
LONGEST_VALUE = 60


def grouped(runs: Iterable[tuple[str, Run]]) -> dict[str, list[Run]]:
    """Return lists of runs that differ only in their seed, under names that say how the groups differ.

    Each run comes with a name, which is used if the run has no configuration.
    """
    groups: dict[str, list[Run]] = {}
    configs: dict[str, dict[str, str]] = {}
    for name, run in runs:
        exact = {key: value for key, value in _leaves(run.config) if not _is_left_out(key)}
        key = json.dumps(exact or name, sort_keys=True)
        configs[key] = _readable(run.config, exact) if exact else {"method": name}
        groups.setdefault(key, []).append(run)
    return dict(zip(group_names(_rounded(list(configs.values()))), groups.values(), strict=True))


def _rounded(configs: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the configurations with numbers rounded to the fewest digits, at least 3, that keep them apart."""
    numbers: dict[str, set[str]] = {}
    for config in configs:
        for key, value in config.items():
            if _is_number(value):
                numbers.setdefault(key, set()).add(value)
    digits = {key: _fewest_digits(values) for key, values in numbers.items()}
    return [
        {key: f"{float(value):.{digits[key]}g}" if _is_number(value) else value for key, value in config.items()}
        for config in configs
    ]


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+\.\d+(e[-+]\d+)?|-?\d+e[-+]\d+", text) is not None


def _fewest_digits(values: set[str]) -> int:
    return next(
        digits for digits in range(3, 18) if len({f"{float(each):.{digits}g}" for each in values}) == len(values)
    )


def group_names(configs: list[dict[str, str]]) -> list[str]:
    """Return a name for each configuration: its method, and the fewest further entries that make names unique.

    A method that all have in common is left out: the title of the report has it.
    """
    methods = [in_words(config.get("method", "run")) for config in configs]
    names = methods if len(set(methods)) > 1 or len(methods) == 1 else [""] * len(methods)
    for key in _in_order(configs):
        if len(set(names)) == len(names):
            break
        names = _told_apart(names, key, configs)
    names = [name or methods[index] for index, name in enumerate(names)]
    return [name if names.index(name) == index else f"{name} ({index + 1})" for index, name in enumerate(names)]


def _told_apart(names: list[str], key: str, configs: list[dict[str, str]]) -> list[str]:
    """Add an entry to the names that are alike and differ in it."""
    told = list(names)
    for name in {name for name in names if names.count(name) > 1}:
        members = [index for index, other in enumerate(names) if other == name]
        if len({configs[index].get(key) for index in members}) > 1:
            for index in members:
                told[index] = f"{name}, {_shown(key, configs[index])}".removeprefix(", ")
    return told


def _readable(config: Mapping[str, Any], exact: Mapping[str, Any]) -> dict[str, str]:
    """Return the entries as ``flat`` shows them, but with enough digits to distinguish runs."""
    shown = {key: value for key, value in flat(config).items() if value != NONE and not _is_left_out(key)}
    return shown | {key: repr(value) for key, value in exact.items() if isinstance(value, float)}


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all entries of a nested configuration with dotted keys and exact values (``flat`` rounds them)."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{name}.")
        elif name == NORM and isinstance(value, float):
            yield name, f"{value:.3g}"  # some gradients differ in the last digits between runs
        else:
            yield name, value


def _is_left_out(key: str) -> bool:
    if key.startswith(COMMAND):
        return key.removeprefix(COMMAND).partition(".")[0] in COMMAND_KEYS
    return key in SEED_KEYS | STORAGE_KEYS | {DIRECTION} or key.startswith(ENVIRONMENT)


def _in_order(configs: list[dict[str, str]]) -> list[str]:
    """Return the entries in which configurations differ, the most informative first."""
    keys = dict.fromkeys(key for config in configs for key in config)
    differing = [key for key in keys if len({config.get(key) for config in configs}) > 1]

    def rank(key: str) -> tuple[int, int]:
        top = key.partition(".")[0]
        return FIRST.index(top) if top in FIRST else len(FIRST), key.count(".")

    return sorted(differing, key=rank)


def _shown(key: str, config: Mapping[str, str]) -> str:
    value = config.get(key, "none")
    short = value if len(value) <= LONGEST_VALUE else value[: LONGEST_VALUE - 1] + "…"
    if key == "method.stepsize":
        return f"{in_words(value).lower()} stepsize"
    if key == "problem":
        return problem_in_words(value)
    if key == STEPSIZE:
        return f"stepsize {short}"
    return f"{key.rpartition('.')[2] if key.startswith('method.') else key} {short}"
