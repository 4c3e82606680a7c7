"""Reads a run's ``config.json`` and checks its entries.

The folder may be damaged, edited by hand or malicious: whatever is wrong with an entry, the error is a ``ValueError``
of one sentence that begins with ``config.json`` and names the entry.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from nowait.api.rebuild import NUMBERS, rebuild, with_usual_schedule
from nowait.core import checks
from nowait.core.capabilities import Capabilities
from nowait.core.problem import checked_problem, settings_as_text
from nowait.engines.budget import Budget
from nowait.engines.fingerprint import NUM_PRODUCTS
from nowait.fleet.options import Elsewhere, RayCluster
from nowait.recording.best import checked_keep_best
from nowait.recording.config import describe
from nowait.recording.environment import is_environment
from nowait.recording.errors import NotARunError
from nowait.recording.monitor import Monitor
from nowait.recording.run import read_config as read_sealed_config

logger = logging.getLogger("nowait")
T = TypeVar("T")

LARGEST_FILE = 16 * 2**20
"""The maximum size of a config file in bytes. The largest configs that nw.train writes have a few thousand numbers."""
LONGEST_CAUSE = 400
LOCAL_ADDRESSES = (None, "auto", "local")
"""Ray addresses that lead to other machines only if the user's own environment says so."""


def read_config(folder: Path) -> dict[str, Any]:
    """Return the entries of ``config.json`` in a run's folder."""
    path = folder / "config.json"
    if not path.is_file():
        raise NotARunError(f"{folder} is not the folder of a run: it has no config.json")
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"config.json in {folder} has more than {LARGEST_FILE >> 20} MiB: nw.train did not write it")
    return read_sealed_config(folder)


def check_complete(config: dict[str, Any], needed: Iterable[str]) -> None:
    """Raise if an entry that ``nw.train`` always writes is missing."""
    missing = [name for name in needed if name not in config]
    if missing:
        raise ValueError(f"config.json has no {', no '.join(missing)}: the run was not made by nw.train")


def entry(config: dict[str, Any], name: str, check: Callable[[Any], T]) -> T:
    """Return what ``check`` makes of an entry; if it raises, raise an error that names the entry."""
    if name not in config:
        raise ValueError(f"config.json has no {name}")
    try:
        return check(config[name])
    except Exception as error:
        raise ValueError(f"config.json, entry {name!r}: {_one_line(error)}") from error


def part(config: dict[str, Any], name: str, problem: Any = None) -> Any:
    """Return the method, update or output of the run, rebuilt.

    The schedule of a framework is that of the problem. So is an update that is described as the problem's own, whose
    class may not be of a library.
    """
    if name == "update" and problem is not None:
        usual = Capabilities.of(problem).usual_update()
        if describe(usual) == config.get(name):
            return usual
    made = entry(config, name, lambda description: rebuild(with_usual_schedule(description, problem), name))
    if made is None:
        raise ValueError(f"config.json, entry {name!r}: it is null, but every run has one: pass {name}= again")
    return made


