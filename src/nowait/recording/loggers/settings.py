"""Checks of what users pass to loggers."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any


def checked_module(module: Any, function: str, example: str) -> Any:
    """Return the module of a tracker, or raise if it is something else."""
    if not callable(getattr(module, function, None)):
        raise TypeError(f"the first argument must be the imported module, as in {example}, got {module!r}")
    return module


def checked_settings(function: Any, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that a function of a tracker takes, or raise for the first one that it does not have."""
    parameters = inspect.signature(function).parameters
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    for setting in settings:
        if setting not in parameters and not takes_all:
            near = difflib.get_close_matches(setting, parameters, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(parameters)}"
            raise TypeError(f"{name} has no setting {setting!r}: {hint}")
    return dict(settings)


def under_own_name(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with names that do not collide with those of a run that the user has started."""
    return {f"nowait.{name}": value for name, value in config.items()}
