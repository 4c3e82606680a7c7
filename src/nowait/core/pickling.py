"""Pickling with large buffers out of band. Packages register how objects of their libraries are pickled."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

Reducer = Callable[[Any], Any]
"""Returns what ``__reduce__`` of an object would return."""
BufferCallback = Callable[[pickle.PickleBuffer], Any]

_REDUCERS: dict[type, Reducer] = {}


def register_reducer(kind: type, reduce: Reducer) -> None:
    """Use this function for objects of exactly this type. The pickles of other libraries do not change."""
    _REDUCERS[kind] = reduce


def dumps(item: Any, buffer_callback: BufferCallback | None) -> bytes:
    """Pickle an object with cloudpickle. The callback gets its large buffers, which ``pickle.loads`` needs again.

    Without a callback they are a part of the pickle.
    """
    import cloudpickle

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        dispatch_table: ClassVar = ChainMap(_REDUCERS, cloudpickle.CloudPickler.dispatch_table)

        def reducer_override(self, item: Any) -> Any:
            """Pickle modules by name, also those whose class is not ``ModuleType`` itself but derived from it.

            And classes that have two names, of which only ``__name__`` leads to them: enumerations of PyTorch.
            """
            if isinstance(item, ModuleType) and type(item) is not ModuleType:
                name = _importable_name(item)
                if name is not None:
                    return imported, name
            if isinstance(item, type) and _has_another_name(item):
                return imported, (item.__module__, (item.__name__,))
            return super().reducer_override(item)

    with io.BytesIO() as file:
        Pickler(file, protocol=5, buffer_callback=buffer_callback).dump(item)
        return file.getvalue()


def _has_another_name(kind: type) -> bool:
    """Return True if the ``__name__`` of a class leads to it, but not its ``__qualname__``, which pickles have."""
    module = sys.modules.get(kind.__module__)
    is_other = kind.__name__ != kind.__qualname__.rpartition(".")[2] and kind.__module__ != "__main__"
    return is_other and getattr(module, kind.__name__, None) is kind


def imported(module: str, attributes: tuple[str, ...]) -> Any:
    """Import a module; returns it, or what these attributes lead to: the second is one of the first, and so on."""
    item: Any = importlib.import_module(module)
    for attribute in attributes:
        item = getattr(item, attribute)
    return item


def _importable_name(module: ModuleType) -> tuple[str, tuple[str, ...]] | None:
    """Return the arguments of ``imported`` for a module; None if they do not lead to it.

    ``torch.ops.aten`` cannot be imported, but it is an attribute of a module that can.
    """
    parts = module.__name__.split(".")
    for count in range(len(parts), 0, -1):
        name, attributes = ".".join(parts[:count]), tuple(parts[count:])
        if name in sys.modules:
            try:
                return (name, attributes) if imported(name, attributes) is module else None
            except AttributeError:
                return None
    return None
