"""The asynchronous parameter server of Ray's documentation, the baseline of the other benchmarks.

An actor holds params, other actors compute gradients, and the driver calls ``ray.wait``.
"""

import time

import numpy as np
import ray
from processor_time import Speed, per_step, used

SECONDS_TO_SETTLE = 1.0
"""Time until killed processes have ended."""


def steps_per_second(*arguments, **options):
    """Return the steps per second; the arguments are those of ``measure``."""
    return measure(*arguments, **options).steps_per_second


def measure(initial, stepsize, steps, kind, arguments, where=None):
    """Return the speed with one worker for each of ``arguments``; its gradient is ``kind(*arguments)``.

    ``where`` is the name of a Ray resource: workers run on the node that has it, the server on the one with "driver".
    """

    @ray.remote(num_cpus=0)
    class ParameterServer:
        def __init__(self, initial):
            self.params = np.array(initial)

        def apply_gradients(self, gradient):
            self.params -= stepsize * gradient
            return self.params

        def get_weights(self):
            return self.params

    @ray.remote(num_cpus=0)
    class DataWorker:
        def __init__(self, *arguments):
            self.gradient = kind(*arguments)

        def compute_gradients(self, params):
            return self.gradient(params)

    server = ParameterServer.options(resources={"driver": 0.01} if where else {}).remote(initial)
    options = {"resources": {where: 0.01}} if where else {}
    workers = [DataWorker.options(**options).remote(*one) for one in arguments]
    weights = server.get_weights.remote()
    running = {worker.compute_gradients.remote(weights): worker for worker in workers}
    ray.wait(list(running), num_returns=len(running))
    before, began = used(), time.perf_counter()
    for _ in range(steps):
        [ready], _ = ray.wait(list(running))
        worker = running.pop(ready)
        weights = server.apply_gradients.remote(ready)
        running[worker.compute_gradients.remote(weights)] = worker
    seconds = time.perf_counter() - began
    milliseconds = per_step(before, used(), steps)
    ray.wait(list(running), num_returns=len(running))
    for actor in (*workers, server):
        ray.kill(actor)
    time.sleep(SECONDS_TO_SETTLE)
    return Speed(steps / seconds, milliseconds)
