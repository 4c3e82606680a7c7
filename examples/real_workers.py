"""A problem of your own, trained by real worker processes; one is slow, and one is killed."""

import os
import signal

import numpy as np

import nowait as nw


class Circle:
    """Finds the centre of a circle from noisy points on it."""

    dimension = 2
    centre = np.array([3.0, -1.0])

    def initial(self):
        return np.zeros(2)

    def gradient(self, point, sample):
        if (sample.worker, sample.job) == (1, 1):
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
        angle = 2 * np.pi * sample.uniforms(1)[0]
        direction = np.array([np.cos(angle), np.sin(angle)])
        middle = self.centre + 0.1 * direction + 0.05 * sample.normals(2)
        return point - middle

    def loss(self, point):
        return float(0.5 * np.sum((point - self.centre) ** 2))


method = nw.AsynchronousSGD(nw.DelayAdaptive(0.05))
run = nw.train(
    Circle(), method, workers=3, steps=6_000, slowdown={0: 10.0}, start="together", output=nw.UniformAverage()
)
print(f"{run.stats.steps} steps, {run.stats.lost} gradient lost with the worker that was killed")
print("the centre is near", (run.params + 0.0).round(0))
print("workers joined again:", sorted(set(run.trace.events["worker"].tolist())))

again = nw.replay(run.trace, Circle(), method, output=nw.UniformAverage())
print("the replay is bit-identical:", bool((again.params == run.params).all()))
