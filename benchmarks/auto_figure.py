"""The figure of docs/methods/auto.md: one simulated run, what Auto waits for, the noise scale, and the loss.

    python benchmarks/auto_figure.py docs/methods/auto.png

Twelve workers, the slowest 16 times slower than the fastest. It is virtual time, so every machine draws the same.
"""

import sys

import numpy as np

import nowait as nw

problem = nw.problems.LeastSquares.random(samples=2_000, dimension=50, noise=0.1, batch_size=16, seed=0)
speeds = nw.speeds.LogNormal(np.geomspace(1, 16, 12).tolist(), sigma=0.2)
run = nw.simulate(problem, nw.Auto(0.1, momentum=0.9), speeds, seconds=1_500, evaluate_every=3)
print(*(f"{note.time:8.1f} s  {note}" for note in run.trace.notes), sep="\n")
nw.plots.waiting(run).savefig(sys.argv[1], dpi=130)
