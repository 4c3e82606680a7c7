"""Which entries of a recorded configuration a report shows: what was run, without what only the program needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nowait.recording import Sweep

COMMAND_KEYS = {
    "seed",
    "seeds",
    "folder",
    "as_json",
    "config",
    "method",
    "stepsize",
    "gradients",
    "steps",
    "seconds",
} | {
    "update",
    "schedule",
}
"""Recorded command-line options that the run's own configuration repeats."""
MORE_COMMAND_KEYS = {"target", "target_loss"}
"""The same for options that distinguish groups of runs."""
NOT_SHOWN = {"environment", "fingerprint", "run"}
"""The environment has its own table; the fingerprint is compared when a run is resumed."""


def shown_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a configuration that describe what was run."""
    shown = {key: value for key, value in config.items() if key not in NOT_SHOWN}
    labels, plan = shown.get("labels"), shown.get("evaluations")
    if isinstance(labels, Mapping) and isinstance(labels.get("command"), Mapping):
        repeated = COMMAND_KEYS | MORE_COMMAND_KEYS | set(config)
        options = {key: value for key, value in labels["command"].items() if key not in repeated}
        shown["labels"] = {key: value for key, value in labels.items() if key != "command"}
        shown["command"] = options
    if isinstance(plan, Mapping):
        shown["evaluations"] = _plan(plan)
    return {key: value for key, value in shown.items() if value not in ({}, [], None)}


def shown_sweep(sweep: Sweep) -> dict[str, Any]:
    """Return what was swept: stepsizes and seeds, and what all runs have in common."""
    config = shown_config(sweep.config)
    method = config.get("method")
    if isinstance(method, Mapping) and isinstance(method.get("stepsize"), Mapping):
        rule = {key: value for key, value in method["stepsize"].items() if key != "gamma"}
        config["method"] = {**method, "stepsize": rule}
    return {"stepsizes": sweep.stepsizes.tolist(), "seeds": sweep.seeds.tolist()} | config


def _plan(plan: Mapping[str, Any]) -> str:
    """Return how often the loss is evaluated, in words."""
    intervals = {key: value for key, value in plan.items() if key != "type" and isinstance(value, int | float)}
    return ", ".join(f"every {value:g} {key}" for key, value in intervals.items())
