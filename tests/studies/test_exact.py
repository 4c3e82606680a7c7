"""The exact worst case of small orders, beside the bound."""

import math
import sys

import pytest

from nowait.studies.exact import worst_case
from nowait.studies.hard_instances import alternating
from nowait.theory import Constants


@pytest.fixture
def pepit():
    return pytest.importorskip("PEPit")


@pytest.mark.parametrize("order", [alternating(3, 8), [0] * 8, [0, 1, 2] * 3, [0, 0, 0, 1, 1, 2, 0, 1]], ids=str)
def test_the_bound_covers_the_exact_worst_case(pepit, order):
    found = worst_case(order, workers=3)
    assert 1.0 <= found.ratio < 4.0


def test_a_longer_run_brings_the_worst_case_closer_to_the_bound(pepit):
    short, long = (worst_case(alternating(2, steps), workers=2) for steps in (4, 16))
    assert long.ratio < short.ratio


def test_the_worst_case_grows_with_the_square_of_the_distance(pepit):
    near, far = (worst_case([0, 1, 0, 1], workers=2, constants=Constants(L=1.0, B=distance)) for distance in (1.0, 2.0))
    assert far.exact == pytest.approx(4 * near.exact, rel=1e-4)


def test_stepsizes_that_the_proof_does_not_allow_have_no_bound(pepit):
    allowed, too_large = (worst_case([0, 1, 0, 1], workers=2, stepsize=size) for size in (0.25, 10.0))
    assert allowed.exact < allowed.bound < math.inf
    assert too_large.bound == too_large.ratio == math.inf


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([], "order must have 1 to 60 arrivals, got 0"),
        ([0] * 61, "order must have 1 to 60 arrivals, got 61"),
        ([0, 3], r"order must contain workers from 0 to 2, got \[0, 3\]"),
        ([0, 1.5], r"order must contain workers from 0 to 2, got \[0, 1.5\]"),
        ("ab", r"order must contain workers from 0 to 2, got \['a', 'b'\]"),
    ],
)
def test_wrong_orders_are_refused(order, message):
    with pytest.raises(ValueError, match=message):
        worst_case(order, workers=3)


def test_without_pepit_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "PEPit", None)
    with pytest.raises(ImportError, match=r"nowait\[exact\]"):
        worst_case([0, 1], workers=2)
