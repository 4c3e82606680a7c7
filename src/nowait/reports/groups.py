"""Which runs belong together in a report: those that differ in their seed alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nowait.recording import Run
from nowait.reports.tables import NONE, flat

ABOUT_THE_SEED = {"seed", "labels.seed"}
ABOUT_THE_PLACE = {"checkpoint_every", "checkpoint_seconds", "keep_checkpoints", "labels.folder"}
"""Entries of a configuration that do not change what was run."""
COMMAND = "labels.command."
OF_THE_COMMAND = {"seed", "seeds", "folder", "as_json", "config", "method", "stepsize", "gradients", "steps", "seconds"}
"""What a command remembers that says nothing new, because the run's own configuration has it."""
FIRST = ("method", "update", "output", "problem", "speeds", "engine", "workers")
"""The entries by which groups are named if they can be, in this order."""
NORM = "fingerprint.gradient_norm"
LONGEST_VALUE = 60


def grouped(runs: Iterable[tuple[str, Run]]) -> dict[str, list[Run]]:
    """Runs that differ in nothing but the seed, under names that say what tells them apart.

    Each run comes with a name of its own, which is taken for a run without a configuration.
    """
    groups: dict[str, list[Run]] = {}
    configs: dict[str, dict[str, str]] = {}
    for name, run in runs:
        exact = {key: value for key, value in _leaves(run.config) if not _is_left_out(key)}
        key = json.dumps(exact or name, sort_keys=True)
        configs[key] = _for_people(run.config, exact) if exact else {"method": name}
        groups.setdefault(key, []).append(run)
    return dict(zip(group_names(list(configs.values())), groups.values(), strict=True))


def group_names(configs: list[dict[str, str]]) -> list[str]:
    """A name for each configuration: its method, and the fewest further entries that make the names differ."""
    names = [config.get("method", "run") for config in configs]
    for key in _in_order(configs):
        if len(set(names)) == len(names):
            break
        alike = {name for name in names if names.count(name) > 1}
        for name in alike:
            members = [place for place, other in enumerate(names) if other == name]
            if len({configs[place].get(key) for place in members}) > 1:
                for place in members:
                    names[place] = f"{name}, {_shown(key, configs[place])}"
    return [name if names.index(name) == place else f"{name} ({place + 1})" for place, name in enumerate(names)]


def _for_people(config: Mapping[str, Any], exact: Mapping[str, Any]) -> dict[str, str]:
    """The entries as ``flat`` shows them, but with all the digits that may tell two runs apart."""
    shown = {key: value for key, value in flat(config).items() if value != NONE and not _is_left_out(key)}
    return shown | {key: f"{value:.10g}" for key, value in exact.items() if isinstance(value, float)}


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All that a configuration says, in one level; ``flat`` is for people and rounds."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{name}.")
        elif name == NORM and isinstance(value, float):
            yield name, f"{value:.3g}"  # some gradients differ in their last digits from run to run
        else:
            yield name, value


def _is_left_out(key: str) -> bool:
    if key.startswith(COMMAND):
        return key.removeprefix(COMMAND).partition(".")[0] in OF_THE_COMMAND
    return key in ABOUT_THE_SEED | ABOUT_THE_PLACE


def _in_order(configs: list[dict[str, str]]) -> list[str]:
    """The entries in which configurations differ, those that say most first."""
    keys = dict.fromkeys(key for config in configs for key in config)
    differing = [key for key in keys if len({config.get(key) for config in configs}) > 1]

    def rank(key: str) -> tuple[int, int]:
        top = key.partition(".")[0]
        return FIRST.index(top) if top in FIRST else len(FIRST), key.count(".")

    return sorted(differing, key=rank)


def _shown(key: str, config: Mapping[str, str]) -> str:
    value = config.get(key, "none")
    short = value if len(value) <= LONGEST_VALUE else value[: LONGEST_VALUE - 1] + "…"
    return f"{key.rpartition('.')[2] if key.startswith('method.') else key} {short}"
