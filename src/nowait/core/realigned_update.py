"""HeLoCo: momentum that turns stale directions towards itself before it takes them in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from nowait.core import checks
from nowait.core.layout import Block, Layout
from nowait.core.memory import memory_of, namespace_of
from nowait.core.types import Vector, norm
from nowait.core.updates import Update

SMALLEST = 1e-30
"""Vectors that are not longer have no direction: in float32, few of their digits are left."""


@final
@dataclass
class HeLoCo(Update):
    """Nesterov's momentum with m ← β·m + (1 − β)·ĝ, x ← x − γ·(ĝ + β·m); ĝ is the direction g, corrected by tensors.

    Al Asif et al., "HeLoCo: Efficient asynchronous low-communication training under data and device heterogeneity"
    (2026), the outer step of asynchronous DiLoCo: use it with ``nw.problems.LocalSteps``. For every tensor, c is the
    cosine between g and m, and confidence = ‖g‖/(‖g‖ + momentum_weight·‖m‖).

    * c ≥ ``keep``: ĝ = g.
    * c < 0: the share min(``shrink``·(−c)·confidence, ``largest_shrink``) of the component against m is removed.
    * else g is rotated: ĝ has the direction of (1 − λ)·g/‖g‖ + λ·m/‖m‖, with λ = min(``rotate``·(1 − c)·confidence, 1),
      and the length of g.

    The formulas are those of a public summary of the paper. Its values of the five constants were not available: the
    defaults are ours. Params without a layout are one tensor.
    """

    beta: float = 0.9
    """β, the share of the momentum that is kept in each step."""
    keep: float = 0.3
    shrink: float = 1.0
    largest_shrink: float = 1.0
    rotate: float = 0.5
    momentum_weight: float = 1.0
    momentum: Vector = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.beta = checks.fraction(self.beta, "beta", "momentum would never fade")
        self.keep = checks.not_negative(self.keep, "keep", "directions against the momentum are always corrected")
        self.shrink = checks.not_negative(self.shrink, "shrink", "it multiplies the share that is removed")
        self.largest_shrink = checks.not_negative(self.largest_shrink, "largest_shrink", "it is the largest such share")
        self.rotate = checks.not_negative(self.rotate, "rotate", "it multiplies the weight of the momentum")
        self.momentum_weight = checks.not_negative(self.momentum_weight, "momentum_weight", "it weighs a length")
        self._blocks: tuple[Block, ...] = ()

    @property
    def momentum_factor(self) -> float:
        """Return 0: the momentum is a mean of directions, so steps do not add up to more than 1 + β of them."""
        return 0.0

    def start(self, params: Vector) -> None:
        """Set the momentum to zero. Params are one tensor."""
        self.start_with_layout(params, Layout.flat(len(params)))

    def start_with_layout(self, params: Vector, layout: Layout) -> None:
        """Set the momentum to zero. Every tensor of the layout is corrected by itself."""
        self.momentum, self._blocks = namespace_of(params).zeros_like(params), tuple(layout.values())

    def apply(self, params: Vector, direction: Vector, stepsize: float, out: Vector) -> None:
        """Write the corrected direction, update the momentum, and write the step."""
        for block in self._blocks:
            self._correct(direction[block.entries], self.momentum[block.entries], out[block.entries])
        self.momentum *= self.beta
        memory_of(params).add_scaled(self.momentum, out, 1 - self.beta)
        memory_of(params).add_scaled(out, self.momentum, self.beta)
        out *= stepsize
        namespace_of(params).subtract(params, out, out=out)

    def _correct(self, direction: Vector, momentum: Vector, out: Vector) -> None:
        """Write the corrected direction of one tensor."""
        out[:] = direction
        length, reference = _length(direction), _length(momentum)
        if length == 0 or reference == 0:
            return
        unit, along = direction / length, momentum / reference
        cosine = 1 - memory_of(unit).squared_norm(unit - along) / 2
        if cosine >= self.keep:
            return
        confidence = length / (length + self.momentum_weight * reference)
        add = memory_of(out).add_scaled
        if cosine < 0:
            share = min(self.shrink * -cosine * confidence, self.largest_shrink)
            add(out, along, -share * cosine * length)
            return
        weight = min(self.rotate * (1 - cosine) * confidence, 1.0)
        unit *= 1 - weight
        add(unit, along, weight)
        out[:] = unit
        out *= length / norm(unit)


def _length(vector: Vector) -> float:
    """Return the norm of a tensor, which may have no entries; 0 if it is too short to be divided by."""
    length = norm(vector) if len(vector) else 0.0
    return length if length > SMALLEST else 0.0
