"""Every method of the catalogue passes the contract suite."""

import numpy as np
import pytest

import nowait.methods
from nowait.pytorch import TorchMemory
from nowait.testing import CATALOGUE, METHOD_CHECKS, METHOD_MEMORY_CHECKS, contract


@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CATALOGUE)
def test_the_contract(name, check):
    check(CATALOGUE[name])


@pytest.mark.parametrize("check", METHOD_MEMORY_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CATALOGUE)
def test_the_contract_with_vectors_that_are_tensors(name, check):
    check(CATALOGUE[name], TorchMemory("cpu"))


def test_a_method_whose_steps_depend_on_the_memory_fails():
    class HalfStepsOfTensors(nowait.Method):
        stepsize = nowait.Constant(0.1)

        def on_arrival(self, server, arrival):
            server.apply(arrival, 0.1 if isinstance(server.params, np.ndarray) else 0.05)
            server.assign(arrival.worker)

    with pytest.raises(AssertionError, match=r"the trace has another .* than in host memory"):
        contract.runs_in_this_memory_are_those_of_host_memory(HalfStepsOfTensors(), TorchMemory("cpu"))


def test_the_catalogue_has_every_method():
    exported = {name for name in nowait.methods.__all__ if issubclass(getattr(nowait.methods, name), nowait.Method)}
    assert {type(method).__name__ for method in CATALOGUE.values()} == exported


def test_a_method_of_the_catalogue_that_is_not_compiled_fails(monkeypatch):
    monkeypatch.setattr(contract, "NOT_COMPILED", ())
    with pytest.raises(AssertionError, match="the run was not compiled: the method reads gradients"):
        contract.compiled_runs_are_the_reference_runs(CATALOGUE["ClippedASGD"])


def test_a_method_that_is_compiled_must_not_be_listed_as_not_compiled(monkeypatch):
    monkeypatch.setattr(contract, "NOT_COMPILED", (nowait.methods.FedBuff,))
    with pytest.raises(AssertionError, match="remove the method from NOT_COMPILED"):
        contract.compiled_runs_are_the_reference_runs(CATALOGUE["FedBuff"])


def test_a_method_of_a_user_may_read_gradients_but_not_the_inside_of_the_server():
    class Own(nowait.Method):
        stepsize = nowait.Constant(0.05)

        def __init__(self, read):
            self.read = read

        def on_arrival(self, server, arrival):
            self.read(server, arrival)
            server.apply(arrival, 0.05)
            server.assign(arrival.worker)

    contract.compiled_runs_are_the_reference_runs(Own(lambda server, arrival: arrival.gradient))
    with pytest.raises(AssertionError, match="the method raised AttributeError"):
        contract.compiled_runs_are_the_reference_runs(Own(lambda server, arrival: server._versions))
