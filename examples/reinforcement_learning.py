"""Asynchronous actor-critic (A3C) on a cart-pole, against the synchronous A2C in the same time; one worker is slow.

Workers play episodes and differentiate; the server applies. A ticket is a few whole episodes with the policy at its
point, so a gradient depends on point and sample alone, and runs can be replayed. Everything is numpy.

    python examples/reinforcement_learning.py         # in virtual time, a few seconds
    python examples/reinforcement_learning.py full    # with real processes, about two minutes: a table and a figure

Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning" (2016).
"""

import sys

import numpy as np

import nowait as nw

DISCOUNT, ENTROPY, VALUE = 0.99, 0.01, 0.5
HIDDEN = 32


class CartPole:
    """Carts with a pole each; the physics of Barto, Sutton and Anderson (1983), Euler steps of 0.02 s."""

    def __init__(self, number, rng):
        self.state = rng.uniform(-0.05, 0.05, (number, 4))
        """Position and speed of the cart, angle and angular speed of the pole."""

    def push(self, right):
        """Push every cart to the right or to the left; returns True for each whose pole still stands."""
        _, speed, angle, spin = self.state.T
        sine, cosine = np.sin(angle), np.cos(angle)
        pushed = (np.where(right, 10.0, -10.0) + 0.05 * spin**2 * sine) / 1.1
        turn = (9.8 * sine - cosine * pushed) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
        self.state = self.state + 0.02 * np.stack([speed, pushed - 0.05 * turn * cosine / 1.1, spin, turn], 1)
        return (np.abs(self.state[:, 0]) < 2.4) & (np.abs(self.state[:, 2]) < 0.2095)


class ActorCritic:
    """A network with one hidden layer gives the chance to push to the right and the value of a state.

    A ticket has ``episodes`` episodes of at most ``longest`` steps; a return is how many steps the pole stood.
    """

    dimension = 5 * HIDDEN + 2 * (HIDDEN + 1)

    def __init__(self, longest, episodes=4):
        self.longest, self.episodes = longest, episodes

    def initial(self):
        params = np.zeros(self.dimension)
        params[: 4 * HIDDEN] = np.random.default_rng(0).normal(size=4 * HIDDEN)
        return params

    def gradient(self, point, sample):
        """The gradient of −advantage·log π + VALUE·(return − value)² − ENTROPY·entropy, a mean over steps."""
        states, right, standing, rest = self.play(point, sample.rng(), self.episodes)
        hidden, chance, value = forward(point, states)
        targets = discounted(standing, rest)
        advantage, log_odds = targets - value, np.log(chance / (1 - chance))
        on_odds = -advantage * (right - chance) + ENTROPY * chance * (1 - chance) * log_odds
        on_value = -2 * VALUE * advantage
        weight = standing / standing.sum()
        return backward(point, states, hidden, np.stack([on_odds * weight, on_value * weight], -1))

    def loss(self, point):
        """Minus the mean return of 50 episodes, with random numbers that are always the same ones."""
        return -float(self.play(point, np.random.default_rng(1), 50)[2].sum(0).mean())

    def play(self, point, rng, episodes):
        """Return states, pushes, which episodes still went on, step by step, and the value of what comes after."""
        carts, alive, steps = CartPole(episodes, rng), np.ones(episodes, bool), []
        while alive.any() and len(steps) < self.longest:
            states, (_, chance, _) = carts.state, forward(point, carts.state)
            right = rng.random(episodes) < chance
            steps.append((states, right, alive))
            alive = alive & carts.push(right)
        states, right, standing = (np.array(column) for column in zip(*steps, strict=True))
        return states, right, standing, alive * forward(point, carts.state)[2]


def layers(point):
    first, second = point[: 5 * HIDDEN].reshape(5, HIDDEN), point[5 * HIDDEN :].reshape(HIDDEN + 1, 2)
    return first[:4], first[4], second[:HIDDEN], second[HIDDEN]


def forward(point, states):
    """Return the hidden layer, the chance to push to the right, and the value."""
    weights, bias, out_weights, out_bias = layers(point)
    hidden = np.tanh(states @ weights + bias)
    odds, value = np.moveaxis(hidden @ out_weights + out_bias, -1, 0)
    return hidden, 1 / (1 + np.exp(-np.clip(odds, -20, 20))), value


def backward(point, states, hidden, on_outputs):
    """Return the gradient of the params from that of the log-odds and of the value."""
    on_hidden = on_outputs @ layers(point)[2].T * (1 - hidden**2)
    parts = []
    for inputs, slopes in ((states, on_hidden), (hidden, on_outputs)):
        parts += [np.tensordot(inputs, slopes, ((0, 1), (0, 1))).ravel(), slopes.sum((0, 1))]
    return np.concatenate(parts)


def discounted(standing, rest):
    """Return the discounted rewards from each step on: 1 − DISCOUNT for each step, so that they are at most 1."""
    returns = np.empty(standing.shape)
    for step in reversed(range(len(standing))):
        rest = standing[step] * (1 - DISCOUNT) + DISCOUNT * rest
        returns[step] = rest
    return returns


def short():
    """One run of each method in virtual time: three workers of about the same speed, one of a tenth of it."""
    problem, speeds = ActorCritic(longest=200), nw.speeds.Fixed([1.0, 1.1, 1.2, 10.0])
    runs = [
        nw.simulate(problem, method, speeds, seconds=40, update=UPDATE, evaluate_every=1_000)
        for method in METHODS.values()
    ]
    returns = [-problem.loss(run.params) for run in runs]
    print("mean return at the start below 30:", -problem.loss(problem.initial()) < 30)
    print("A3C made more than 10 times as many steps as A2C:", runs[0].stats.steps > 10 * runs[1].stats.steps)
    print("A3C ends above 120 of 200, and A2C in the same time below 80:", returns[0] > 120 and returns[1] < 80)


def full(seconds=20.0, seeds=(0, 1, 2), good=400):
    """Runs with four processes, one of which is slowed down ten times; writes reinforcement_learning.png."""
    problem, runs = ActorCritic(longest=500), {}
    print(f"method  seed  steps  seconds to a mean return of {good}  mean return at the end (at most 500)")
    for seed in seeds:
        for name, method in METHODS.items():
            options = {"update": UPDATE, "slowdown": {0: 10.0}, "seed": seed, "progress": False}
            run = nw.train(problem, method, workers=4, seconds=seconds, evaluate_every=5, **options)
            reached = run.history.time[-run.history.loss >= good]
            when = f"{reached[0]:.1f}" if len(reached) else f"not in {seconds:.0f}"
            print(f"{name:6}  {seed:4}  {run.stats.steps:5}  {when:>32}  {-problem.loss(run.params):.0f}", flush=True)
            runs[name, seed] = run
    draw(runs)


def draw(runs):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for (name, seed), run in runs.items():
        colour = f"C{list(METHODS).index(name)}"
        axes.plot(run.history.time, -run.history.loss, color=colour, label=None if seed else name)
    axes.set(xlabel="seconds", ylabel="mean return")
    axes.legend()
    figure.savefig("reinforcement_learning.png", dpi=120)
    print("wrote reinforcement_learning.png")


METHODS = {"A3C": nw.AsynchronousSGD(nw.DelayAdaptive(0.02)), "A2C": nw.MinibatchSGD(0.03)}
"""Each with the better of a few stepsizes in runs like those of ``full``."""
UPDATE = nw.Adam(beta1=0.0, beta2=0.99)
"""Without momentum it is RMSProp, which the paper used, with bias correction."""

if __name__ == "__main__":
    full() if sys.argv[1:] == ["full"] else short()
