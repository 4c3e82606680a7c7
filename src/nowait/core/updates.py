"""Updates: how a direction and a stepsize change params.

An update writes the next version of params into ``out``. It owns its state vectors, resets them in ``start``, and
never changes ``params`` or ``direction``. The updates of this file work on vectors of any memory, because they use the
functions of ``namespace_of(params)``. An update that uses numpy's works in host memory only.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import numpy as np

from nowait.core import checks
from nowait.core.layout import Layout
from nowait.core.memory import NOT_FINITE, Stepper, memory_of, namespace_of
from nowait.core.state import State, restore, state_of
from nowait.core.types import Vector, norm
from nowait.numerics.chunks import LARGE
from nowait.numerics.compiled import kernels
from nowait.numerics.elementary import integer_power


class Update(ABC):
    """The step the server makes along a direction. Subclasses write ``apply``; ``start`` if they have state."""

    def start(self, params: Vector) -> None:  # noqa: B027 (most updates have no state)
        """Reset all state at the start of a run from these params."""

    def start_with_layout(self, params: Vector, layout: Layout) -> None:
        """Call ``start``. An update that uses the names or shapes of tensors overrides this as well."""
        self.start(params)

    def check(self, layout: Layout) -> None:  # noqa: B027 (most updates treat all entries alike)
        """Raise an error if params with this layout cannot be updated. Called before workers start."""

    @abstractmethod
    def apply(self, params: Vector, direction: Vector, stepsize: float, out: Vector) -> None:
        """Write the params after a step along ``-stepsize * direction`` into ``out``."""

    @property
    def is_plain(self) -> bool:
        """True if every step is x − γ·g: without momentum, weight decay or anything else."""
        return False

    @property
    def momentum_factor(self) -> float:
        """The fraction of the last step that is part of the next one; 0 without momentum."""
        return 0.0

    @property
    def averages_gradients(self) -> bool:
        """True if the momentum is a mean of gradients, as in Adam; False if it is a sum, which makes steps longer."""
        return False

    @property
    def scales_gradient(self) -> bool:
        """True if a delay rule scales the gradient before it enters the state of the update, instead of the step."""
        return False

    def state(self) -> State:
        """Return the state for a checkpoint. An update that is not a dataclass overrides this and ``restore``."""
        return state_of(self)

    def restore(self, state: State) -> None:
        """Restore what ``state`` returned; called after ``start``."""
        restore(self, state)

    def stepper(self, params: Vector) -> Stepper:
        """Return the function that makes checked steps for params like these: ``checked``, or a faster equivalent."""
        return self.checked

    def checked(self, params: Vector, direction: Vector, stepsize: float, out: Vector) -> tuple[float, float]:
        """Call ``apply`` unless the direction is not finite, so that NaN and infinity never enter the state.

        Returns the squared norm of the direction, and 0 if ``out`` is finite, else NaN.
        """
        memory = memory_of(direction)
        norm = memory.squared_norm(direction)
        if not math.isfinite(norm) and not memory.is_finite(direction):
            return NOT_FINITE
        self.apply(params, direction, stepsize, out)
        return norm, 0.0 if memory.is_finite(out) else math.nan


@final
@dataclass(frozen=True)
class Sgd(Update):
    """x ← x − γ·g, with the finite checks and the norm in the same pass over memory."""

    @property
    def is_plain(self) -> bool:
        """True."""
        return True

    def apply(self, params: Vector, direction: Vector, stepsize: float, out: Vector) -> None:
        """Write x − γ·g."""
        self.stepper(params)(params, direction, stepsize, out)

    def stepper(self, params: Vector) -> Stepper:
        """Return the stepper of the memory that params are in."""
        return memory_of(params).sgd_stepper(params)


@final
@dataclass
class Momentum(Update):
    """Heavy ball: m ← β·m + g, x ← x − γ·m.

    Asynchrony itself acts like momentum (Mitliagkas et al. 2016): with many workers choose a smaller β.
    """

    beta: float = 0.9
    """β, the share of the momentum that is kept in each step."""
    momentum: Vector = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.beta = checks.fraction(self.beta, "beta", "momentum would never fade")

    @property
    def momentum_factor(self) -> float:
        """Return β."""
        return self.beta

    def start(self, params: Vector) -> None:
        """Set the momentum to zero."""
        self.momentum = namespace_of(params).zeros_like(params)

    def apply(self, params: Vector, direction: Vector, stepsize: float, out: Vector) -> None:
        """Update m ← β·m + g and write x − γ·m."""
        if _is_large_on_host(params):
            kernels().momentum_step(params, direction, self.momentum, out, beta=self.beta, stepsize=stepsize)
            return
        functions = namespace_of(params)
        _decay_and_add(self.momentum, self.beta, direction)
        functions.multiply(self.momentum, stepsize, out=out)
        functions.subtract(params, out, out=out)


@final
@dataclass
class Nesterov(Update):
    """Nesterov's momentum: m ← β·m + g, x ← x − γ·(g + β·m)."""

    beta: float = 0.9
    """β, the share of the momentum that is kept in each step."""
    momentum: Vector = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.beta = checks.fraction(self.beta, "beta", "momentum would never fade")

    @property
    def momentum_factor(self) -> float:
        """Return β."""
        return self.beta

    def start(self, params: Vector) -> None:
        """Set the momentum to zero."""
        self.momentum = namespace_of(params).zeros_like(params)

    def apply(self, params: Vector, direction: Vector, stepsize: float, out: Vector) -> None:
        """Update m ← β·m + g and write x − γ·(g + β·m)."""
        if _is_large_on_host(params):
            kernels().nesterov_step(params, direction, self.momentum, out, beta=self.beta, stepsize=stepsize)
            return
        functions = namespace_of(params)
        _decay_and_add(self.momentum, self.beta, direction)
        functions.multiply(self.momentum, self.beta, out=out)
        out += direction
        out *= stepsize
        functions.subtract(params, out, out=out)


