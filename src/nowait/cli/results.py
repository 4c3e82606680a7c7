"""Results for machines."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np


def print_json(value: Any) -> None:
    """The value as JSON on standard output; numbers that are not finite become null."""
    print(json.dumps(plain(value), indent=2, ensure_ascii=False))


def plain(value: Any) -> Any:
    """Dataclasses, arrays and numpy numbers as what JSON knows."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
