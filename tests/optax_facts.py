"""The facts of ``nowait.optax``; ``test_optax.py`` runs them in a process of their own."""

import pickle
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

import nowait as nw
from nowait import rules
from nowait.optax import delay_aware, delayed
from nowait.pytorch import DelayAware, Delayed

SIZES = {"matrix": (4, 3), "vector": (5,)}
DELAYS = (1, 8, 2, 16, 5)
STEPSIZES = (
    nw.Constant(0.2),
    nw.CosineGate(0.2, 0.05, 8.0),
    nw.DelayAdaptive(0.2),
    nw.DelayAdaptive(0.2, 2.0),
    nw.ExponentialDelayAdaptive(0.2, 3.0, 0.01),
    nw.HingeDecay(0.2, 2.0, 3.0),
    nw.PolynomialDecay(0.2, 0.5),
    nw.Threshold(0.2, 3.0, 1.0),
)
PAIRS = {
    "SGD": (optax.sgd(0.1), lambda parameters: torch.optim.SGD(parameters, lr=0.1)),
    "momentum": (optax.sgd(0.1, 0.9), lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)),
    "AdamW": (
        optax.adamw(0.1, weight_decay=0.01),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.01),
    ),
}


def arrays(seed):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SIZES.items()}


def params():
    return jax.tree.map(jnp.asarray, arrays(0))


def steps(optimizer, keywords, *, compiled=True):
    """The params after one update per entry of ``keywords``, with gradients that do not depend on the params."""
    point, state = params(), optimizer.init(params())
    update = jax.jit(optimizer.update) if compiled else optimizer.update
    for number, options in enumerate(keywords, start=1):
        updates, state = update(arrays(number), state, point, **options)
        point = optax.apply_updates(point, updates)
    return point


def torch_steps(wrap, make, keywords):
    parameters = [torch.nn.Parameter(torch.tensor(array)) for array in arrays(0).values()]
    optimizer = wrap(make(parameters))
    for number, options in enumerate(keywords, start=1):
        for parameter, gradient in zip(parameters, arrays(number).values(), strict=True):
            parameter.grad = torch.tensor(gradient)
        optimizer.step(**options)
    return dict(zip(SIZES, (parameter.detach().numpy() for parameter in parameters), strict=True))


def assert_same(first, second, tolerance=1e-6):
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance), first, second
    )


@pytest.mark.parametrize("scale", rules.SCALES)
@pytest.mark.parametrize(("kind", "compiled"), [*((kind, True) for kind in PAIRS), ("momentum", False)])
def test_steps_with_delays_are_those_of_pytorch(kind, scale, compiled):
    """Compiled, a delay is traced; otherwise it is a number."""
    ours, theirs = PAIRS[kind]
    keywords = [{"delay": delay} for delay in DELAYS]
    point = steps(delay_aware(ours, workers=4, scale=scale), keywords, compiled=compiled)
    reference = torch_steps(lambda inner: DelayAware(inner, workers=4, scale=scale), theirs, keywords)
    assert_same(point, reference, 1e-5 if kind == "AdamW" else 1e-6)


@pytest.mark.parametrize(("delay", "compiled"), [(1, True), (2, True), (4, True), (2, False)])
def test_late_steps_are_those_of_pytorch(delay, compiled):
    ours, theirs = PAIRS["momentum"]
    point = steps(delayed(ours, delay), [{}] * 9, compiled=compiled)
    assert_same(point, torch_steps(lambda inner: Delayed(inner, delay), theirs, [{}] * 9))


def test_a_delayed_optimiser_tells_a_delay_aware_one_its_delay():
    ours, theirs = PAIRS["SGD"]
    point = steps(delayed(delay_aware(ours, workers=1), 3), [{}] * 6)
    assert_same(point, torch_steps(lambda inner: Delayed(DelayAware(inner, workers=1), 3), theirs, [{}] * 6))


@pytest.mark.parametrize("stepsize", STEPSIZES, ids=repr)
def test_a_traced_delay_has_the_factor_of_the_number(stepsize):
    factor = rules.factor_of(stepsize)
    delays = np.array([1, 2, 4, 5, 9, 100])
    traced = jax.jit(lambda delay: jnp.broadcast_to(factor(delay, 4), delay.shape))(delays)
    assert isinstance(traced, jax.Array)
    np.testing.assert_allclose(traced, factor(delays, 4), rtol=1e-6)


def test_fresh_gradients_and_delay_one_are_the_inner_optimiser():
    plain = steps(optax.adam(0.1), [{}] * 4)
    for wrapped, options in (
        (delay_aware(optax.adam(0.1), workers=2), {"delay": 2}),
        (delayed(optax.adam(0.1), 1), {}),
    ):
        jax.tree.map(np.testing.assert_array_equal, steps(wrapped, [options] * 4), plain)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_factor_of_zero_gives_updates_of_zero_and_leaves_the_state_alone(compiled):
    optimizer = delay_aware(optax.adam(0.1), nw.Threshold(1.0), workers=2)
    state = optimizer.init(params())
    update = jax.jit(optimizer.update) if compiled else optimizer.update
    updates, after = update(arrays(1), state, params(), delay=9)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(updates))
    jax.tree.map(np.testing.assert_array_equal, after, state)


