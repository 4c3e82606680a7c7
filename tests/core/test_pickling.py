"""What can be pickled for workers, and how what cannot be pickled is named."""

import functools
import threading
import types

import pytest

from nowait.core.pickling import dumps
from nowait.core.unpicklable import unpicklable_part

LOCK = threading.Lock()


class Kept:
    def __init__(self, item):
        self.item = item


class Slotted:
    __slots__ = ("item",)


def by_value(function):
    """Return a function that is pickled by value, as one of a notebook is."""
    return types.FunctionType(
        function.__code__, function.__globals__, "by_value", function.__defaults__, function.__closure__
    )


def slotted():
    item = Slotted()
    item.item = LOCK
    return item


def closure(item):
    return by_value(lambda: item)


def nested():
    def inner():
        return LOCK

    return inner


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (LOCK, "loss"),
        (Kept({"files": [1, LOCK]}), "loss.item['files'][1]"),
        (slotted(), "loss.item"),
        (by_value(lambda: LOCK.acquire(False)), "LOCK, used by loss"),
        (by_value(nested), "LOCK, used by loss"),
        (by_value(lambda lock=LOCK: 0), f"the default argument {LOCK!r:.60}, used by loss"),
        (closure(Kept(LOCK)), "item.item, used by loss"),
        (Kept(closure(LOCK)), "item, used by loss.item"),
        (closure(closure(LOCK)), "item, used by item, used by loss"),
        (functools.partial(sorted, key=LOCK), "loss.keywords['key']"),
        (types.MethodType(by_value(lambda self: LOCK), 3), "LOCK, used by loss"),
    ],
    ids=[f"case {number}" for number in range(11)],
)
def test_the_innermost_part_that_cannot_be_pickled_is_named(part, name):
    assert unpicklable_part({"size": 3, "loss": part}) == name


def test_parts_that_can_be_pickled_have_no_name():
    assert unpicklable_part({"size": 3, "print": print}) is None


def test_an_object_that_contains_itself_is_named():
    item = Kept(None)
    item.item = [item, LOCK]
    assert unpicklable_part({"loss": item}) == "loss.item[1]"


def test_one_of_many_items_is_found_in_few_pickles(monkeypatch):
    pickled = []
    monkeypatch.setattr("nowait.core.unpicklable.dumps", lambda item, _: pickled.append(item) or dumps(item, None))
    rows = [{"number": number} for number in range(4_000)]
    rows[2_345]["lock"] = LOCK
    assert unpicklable_part({"train_set": Kept(rows)}) == "train_set.item[2345]['lock']"
    assert len(pickled) < 40
