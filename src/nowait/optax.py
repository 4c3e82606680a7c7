"""The delay rules and delays of ``nowait.pytorch`` as gradient transformations of optax. Needs ``nowait[optax]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

try:
    import jax
    import jax.numpy as jnp
    import optax
except ImportError as error:
    raise ImportError("nowait.optax needs optax and JAX: pip install 'nowait[optax]'") from error

from nowait.core import checks
from nowait.core.stepsizes import Stepsize
from nowait.rules import SCALES, Rule, checked_factor, delay_adaptive, factor_of

__all__ = ["DelayedState", "delay_aware", "delayed"]


class DelayedState(NamedTuple):
    """The state of ``delayed``: a pytree of arrays, which can be saved like any other."""

    inner: Any
    """The state of the inner transformation."""
    waiting: Any
    """The gradients that were not applied yet: each array has one more dimension in front, of ``delay`` − 1."""
    calls: Any
    """The number of calls; from 2·(``delay`` − 1) on it starts again at ``delay`` − 1, so that it never overflows."""


def delay_aware(
    optimizer: optax.GradientTransformation,
    rule: Stepsize | Rule = delay_adaptive,
    *,
    workers: int,
    scale: str = "step",
) -> optax.GradientTransformationExtraArgs:
    """Wrap a gradient transformation: ``update(grads, state, params, delay=τ)`` scales the step as a delay rule says.

    ``rule`` is a function of (delay, workers), such as those of ``nowait.rules``, or a stepsize rule, whose γ does not
    matter, and which may not depend on the step. A fresh gradient has delay 1. ``scale="step"`` multiplies the updates
    that ``optimizer`` returns, which is a smaller learning rate; ``"gradient"`` multiplies the gradients that it gets.
    With a factor of 0 the updates are 0 and the state does not change. The state is that of ``optimizer``.

    ``delay`` is a number or, under ``jax.jit``, an argument of the compiled function: then ``rule`` is called with a
    traced array. The rules of nowait are made for that; write a function of your own with ``jax.numpy``. A number is
    checked, and is compiled into the function as a constant; a traced delay below 1 is taken as 1.
    """
    inner = _checked(optimizer)
    workers = checks.at_least(1, workers, "workers", "delays are compared with it")
    factor, scale = factor_of(rule), checks.one_of(scale, SCALES, "scale")

    def update(grads: Any, state: Any, params: Any = None, *, delay: Any = None, **others: Any) -> Any:
        share = _share(factor, delay, workers)

        def step() -> Any:
            if scale == "gradient":
                return inner.update(_scaled(grads, share), state, params, **others)
            updates, after = inner.update(grads, state, params, **others)
            return _scaled(updates, share), after

        return _step_or_nothing(share > 0, step, state)

    return optax.GradientTransformationExtraArgs(inner.init, update)


def delayed(optimizer: optax.GradientTransformation, delay: int) -> optax.GradientTransformationExtraArgs:
    """Wrap a gradient transformation: every gradient is applied late, so that its delay is ``delay``.

    It simulates asynchronous training on one machine, to measure how much delay your training tolerates. The first
    ``delay`` − 1 updates are 0 and leave the state of ``optimizer`` alone; after that each is made from the gradients
    of ``delay`` − 1 calls before, with the present params. The state holds ``delay`` − 1 copies of the gradients, in
    the dtype of the params. ``optimizer`` may be a ``delay_aware`` one: it is told the delay.
    """
    inner = _checked(optimizer)
    kept = checks.at_least(1, delay, "delay", "a fresh gradient has delay 1") - 1

    def init(params: Any) -> DelayedState:
        waiting = jax.tree.map(lambda leaf: jnp.zeros((kept, *jnp.shape(leaf)), jnp.asarray(leaf).dtype), params)
        return DelayedState(inner.init(params), waiting, jnp.zeros((), jnp.int32))

    def update(grads: Any, state: DelayedState, params: Any = None, **others: Any) -> Any:
        if "delay" in others:
            raise TypeError(f"the delay of every gradient is {kept + 1} here, as given to delayed(): leave delay= out")
        others["delay"] = kept + 1
        if kept == 0:
            updates, after = inner.update(grads, state.inner, params, **others)
            return updates, state._replace(inner=after)
        slot = state.calls % kept
        old = jax.tree.map(lambda ring, new: ring[slot].astype(new.dtype), state.waiting, grads)
        updates, after = _step_or_nothing(
            state.calls >= kept, lambda: inner.update(old, state.inner, params, **others), state.inner
        )
        waiting = jax.tree.map(
            lambda ring, new: jnp.asarray(ring).at[slot].set(jnp.asarray(new, ring.dtype)), state.waiting, grads
        )
        calls = jnp.where(state.calls == 2 * kept - 1, kept, state.calls + 1)
        return updates, DelayedState(after, waiting, calls)

    return optax.GradientTransformationExtraArgs(init, update)


def _checked(optimizer: Any) -> Any:
    """Return a gradient transformation that takes further arguments, or raise for anything else."""
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(
            f"optimizer must be a gradient transformation such as optax.adam(1e-3), got {checks.shown(optimizer)}"
        )
    return optax.with_extra_args_support(optimizer)


def _share(factor: Rule, delay: Any, workers: int) -> Any:
    """Return the factor of a delay: a checked number, or an array that is computed with the update."""
    if delay is None:
        raise TypeError(
            "update() needs delay=, the number of steps since the gradient's params plus one: update(grads, state, "
            "params, delay=1) for a fresh gradient. Around it use optax.chain or another transformation that passes "
            "further arguments on"
        )
    if isinstance(delay, jax.Array):
        return jnp.asarray(factor(jnp.maximum(delay, 1), workers))
    return checked_factor(factor, delay, workers)


def _step_or_nothing(happens: Any, step: Callable[[], Any], state: Any) -> Any:
    """Return the updates and the state of a step, or updates of 0 and the state as it was."""

    def nothing() -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(step)[0]), state

    if isinstance(happens, jax.core.Tracer):
        return jax.lax.cond(happens, step, nothing)
    return step() if happens else nothing()


def _scaled(tree: Any, share: Any) -> Any:
    """Return a pytree times a factor, in its own dtypes."""
    return jax.tree.map(lambda leaf: leaf * jnp.asarray(share, leaf.dtype), tree)