@final
@dataclass
class Adam(Update):
    """Adam with bias correction (Kingma and Ba 2015): x ← x − γ·m̂/(√v̂ + ε)."""

    beta1: float = 0.9
    """The decay of m, the moving average of gradients."""
    beta2: float = 0.999
    """The decay of v, the moving average of squared gradients."""
    epsilon: float = 1e-8
    """ε, which keeps the denominator away from 0."""
    mean: Vector = field(init=False, repr=False, compare=False)
    square: Vector = field(init=False, repr=False, compare=False)
    steps: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.beta1, self.beta2, self.epsilon = _checked_adam(self.beta1, self.beta2, self.epsilon)

    @property
    def momentum_factor(self) -> float:
        """Return β1."""
        return self.beta1

    @property
    def averages_gradients(self) -> bool:
        """True."""
        return True

    def start(self, params: Vector) -> None:
        """Set both moments to zero."""
        zeros_like = namespace_of(params).zeros_like
        self.mean, self.square, self.steps = zeros_like(params), zeros_like(params), 0

    def apply(self, params: Vector, direction: Vector, stepsize: float, out: Vector) -> None:
        """Update the moments, correct their bias, and write the step."""
        self.steps += 1
        mean_bias = 1 - integer_power(self.beta1, self.steps)
        square_bias = 1 - integer_power(self.beta2, self.steps)
        if _is_large_on_host(params):
            kernels().adam_step(
                params,
                direction,
                self.mean,
                self.square,
                out,
                betas=(self.beta1, self.beta2),
                epsilon=self.epsilon,
                stepsize=stepsize / mean_bias,
                square_bias=square_bias,
            )
            return
        _decay_and_add(self.mean, self.beta1, direction * (1 - self.beta1))
        _decay_and_add(self.square, self.beta2, direction * direction * (1 - self.beta2))
        namespace_of(params).divide(self.square, square_bias, out=out)
        _adam_step(params, self.mean, stepsize / mean_bias, self.epsilon, out)


@final
@dataclass
class AMSGrad(Update):
    """AMSGrad (Reddi, Kale and Kumar 2018, Algorithm 2): v̂ never shrinks; no bias correction, as printed."""

    beta1: float = 0.9
    """The decay of m, the moving average of gradients."""
    beta2: float = 0.99
    """The decay of v, the moving average of squared gradients."""
    epsilon: float = 1e-8
    """ε, which keeps the denominator away from 0."""
    mean: Vector = field(init=False, repr=False, compare=False)
    square: Vector = field(init=False, repr=False, compare=False)
    largest_square: Vector = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.beta1, self.beta2, self.epsilon = _checked_adam(self.beta1, self.beta2, self.epsilon)

    @property
    def momentum_factor(self) -> float:
        """Return β1."""
        return self.beta1

    @property
    def averages_gradients(self) -> bool:
        """True."""
        return True

    def start(self, params: Vector) -> None:
        """Set the moments and the running maximum to zero."""
        zeros_like = namespace_of(params).zeros_like
        self.mean, self.square, self.largest_square = zeros_like(params), zeros_like(params), zeros_like(params)

    def apply(self, params: Vector, direction: Vector, stepsize: float, out: Vector) -> None:
        """Update the moments and the running maximum, and write the step."""
        if _is_large_on_host(params):
            kernels().amsgrad_step(
                params,
                direction,
                self.mean,
                self.square,
                self.largest_square,
                out,
                betas=(self.beta1, self.beta2),
                epsilon=self.epsilon,
                stepsize=stepsize,
            )
            return
        _decay_and_add(self.mean, self.beta1, direction * (1 - self.beta1))
        _decay_and_add(self.square, self.beta2, direction * direction * (1 - self.beta2))
        namespace_of(params).maximum(self.largest_square, self.square, out=self.largest_square)
        out[:] = self.largest_square
        _adam_step(params, self.mean, stepsize, self.epsilon, out)


