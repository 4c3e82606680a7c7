"""A problem of your own: any object with dimension, initial, gradient and loss."""

import numpy as np

import nowait as nw


class Median:
    """The coordinate-wise median of points: it minimises the mean distance in the 1-norm."""

    def __init__(self, points):
        self.points = points
        self.dimension = points.shape[1]

    def initial(self):
        return np.zeros(self.dimension)

    def gradient(self, point, sample):
        return np.sign(point - self.points[sample.index(len(self.points))])

    def loss(self, point):
        return float(np.abs(self.points - point).sum(axis=1).mean())


points = np.random.default_rng(0).normal(loc=[1.0, -2.0], size=(101, 2))
problem = Median(points)
run = nw.simulate(
    problem,
    nw.AsynchronousSGD(nw.Constant(0.02)),
    nw.speeds.Exponential(1.0, workers=10),
    steps=20_000,
    output=nw.UniformAverage(),
)
print("found ", run.params.round(1))
print("median", np.median(points, axis=0).round(1))
