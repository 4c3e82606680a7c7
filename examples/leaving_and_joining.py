"""Workers leave and join during a run; the run is saved, loaded and replayed bit for bit."""

import tempfile
from pathlib import Path

import numpy as np

import nowait as nw

problem = nw.problems.LeastSquares.random(samples=1_000, dimension=20, noise=0.01, batch_size=8, seed=1)
method = nw.AsynchronousSGD(nw.DelayAdaptive(0.3))
speeds = nw.speeds.LogNormal([1.0, 1.0, 2.0, 5.0], sigma=0.5)
faults = nw.speeds.Faults([(100.0, "leave", 0), (300.0, "join", 0), (400.0, "join", 4)])

run = nw.simulate(problem, method, speeds, seconds=600, faults=faults)
for start in range(0, 600, 100):
    rows = (run.trace.time >= start) & (run.trace.time < start + 100)
    print(f"{start:3} s: {run.trace.live_workers[rows].max()} workers, {rows.sum():3} gradients")

with tempfile.TemporaryDirectory() as folder:
    run.save(Path(folder) / "run")
    trace = nw.load(Path(folder) / "run").trace
again = nw.replay(trace, problem, method)
print("the replay is bit-identical:", np.array_equal(again.params, run.params))
