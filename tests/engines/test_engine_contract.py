"""The contract of engines, over all of them."""

import pytest

import nowait as nw
from nowait.testing import ENGINE_CHECKS


def simulator(problem, method, *, workers, **options):
    return nw.simulate(problem, method, nw.speeds.Exponential(1.0, workers=workers), **options)


ENGINES = {"simulator": simulator, "processes": nw.train}


@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_the_contract_of_engines(engine, check, caplog):
    check(engine)
