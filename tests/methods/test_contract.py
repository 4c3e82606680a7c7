"""Every method of the catalogue passes the contract suite."""

import pytest

import nowait.methods
from nowait.testing import CATALOGUE, METHOD_CHECKS


@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CATALOGUE)
def test_the_contract(name, check):
    check(CATALOGUE[name])


def test_the_catalogue_has_every_method():
    exported = {name for name in nowait.methods.__all__ if issubclass(getattr(nowait.methods, name), nowait.Method)}
    assert {type(method).__name__ for method in CATALOGUE.values()} == exported