def test_the_first_calls_do_not_touch_the_inner_state():
    optimizer = delayed(optax.adam(0.1), 3)
    first = state = optimizer.init(params())
    for number in (1, 2):
        updates, state = jax.jit(optimizer.update)(arrays(number), state, params())
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(updates))
        jax.tree.map(np.testing.assert_array_equal, state.inner, first.inner)
    np.testing.assert_array_equal(state.waiting["vector"], [arrays(1)["vector"], arrays(2)["vector"]])


def test_a_saved_state_goes_on():
    optimizer = delayed(optax.adam(0.1), 3)
    state, update = optimizer.init(params()), jax.jit(optimizer.update)
    for number in range(4):
        _, state = update(arrays(number), state, params())
    leaves, shape = jax.tree.flatten(state)
    saved = pickle.loads(pickle.dumps([np.asarray(leaf) for leaf in leaves]))
    loaded = jax.tree.unflatten(shape, saved)
    for one, other in zip(*(update(arrays(9), kept, params()) for kept in (state, loaded)), strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, other)


def test_the_counter_of_calls_stays_small():
    optimizer = delayed(optax.sgd(0.1), 3)
    state, counts = optimizer.init(params()), []
    for _ in range(7):
        _, state = optimizer.update(arrays(1), state)
        counts.append(int(state.calls))
    assert counts == [1, 2, 3, 2, 3, 2, 3]


def test_gradients_keep_their_dtype_and_params_may_have_gaps():
    optimizer = delayed(delay_aware(optax.sgd(0.1), workers=1), 2)
    point = {"weight": jnp.ones(3), "none": None}
    state = optimizer.init(point)
    grads = {"weight": jnp.ones(3, jnp.bfloat16), "none": None}
    for _ in range(2):
        updates, state = jax.jit(optimizer.update)(grads, state, point)
    assert updates["weight"].dtype == jnp.bfloat16
    assert updates["none"] is None
    np.testing.assert_allclose(updates["weight"].astype(np.float32), -0.05, rtol=0.01)


def test_further_arguments_reach_the_inner_optimiser_through_a_chain():
    optimizer = optax.chain(optax.clip(10.0), delay_aware(optax.polyak_sgd(), workers=1))
    state = optimizer.init(params())
    updates, _ = optimizer.update(arrays(1), state, params(), delay=2, value=jnp.float32(1.0))
    plain, _ = optax.polyak_sgd().update(arrays(1), optax.polyak_sgd().init(params()), params(), value=jnp.float32(1.0))
    assert_same(updates, jax.tree.map(lambda leaf: 0.5 * leaf, plain))


def test_a_traced_delay_below_one_counts_as_fresh():
    optimizer = delay_aware(optax.sgd(0.1), nw.PolynomialDecay(1.0), workers=1)
    update = jax.jit(optimizer.update)
    first, second = (update(arrays(1), optimizer.init(params()), params(), delay=delay)[0] for delay in (0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: delay_aware(optax.sgd(0.1), workers=0), "workers must be"),
        (lambda: delay_aware("adam", workers=1), "optimizer must be a gradient transformation"),
        (lambda: delay_aware(optax.sgd(0.1), workers=1, scale="lr"), "scale must be one of 'step', 'gradient'"),
        (lambda: delay_aware(optax.sgd(0.1), 0.5, workers=1), "a delay rule must be a function"),
        (lambda: delayed(optax.sgd(0.1), 0), "delay must be"),
        (lambda: steps(delay_aware(optax.sgd(0.1), workers=1), [{}]), r"update\(\) needs delay="),
        (lambda: steps(delay_aware(optax.sgd(0.1), workers=1), [{"delay": 0}], compiled=False), "delay must be"),
        (
            lambda: steps(delay_aware(optax.sgd(0.1), lambda *_: -1.0, workers=1), [{"delay": 1}], compiled=False),
            "the rule returned -1.0",
        ),
        (lambda: steps(delayed(optax.sgd(0.1), 2), [{"delay": 2}]), "the delay of every gradient is 2 here"),
    ],
)
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_the_example_of_the_page_runs():
    page = (Path(__file__).parents[1] / "docs" / "optimisers.md").read_text()
    [code] = re.findall(r"```py\n(.*?)```", page, flags=re.DOTALL)
    names = {}
    exec(code, names)
    np.testing.assert_allclose(names["updates"]["w"], -0.25 * 0.1 * 2 * np.ones(3), rtol=1e-6)
