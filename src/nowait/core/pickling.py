"""Pickling with large buffers out of band. Packages register how objects of their libraries are pickled."""

from __future__ import annotations

import io
import pickle
from collections import ChainMap
from collections.abc import Callable
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

    with io.BytesIO() as file:
        Pickler(file, protocol=5, buffer_callback=buffer_callback).dump(item)
        return file.getvalue()
