"""Updates that look at the shapes of tensors: steps of a fixed length in some norm, and Muon.

Params without a layout are one vector, without matrices. The products of matrices are those of NumPy or PyTorch, so the
last bits of these updates depend on the machine; on one machine a replay gives the same bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, final

from nowait.core import checks
from nowait.core.layout import Block, Layout
from nowait.core.memory import memory_of, namespace_of
from nowait.core.state import State
from nowait.core.types import Vector, norm
from nowait.core.updates import Adam, Update

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""The coefficients of Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024)."""
SMALLEST_NORM = 1e-7
"""Added to the norm of a matrix, as in torch.optim.Muon."""
BALLS = ("euclidean", "sign", "spectral")
ADJUSTMENTS = ("original", "match_rms_adamw")


def orthogonalised(matrix: Any, steps: int) -> Any:
    """Return roughly U·Vᵀ of a matrix U·S·Vᵀ, by Newton–Schulz iterations: its singular values are between 0.7 and 1.2.

    Works on arrays and tensors. More dimensions than two are taken as one.
    """
    flat = matrix.reshape(matrix.shape[0], -1)
    wide = flat.shape[0] <= flat.shape[1]
    product = flat if wide else flat.T
    product = product / (namespace_of(flat.reshape(-1)).linalg.norm(flat) + SMALLEST_NORM)
    a, b, c = NEWTON_SCHULZ
    for _ in range(steps):
        gram = product @ product.T
        product = a * product + (b * gram + c * (gram @ gram)) @ product
    return (product if wide else product.T).reshape(matrix.shape)


def _is_matrix(block: Block) -> bool:
    return len(block.shape) >= 2


@final
@dataclass
class LMO(Update):
    """m ← β·m + (1 − β)·g, x ← x + γ·lmo(m): a step of length γ in the direction that decreases ⟨m, ·⟩ most.

    ``lmo(m)`` is the linear minimisation oracle of a unit ball. ``"euclidean"``: −m/‖m‖, normalised SGD with momentum.
    ``"sign"``: −sign(m), signSGD with momentum. ``"spectral"``: −U·Vᵀ for every matrix by ``newton_schulz_steps``
    iterations, and −sign(m) for all other tensors. γ is the length of a step, not a multiple of the gradient. ``beta``
    None is 1 − 1/√k in step k (Sadiev, Maranjyan, Ilin and Richtárik 2026, the schedule without parameters).
    """

    ball: str = "spectral"
    beta: float | None = 0.9
    newton_schulz_steps: int = 5
    momentum: Vector = field(init=False, repr=False, compare=False)
    steps: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.ball = checks.one_of(self.ball, BALLS, "ball")
        if self.beta is not None:
            self.beta = checks.fraction(self.beta, "beta", "momentum would never fade")
        self.newton_schulz_steps = checks.at_least(
            1, self.newton_schulz_steps, "newton_schulz_steps", "a matrix would only be scaled"
        )
        self._matrices: tuple[Block, ...] = ()

    @property
    def momentum_factor(self) -> float:
        """Return β; 0 for the schedule, which begins without momentum."""
        return self.beta or 0.0

    def start(self, params: Vector) -> None:
        """Set the momentum to zero. Params are one vector."""
        self.momentum, self.steps, self._matrices = namespace_of(params).zeros_like(params), 0, ()

    def start_with_layout(self, params: Vector, layout: Layout) -> None:
        """Set the momentum to zero, and find the matrices."""
        self.start(params)
        self._matrices = tuple(filter(_is_matrix, layout.values()))

    def apply(self, params: Vector, direction: Vector, stepsize: float, out: Vector) -> None:
        """Update m, and write x + γ·lmo(m)."""
        self.steps += 1
        weight = 1 / math.sqrt(self.steps) if self.beta is None else 1 - self.beta
        functions = namespace_of(params)
        self.momentum *= 1 - weight
        functions.multiply(direction, weight, out=out)
        self.momentum += out
        self._write_step(functions, out)
        out *= stepsize
        functions.subtract(params, out, out=out)

    def _write_step(self, functions: Any, out: Vector) -> None:
        """Write −lmo(m)."""
        if self.ball == "euclidean":
            length = norm(self.momentum)
            functions.multiply(self.momentum, 1 / length if length > 0 else 0.0, out=out)
            return
        functions.sign(self.momentum, out=out)
        if self.ball == "spectral":
            for block in self._matrices:
                block.of(out)[...] = orthogonalised(block.of(self.momentum), self.newton_schulz_steps)


