"""The golden table: results of every method of the catalogue on one toy problem. ``make golden`` rewrites it.

    python tests/golden.py           # rewrite the golden table and the hashes of golden_traces.py
    python tests/golden.py --check   # compare the hashes: print OK, or the runs that record other bits here
    python tests/golden.py --look    # compare the hashes and inspect the compiled code as well

Six workers that need 0.1 to 10 s for a gradient, 100 s of virtual time, a quadratic of dimension 10; once with the same
data for all workers, once with different data on each (ζ = 1), and once with random speeds, leaves, joins and the
uniform average as the output. Most changes of a method's behaviour change this table.
"""

import math
import sys
from pathlib import Path

import compiled_code
import golden_traces
import nowait as nw
from nowait.testing import CATALOGUE

TABLE = Path(__file__).with_name("golden.txt")
SPEEDS = nw.speeds.Fixed([0.1, 0.2, 0.3, 1.0, 3.0, 10.0])
RANDOM = nw.speeds.Exponential(SPEEDS.seconds)
TURMOIL = [
    (5.0, "leave", 0),
    (9.0, "join", 7),
    (20.0, "join", 0),
    (30.0, "leave", 5),
    (31.0, "leave", 2),
    (60.0, "join", 5),
]
SAME = nw.problems.NoisyQuadratic(dimension=10, L=1.0, mu=0.1, sigma=0.1)
OWN = SAME.split(6, by="sorted", zeta=1.0)
COLUMNS = {"steps": 6, "gradients": 9, "dropped": 7, "cancelled": 9, "same data": 13, "own data": 13, "turmoil": 13}
HEADER = " ".join([f"{'method':34}", *(f"{name:>{width}}" for name, width in COLUMNS.items())])


def row(name):
    """Return one line of the table: counts, and the losses with the same data, different data and random speeds."""
    same = nw.simulate(SAME, CATALOGUE[name], SPEEDS, seconds=100.0, evaluate_every=10_000)
    refused = CATALOGUE[name].needs_shared_data
    own = None if refused else nw.simulate(OWN, CATALOGUE[name], SPEEDS, seconds=100.0, evaluate_every=10_000)
    output, faults = nw.UniformAverage(), nw.speeds.Faults(TURMOIL)
    turmoil = nw.simulate(SAME, CATALOGUE[name], RANDOM, seconds=100.0, output=output, faults=faults)
    stats = same.stats
    losses = [same.history.loss[-1], math.nan if own is None else own.history.loss[-1], SAME.loss(turmoil.params)]
    counts = f"{stats.steps:>6} {stats.gradients:>9} {stats.dropped:>7} {stats.cancelled:>9}"
    return " ".join([f"{name:34}", counts, *(f"{loss:>13.6e}" for loss in losses)])


def check(look):
    """Print OK, or the runs whose bits differ from the table of hashes; return the exit status."""
    problems = [f"differs: {name}" for name in golden_traces.differing()]
    if look:
        problems += compiled_code.suspicious()
    sys.stdout.write("\n".join(problems or ["OK"]) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    if sys.argv[1:] in (["--check"], ["--look"]):
        sys.exit(check(look=sys.argv[1] == "--look"))
    TABLE.write_text("\n".join([HEADER, *map(row, CATALOGUE)]) + "\n", encoding="utf-8")
    golden_traces.write()
