"""Parameter groups: which options of an optimiser are for which parameters of a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch

from nowait.core import checks
from nowait.core.layout import Block, Layout
from nowait.pytorch.optimizer_kind import IMPLEMENTATIONS, OptimizerKind

Options = dict[str, Any]
GroupsArgument = Callable[[str, torch.nn.Parameter], Mapping[str, Any] | None] | Mapping[str, Mapping[str, Any]]
"""``groups(name, parameter)`` returns the options of a parameter; or the options by name."""
RESERVED = {"params", "lr", *IMPLEMENTATIONS}


@final
@dataclass
class ParameterGroup:
    """Parameters with the same options."""

    kind: OptimizerKind
    options: Options
    stepsize_factor: float
    blocks: list[Block] = field(default_factory=list)


def options_by_name(groups: GroupsArgument | None, layout: Layout) -> dict[str, Options]:
    """Return the options of every parameter; without groups, they have none of their own."""
    if groups is None:
        return {name: {} for name in layout}
    if isinstance(groups, Mapping):
        unknown = [name for name in groups if name not in layout]
        if unknown:
            raise ValueError(
                f"groups names {unknown[0]!r}, which is no parameter: the first ones are {list(layout)[:5]}"
            )
        return {name: dict(groups.get(name, {})) for name in layout}
    return {name: _answer(groups, block) for name, block in layout.items()}


def parameter_groups(
    main: OptimizerKind, defaults: Options, options: Mapping[str, Options], layout: Layout
) -> list[ParameterGroup]:
    """Return the groups of a model; parameters with equal options share one. ``defaults`` are those of ``main``."""
    groups: list[ParameterGroup] = []
    for name, block in layout.items():
        made = _group(main, defaults, name, dict(options[name]))
        same = [group for group in groups if _settings(group) == _settings(made)]
        if not same:
            groups.append(made)
        (same or [made])[0].blocks.append(block)
    return groups


def checked_groups(groups: Any) -> GroupsArgument | None:
    """Return the argument ``groups``, or raise if it is neither a function nor a mapping."""
    if groups is not None and not callable(groups) and not isinstance(groups, Mapping):
        raise TypeError(f"groups must be a function (name, parameter) -> options, got {groups!r}")
    return groups  # type: ignore[no-any-return]


def _settings(group: ParameterGroup) -> tuple[Any, ...]:
    return group.kind, group.options, group.stepsize_factor


def _answer(groups: Callable[[str, torch.nn.Parameter], Any], block: Block) -> Options:
    """Ask for the options of a parameter. It has a shape, but no values: the groups of a resumed run are the same."""
    try:
        options = groups(block.name, torch.nn.Parameter(torch.empty(block.shape, device="meta")))
    except RuntimeError as error:
        raise ValueError(
            f"groups({block.name!r}, parameter) failed, perhaps because parameter has a shape, but no values: {error}"
        ) from error
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"groups({block.name!r}, parameter) must return a dict of options, got {options!r}")
    return dict(options or {})


def _group(main: OptimizerKind, defaults: Options, name: str, options: Options) -> ParameterGroup:
    why = f"it multiplies the stepsize of {name}"
    factor = checks.not_negative(options.pop("stepsize_factor", 1.0), "stepsize_factor", why)
    if "optimizer" in options:
        kind = OptimizerKind(checked_class(options.pop("optimizer")), options)
        kind.first_trial()
        return ParameterGroup(kind, {}, factor)
    unknown = [option for option in options if option not in defaults or option in RESERVED]
    if "lr" in unknown:
        raise ValueError(f"groups gives {name!r} an lr: give it a stepsize_factor, which multiplies the stepsize")
    if unknown:
        known = sorted({*defaults} - RESERVED)
        raise ValueError(f"groups gives {name!r} the option {unknown[0]!r}: {main.name} has {', '.join(known)}")
    return ParameterGroup(main, options, factor)


def checked_class(optimizer: Any) -> type[torch.optim.Optimizer]:
    """Return a class of optimisers, or raise."""
    if not (inspect.isclass(optimizer) and issubclass(optimizer, torch.optim.Optimizer)):
        got = f"an object of {type(optimizer)}" if isinstance(optimizer, torch.optim.Optimizer) else repr(optimizer)
        raise TypeError(f"optimizer must be a class of torch.optim, such as torch.optim.AdamW, got {got}")
    return optimizer
