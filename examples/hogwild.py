"""Hogwild, as a contrast to nowait: threads without locks change one array in shared memory. No server, no delays.

A sparse logistic regression whose features have very different frequencies: few rows share a rare feature, so most
updates of two threads touch different entries (Recht, Ré, Wright and Niu, "Hogwild!", 2011). The same number of steps
is made by threads, by a simulation of two workers, and by two worker processes of nowait.

    python examples/hogwild.py         # a small problem
    python examples/hogwild.py full    # a larger one, about a minute: steps per second, loss, and equal bits
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter, process_time

import numpy as np
from numba import njit
from scipy.sparse import csr_array

import nowait as nw

STEPSIZE = 0.5


def make_problem(rows, dimension, per_row=20):
    """Feature j has a frequency in proportion to 1/(j + 10); labels are drawn from a random linear model."""
    rng = np.random.default_rng(0)
    frequencies = 1 / (np.arange(dimension) + 10.0)
    columns = rng.choice(dimension, (rows, per_row), p=frequencies / frequencies.sum())
    values = np.full(columns.size, per_row**-0.5)
    features = csr_array((values, columns.ravel(), np.arange(0, columns.size + 1, per_row)), (rows, dimension))
    features.sum_duplicates()
    chances = 1 / (1 + np.exp(-(features @ (4 * rng.normal(size=dimension)))))
    return features, np.where(rng.random(rows) < chances, 1.0, -1.0)


@njit(nogil=True)
def descend(matrix, labels, order, params, stepsize):
    """One SGD step for every row of ``order``; it reads and writes only the entries of params that the row has."""
    starts, columns, values = matrix
    for row in order:
        margin = 0.0
        for place in range(starts[row], starts[row + 1]):
            margin += values[place] * params[columns[place]]
        step = stepsize * labels[row] / (1.0 + np.exp(labels[row] * margin))
        for place in range(starts[row], starts[row + 1]):
            params[columns[place]] += step * values[place]


def used():
    """Seconds on the wall clock, and of processors: of this process and of its children that have ended."""
    return np.array([perf_counter(), process_time() + sum(os.times()[2:4])])


def hogwild(features, labels, steps, threads):
    """Return the params after so many steps, divided between threads, and the two kinds of seconds that they took."""
    params = np.zeros(features.shape[1])
    orders = [np.random.default_rng(seed).integers(len(labels), size=steps // threads) for seed in range(threads)]
    matrix = (features.indptr, features.indices, features.data)
    descend(matrix, labels, orders[0][:0], params, STEPSIZE)  # compiles it
    start = used()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda order: descend(matrix, labels, order, params, STEPSIZE), orders))
    return params, used() - start


def simulated(problem, steps):
    """Two workers of nowait in virtual time."""
    method, speeds = nw.AsynchronousSGD(nw.DelayAdaptive(STEPSIZE)), nw.speeds.Exponential(1.0, workers=2)
    nw.simulate(problem, method, speeds, steps=100, evaluate_every=100)  # compiles it
    start = used()
    run = nw.simulate(problem, method, speeds, steps=steps, evaluate_every=steps, progress=False)
    return run.params, used() - start


def trained(problem, steps):
    """Two worker processes of nowait; also returns what a replay of the run ends with."""
    method, start = nw.AsynchronousSGD(nw.DelayAdaptive(STEPSIZE)), used()
    run = nw.train(problem, method, workers=2, steps=steps, evaluate_every=steps, progress=False)
    seconds = np.array([steps / run.stats.steps_per_second, used()[1] - start[1]])
    return run.params, seconds, nw.replay(run.trace, problem, method).params


def compare(rows, dimension, passes, repeats):
    """Yield a name, seconds per step (the best of all repeats), the final loss, and True if all had the same bits."""
    features, labels = make_problem(rows, dimension)
    problem, steps = nw.problems.LogisticRegression(features, labels), passes * rows
    runs = {
        "Hogwild, 1 thread": lambda: hogwild(features, labels, steps, 1),
        "Hogwild, 2 threads": lambda: hogwild(features, labels, steps, 2),
        "nowait, simulation of 2 workers": lambda: simulated(problem, steps),
    }
    for name, make in runs.items():
        params, seconds = zip(*(make() for _ in range(repeats)), strict=True)
        yield name, np.min(seconds, axis=0) / steps, problem.loss(params[0]), same(params)
    params, seconds, replayed = trained(problem, steps)
    yield "nowait, 2 worker processes", seconds / steps, problem.loss(params), same([params, replayed])


def same(results):
    return all((one == results[0]).all() for one in results)


def short():
    for name, _, loss, repeated in compare(rows=1_000, dimension=500, passes=4, repeats=2):
        bits = "" if name == "Hogwild, 2 threads" else f"; a repetition has the same bits: {repeated}"
        print(f"{name}: loss below 0.55: {loss < 0.55}{bits}")


def full():
    first = None
    print(f"{'':32}   steps/s   ratio  processor µs/step    loss  same bits again")
    for name, (wall, processor), loss, repeated in compare(rows=20_000, dimension=10_000, passes=10, repeats=10):
        first = first or wall
        speeds = f"{1 / wall:9,.0f}  {first / wall:6.4f}  {1e6 * processor:17.2f}"
        print(f"{name:32} {speeds}  {loss:.4f}  {repeated}", flush=True)


if __name__ == "__main__":
    full() if sys.argv[1:] == ["full"] else short()
