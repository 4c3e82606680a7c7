"""Names of tensors in compiled models: ``torch.compile`` puts ``_orig_mod.`` before those of the model itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

PREFIX = "_orig_mod."


def plain_name(name: str) -> str:
    """Return the name of a tensor in the model that was compiled."""
    return name.replace(PREFIX, "")


def use_plain_names(model: torch.nn.Module) -> None:
    """Let the state dict of a model have the names of the model that was compiled."""

    def rename(_module: Any, state: dict[str, Any], _prefix: str, _metadata: Any) -> None:
        for name in list(state):
            state[plain_name(name)] = state.pop(name)

    model.register_state_dict_post_hook(rename)  # type: ignore[no-untyped-call]


def named_as_in(model: torch.nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state dict with the names that a model uses, whether the model or that of the state was compiled."""
    known = (*model.state_dict(), *(name for name, _ in model.named_buffers()))
    names = {plain_name(name): name for name in known}
    return {names.get(plain_name(name), name): tensor for name, tensor in state.items()}
