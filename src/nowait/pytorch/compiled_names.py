"""Names of tensors in compiled models: ``torch.compile`` puts ``_orig_mod.`` before those of the model itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

PREFIX = "_orig_mod."


def use_plain_names(model: torch.nn.Module) -> None:
    """Let the state dict of a model have the names of the model that was compiled."""

    def rename(_module: Any, state: dict[str, Any], _prefix: str, _metadata: Any) -> None:
        for name in list(state):
            state[name.replace(PREFIX, "")] = state.pop(name)

    model.register_state_dict_post_hook(rename)  # type: ignore[no-untyped-call]


def named_as_in(model: torch.nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state dict with the names that a model uses, whether the model or that of the state was compiled."""
    names = {name.replace(PREFIX, ""): name for name in model.state_dict()}
    return {names.get(name.replace(PREFIX, ""), name): tensor for name, tensor in state.items()}