def labels_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the labels of the run; empty if there is no such entry."""
    return entry({"labels": {}} | config, "labels", _dictionary)


def use_recorded_batch_sizes(config: dict[str, Any], problem: Any) -> None:
    """Give a problem with ``batch_size="auto"`` the sizes that the run chose."""
    sizes = Capabilities.of(checked_problem(problem)).auto_batch_sizes
    if sizes is not None and sizes.chosen is None:
        entry(config, "batch_sizes", sizes.use)


def computes_alike(config: dict[str, Any], problem: Any) -> bool:
    """Return True if this process computes the gradients of the run: the same machine, versions and settings.

    Logs which global settings, such as PyTorch's, are not those of the run.
    """
    same_machine = is_environment(config.get("environment"))
    return not _warn_of_other_settings(config, problem, same_machine=same_machine) and same_machine


def _warn_of_other_settings(config: dict[str, Any], problem: Any, *, same_machine: bool) -> bool:
    recorded = entry({"process_settings": {}} | config, "process_settings", _dictionary)
    now = settings_as_text(problem)
    other = [name for name, value in recorded.items() if name in now and now[name] != value]
    if other:
        changes = "; ".join(f"{name} was {_shown(recorded[name])} and is {now[name]!r}" for name in other)
        logger.warning(
            "this process has other global settings than the run had, which change gradients: %s%s",
            changes,
            "" if same_machine else ". They may be the defaults of this machine or version: set them if it matters",
        )
    return bool(other)


def budget_of(description: Any) -> Budget:
    """Return the budget that an entry describes."""
    values = {name: value for name, value in _dictionary(description).items() if name != "type"}
    return Budget(**values)


def cluster_of(description: Any) -> RayCluster | None:
    """Return the Ray cluster that an entry describes; None for processes on this machine."""
    if description is None:
        return None
    check_needs_no_key(description)
    values = {name: value for name, value in _dictionary(description).items() if name != "type"}
    if values.pop("has_runtime_env", False):
        raise ValueError("the run had a runtime_env, which config.json does not hold: pass engine= again")
    return RayCluster(**values)


def check_needs_no_key(description: Any) -> None:
    """Raise if the workers of a run connected to it: the folder has no key, and may not open a port."""
    values = _dictionary(description)
    if values.get("type") == "Listen":
        port = values.get("port")
        raise ValueError(
            f"the workers of the run connected to port {_shown(port)} with a key, which config.json does not hold: "
            f"pass engine=nw.Listen(port=..., key_file=...) again; to nowait resume, --listen and --key-file"
        )


def engine_of(description: Any) -> Elsewhere | None:
    """Return the cluster that an entry describes; raise if it is on other machines, which the user must name."""
    cluster = cluster_of(description)
    if cluster is not None and cluster.address not in LOCAL_ADDRESSES:
        raise ValueError(
            f"the run was on the Ray cluster at {cluster.address!r}, which could run code on this machine: "
            f"if you trust it, pass engine=nw.RayCluster(address={cluster.address!r}) again"
        )
    return cluster


def monitor_of(description: Any) -> Monitor | None:
    """Return the metric of ``keep_best`` that an entry describes; None if there is none."""
    if description is None:
        return None
    values = _dictionary(description)
    return checked_keep_best((values.get("name"), values.get("mode")))


def slowdown_keys(description: Any) -> dict[int, Any]:
    """Return a slowdown with integer keys: JSON stores worker numbers as text."""
    return {int(worker): factor for worker, factor in _dictionary(description).items()}


def flag(value: Any) -> bool:
    """Return a Boolean, or raise."""
    if not isinstance(value, bool):
        raise ValueError(f"it must be true or false, got {_shown(value)}")
    return value


def count(least: int) -> Callable[[Any], int]:
    """Return a check for integers of at least ``least``."""
    return lambda value: checks.at_least(least, value, "it", "the run could not continue with fewer")


def count_or_none(value: Any) -> int | None:
    """Return an integer of at least 1 or None, or raise."""
    return None if value is None else count(1)(value)


def seconds_or_none(value: Any) -> float | None:
    """Return a positive number of seconds or None, or raise."""
    return None if value is None else checks.positive(value, "it", "it is a number of seconds")


def fingerprint_of(description: Any) -> dict[str, Any] | None:
    """Return a recorded fingerprint: the problem as text, number and dtype of params, norm and direction of a gradient.

    None if it was not known when the run ended.
    """
    if description is None:
        return None
    values = dict(_dictionary(description))
    params, length = values.get("params"), values.get("gradient_norm")
    if not (isinstance(params, list) and len(params) == 2 and isinstance(params[1], str)):
        raise ValueError(f"its params must be a number and a dtype, as in [10, 'float64'], got {_shown(params)}")
    checks.at_least(1, params[0], "the number of its params", "a problem has at least one")
    length = NUMBERS.get(length, length) if isinstance(length, str) else length
    if length is not None and (isinstance(length, bool) or not isinstance(length, int | float) or not length >= 0):
        raise ValueError(f"its gradient_norm must be a number of at least 0, got {_shown(length)}")
    direction = values.get("gradient_direction")
    if (
        not isinstance(direction, list)
        or len(direction) not in (0, NUM_PRODUCTS)
        or not all(map(_is_finite, direction))
    ):
        raise ValueError(f"its gradient_direction must be {NUM_PRODUCTS} numbers or none, got {_shown(direction)}")
    if not isinstance(values.get("problem"), str):
        raise ValueError(f"its problem must be text, got {_shown(values.get('problem'))}")
    return values | {"gradient_norm": None if length is None else float(length)}


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _dictionary(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"it must hold entries by name, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LONGEST_CAUSE else text[: LONGEST_CAUSE - 3] + "..."
