"""Complex numbers are refused wherever they enter: their imaginary parts would be lost."""

import numpy as np
import pytest

import nowait as nw
from nowait.core.capabilities import Capabilities
from nowait.core.problem import loss_of

METHOD = nw.AsynchronousSGD(nw.Constant(0.1))


class Complex:
    """f(x) = ‖x‖²/2, with complex numbers where they are asked for."""

    dimension = 2

    def __init__(self, *, gradient=1.0, loss=1.0, initial=1.0):
        self._gradient, self._loss, self._initial = gradient, loss, initial

    def initial(self):
        return np.ones(2) * self._initial

    def gradient(self, point, sample):
        return point * self._gradient

    def loss(self, point):
        return np.sum(point**2) / 2 * self._loss


def simulate(problem, **options):
    return nw.simulate(problem, METHOD, nw.speeds.Fixed([1.0, 2.0]), steps=20, **options)


def test_a_simulation_refuses_complex_gradients():
    with pytest.raises(
        nw.BadWorkerError, match=r"sent complex128 of shape \(2,\) for a gradient, but params are float64"
    ):
        simulate(Complex(gradient=1 + 1j))


def test_real_workers_refuse_complex_gradients():
    with pytest.raises(
        nw.BadWorkerError, match=r"sent complex128 of shape \(2,\) for a gradient, but params are float64"
    ):
        nw.train(Complex(gradient=1 + 1j), METHOD, workers=2, steps=20, progress=False)


def test_wrappers_and_estimates_refuse_complex_gradients():
    problem = Complex(gradient=1 + 1j)
    for compute in (
        lambda: simulate(nw.problems.LocalSteps(problem, steps=2, stepsize=0.1)),
        lambda: nw.theory.estimate(problem),
        lambda: Capabilities.of(problem).fill_with_gradient()(np.ones(2), None, np.empty(2)),
    ):
        with pytest.raises(TypeError, match="the gradient must have real entries, got complex128: params are float64"):
            compute()


@pytest.mark.parametrize("loss", [1 + 1j, np.complex64(1), np.complex128(1j)])
def test_a_complex_loss_is_refused(loss):
    with pytest.raises(TypeError, match=r"loss\(point\) must return a real number, got .*: return its real part"):
        loss_of(Complex(loss=loss), np.ones(2))
    with pytest.raises(TypeError, match=r"loss\(point\) must return a real number"):
        simulate(Complex(loss=loss))


def test_complex_initial_params_are_refused():
    with pytest.raises(TypeError, match=r"Complex.initial\(\) must be .* float32 or float64, got complex128"):
        simulate(Complex(initial=1j))
    with pytest.raises(TypeError, match=r"initial must be .* float32 or float64, got complex128"):
        simulate(Complex(), initial=np.ones(2, complex))


def test_integers_are_still_gradients():
    class Whole(Complex):
        def gradient(self, point, sample):
            return [1, -1]

    assert simulate(Whole()).stats.steps == 20


def test_a_method_cannot_step_along_complex_numbers():
    class Turned(nw.Method):
        def on_arrival(self, server, arrival):
            server.apply(arrival, 0.1, direction=arrival.gradient * 1j)
            server.assign(arrival.worker)

    with pytest.raises(TypeError, match="a direction must have real entries, got complex128: params are float64"):
        nw.simulate(Complex(), Turned(), nw.speeds.Fixed([1.0]), steps=5)
