"""Recomputes quantities of a run of asynchronous SGD from the paper's definitions (Section 2), without the server."""

import math

import numpy as np

import nowait as nw
from nowait.core import sampler


class Audit:
    """Indices as in the paper: steps k = 1 … K, worker m_k, prev, next, delays, γ̂."""

    def __init__(self, problem, method, speeds, steps, seed=0, **options):
        self.problem, self.method, self.seed = problem, method, seed
        iterates = [problem.initial()]
        self.run = nw.simulate(
            problem,
            method,
            speeds,
            steps=steps,
            seed=seed,
            callbacks=[lambda control: iterates.append(control.params.copy())],
            **options,
        )
        self.iterates = iterates
        self.trace = self.run.trace
        self.num_workers = self.trace.num_workers
        self.last = self.run.stats.steps
        self.workers = [None, *self.trace.worker.tolist()]  # m_k at index k
        self.stepsizes = [math.nan, *self.trace.stepsize.tolist()]  # γ_k at index k

    def prev(self, k, m):
        return max((j for j in range(1, k) if self.workers[j] == m), default=0)

    def next(self, k, m):
        return min((j for j in range(k, self.last + 1) if self.workers[j] == m), default=math.inf)

    def delay(self, k, m):
        return k - self.prev(k, m)

    def gamma_at_next(self, k, m):
        """Return γ_{next(k, m)}; a gradient that has not arrived by K gets its delay at K (appendix of the paper)."""
        arrival = self.next(k, m)
        if arrival < math.inf:
            return self.stepsizes[arrival]
        return self.method.stepsize(max(1, self.last - self.prev(k, m)), self.num_workers, self.last)

    def gamma_hat(self, k):
        return self.gamma_at_next(k + 1, self.workers[k])

    def gradient(self, k, m):
        """Return the gradient that worker m computes just before step k: at x_{prev(k, m)}, with its own sample."""
        version = self.prev(k, m)
        job = sum(1 for j in range(1, k) if self.workers[j] == m)
        sample = sampler(self.seed).sample(m, job)
        return self.problem.gradient(self.iterates[version], sample)

    def weighted_average(self, weights):
        """Return Σ w_k·x_k / Σ w_k over k = 1 … K."""
        total = sum(weights[k] * self.iterates[k] for k in range(1, self.last + 1))
        return np.asarray(total / sum(weights[k] for k in range(1, self.last + 1)))