@final
@dataclass(frozen=True)
class L1:
    """The penalty strength·‖x‖₁; its proximal map shrinks every entry towards zero."""

    strength: float

    def __post_init__(self) -> None:
        checks.store(self, strength=checks.not_negative(self.strength, "strength", "it weighs the L1 norm"))

    def __call__(self, values: Vector, stepsize: float) -> Vector:
        """Return the values after soft thresholding by stepsize·strength."""
        functions = namespace_of(values)
        lengths = functions.clip(functions.abs(values) - stepsize * self.strength, 0.0, None)
        shrunk: Vector = functions.sign(values) * lengths
        return shrunk


@final
@dataclass(frozen=True)
class Box:
    """The constraint lower ≤ x ≤ upper in every entry; its proximal map clips."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            checks.store(self, **{name: checks.finite(getattr(self, name), name, "it bounds every param")})
        if not self.lower <= self.upper:
            raise ValueError(f"lower must not exceed upper, got {self.lower} and {self.upper}: the box is empty")

    def __call__(self, values: Vector, stepsize: float) -> Vector:
        """Return the nearest point of the box."""
        clipped: Vector = namespace_of(values).clip(values, self.lower, self.upper)
        return clipped


@final
@dataclass(frozen=True)
class Ball:
    """The constraint ‖x‖ ≤ radius; its proximal map projects onto the ball."""

    radius: float

    def __post_init__(self) -> None:
        why = "the ball would hold one point at most"
        checks.store(self, radius=checks.positive(self.radius, "radius", why))

    def __call__(self, values: Vector, stepsize: float) -> Vector:
        """Return the nearest point of the ball."""
        length = norm(values)
        return values if length <= self.radius else memory_of(values).scaled(values, self.radius / length, None)


@final
@dataclass(frozen=True)
class Proximal(Update):
    """x ← prox_{γR}(x − γ·g), for a penalty or constraint R: ``L1``, ``Box``, ``Ball`` or a function of yours.

    ``penalty(values, stepsize)`` returns the proximal point of ``values``.
    """

    penalty: Callable[[Vector, float], Vector]

    def __post_init__(self) -> None:
        if not callable(self.penalty):
            raise TypeError(f"penalty must be a function (values, stepsize) -> values, got {self.penalty!r}")

    def apply(self, params: Vector, direction: Vector, stepsize: float, out: Vector) -> None:
        """Write the proximal point of x − γ·g."""
        functions = namespace_of(params)
        functions.multiply(direction, stepsize, out=out)
        functions.subtract(params, out, out=out)
        proximal = self.penalty(out, stepsize)
        if np.shape(proximal) != out.shape:
            raise TypeError(f"penalty(values, stepsize) must return the proximal point, got {type(proximal).__name__}")
        out[:] = proximal


def _is_large_on_host(params: Vector) -> bool:
    """Return True for params that one compiled pass updates, with the bits of the numpy expressions."""
    return isinstance(params, np.ndarray) and params.size >= LARGE


def _decay_and_add(state: Vector, decay: float, new: Vector) -> None:
    state *= decay
    state += new


def _adam_step(params: Vector, mean: Vector, stepsize: float, epsilon: float, out: Vector) -> None:
    """Replace the squares in ``out`` by x − γ·m/(√v + ε)."""
    functions = namespace_of(params)
    functions.sqrt(out, out=out)
    out += epsilon
    functions.divide(mean, out, out=out)
    out *= stepsize
    functions.subtract(params, out, out=out)


def _checked_adam(beta1: float, beta2: float, epsilon: float) -> tuple[float, float, float]:
    return (
        checks.fraction(beta1, "beta1", "the mean would never change"),
        checks.fraction(beta2, "beta2", "the square would never change"),
        checks.positive(epsilon, "epsilon", "it keeps the division finite"),
    )