@final
@dataclass
class Muon(Update):
    """Momentum that is orthogonalised for every matrix, and another update for all other tensors.

    Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024), with the options of
    ``torch.optim.Muon``: m ← β·m + g, x ← (1 − γ·weight_decay)·x − γ·a·NS(g + β·m). The factor a depends on the
    shape (n rows, m columns): ``adjust="original"`` is √max(1, n/m), ``"match_rms_adamw"`` 0.2·√max(n, m), with which γ
    is that of AdamW (Liu et al. 2025). ``rest`` makes the steps of the other tensors, with the stepsize
    ``rest_stepsize``·γ. A tensor with more than two dimensions is a matrix with the first one as its rows. Embeddings
    and the last layer are matrices too: name those that ``rest`` should take in ``exclude``.
    """

    beta: float = 0.95
    """β, the share of the momentum that is kept in each step."""
    nesterov: bool = True
    """True for NS(g + β·m), False for NS(m)."""
    weight_decay: float = 0.0
    adjust: str = "original"
    rest: Update = field(default_factory=Adam)
    rest_stepsize: float = 1.0
    exclude: tuple[str, ...] = ()
    newton_schulz_steps: int = 5
    """The number of iterations that orthogonalise a matrix."""
    momentum: Vector = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.beta = checks.fraction(self.beta, "beta", "momentum would never fade")
        self.weight_decay = checks.not_negative(self.weight_decay, "weight_decay", "params would grow")
        self.rest_stepsize = checks.not_negative(self.rest_stepsize, "rest_stepsize", "it multiplies the stepsize")
        self.adjust = checks.one_of(self.adjust, ADJUSTMENTS, "adjust")
        self.nesterov = checks.flag(self.nesterov, "nesterov")
        checks.instance(self.rest, Update, "rest", "nw.Adam()")
        self.newton_schulz_steps = checks.at_least(
            1, self.newton_schulz_steps, "newton_schulz_steps", "a matrix would only be scaled"
        )
        names = self.exclude if isinstance(self.exclude, tuple | list) else (None,)
        if not all(isinstance(name, str) for name in names):
            raise TypeError(
                f"exclude must be names of tensors, as in ('head.weight',), got {checks.shown(self.exclude)}"
            )
        self.exclude = tuple(self.exclude)
        self._matrices: tuple[Block, ...] = ()
        self._others: tuple[Block, ...] = ()

    @property
    def momentum_factor(self) -> float:
        """Return β."""
        return self.beta

    def check(self, layout: Layout) -> None:
        """Raise if ``exclude`` names a tensor that params do not have."""
        unknown = [name for name in self.exclude if name not in layout]
        if unknown:
            raise ValueError(f"exclude names {', '.join(map(repr, unknown))}, but the tensors are {', '.join(layout)}")

    def start(self, params: Vector) -> None:
        """Reset all state. Params are one vector, which ``rest`` updates."""
        self._start(params, Layout.flat(len(params)))

    def start_with_layout(self, params: Vector, layout: Layout) -> None:
        """Reset all state, and find the matrices."""
        self._start(params, layout)

    def _start(self, params: Vector, layout: Layout) -> None:
        matrices = {name: block for name, block in layout.items() if _is_matrix(block) and name not in self.exclude}
        self._matrices = tuple(matrices.values())
        self._others = tuple(block for name, block in layout.items() if name not in matrices)
        self.momentum = namespace_of(params).zeros_like(
            params[: sum(block.stop - block.start for block in self._matrices)]
        )
        if self._others:
            self.rest.start_with_layout(
                self._gathered(params), Layout.of({block.name: block.shape for block in self._others})
            )

    def _gathered(self, vector: Vector) -> Vector:
        """Return a copy of the tensors that ``rest`` updates, one after the other."""
        gathered: Vector = namespace_of(vector).concatenate([vector[block.entries] for block in self._others])
        return gathered

    def apply(self, params: Vector, direction: Vector, stepsize: float, out: Vector) -> None:
        """Write the steps of the matrices, and let ``rest`` write the others."""
        start = 0
        for block in self._matrices:
            stop = start + block.stop - block.start
            self._step(block, self.momentum[start:stop], params, direction, stepsize, out)
            start = stop
        if self._others:
            self._step_rest(params, direction, stepsize * self.rest_stepsize, out)

    def _step(
        self, block: Block, momentum: Vector, params: Vector, direction: Vector, stepsize: float, out: Vector
    ) -> None:
        momentum *= self.beta
        momentum += direction[block.entries]
        ahead = direction[block.entries] + self.beta * momentum if self.nesterov else momentum
        step = orthogonalised(ahead.reshape(block.shape), self.newton_schulz_steps)
        place = block.of(out)
        place[...] = step
        place *= -stepsize * self._factor(block)
        place += (1 - stepsize * self.weight_decay) * block.of(params)

    def _factor(self, block: Block) -> float:
        rows, columns = block.shape[0], math.prod(block.shape[1:])
        return math.sqrt(max(1.0, rows / columns)) if self.adjust == "original" else 0.2 * math.sqrt(max(rows, columns))

    def _step_rest(self, params: Vector, direction: Vector, stepsize: float, out: Vector) -> None:
        before = self._gathered(params)
        after = namespace_of(params).empty_like(before)
        self.rest.apply(before, self._gathered(direction), stepsize, after)
        start = 0
        for block in self._others:
            stop = start + block.stop - block.start
            out[block.entries] = after[start:stop]
            start = stop

    def state(self) -> State:
        """Return the momentum, and the state of ``rest`` with names that begin with ``rest.``."""
        rest = self.rest.state() if self._others else {}
        return {"momentum": self.momentum} | {f"rest.{name}": value for name, value in rest.items()}

    def restore(self, state: State) -> None:
        """Restore what ``state`` returned."""
        memory_of(self.momentum).write(state["momentum"], self.momentum)
        rest = {name.removeprefix("rest."): value for name, value in state.items() if name.startswith("rest.")}
        if self._others:
            self.rest.restore(rest)
