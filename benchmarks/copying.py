"""A problem whose gradient is a copy of its point, to measure data transfer."""

import numpy as np


class Copy:
    def __init__(self, dimension, dtype=np.float64):
        self.dimension, self.dtype = dimension, dtype

    def initial(self):
        return np.ones(self.dimension, self.dtype)

    def gradient_into(self, point, sample, out):
        np.copyto(out, point)

    def gradient(self, point, sample):
        return point.copy()

    def loss(self, point):
        return float(point[0])
