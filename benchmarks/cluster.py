"""Speed of the Ray engine on the driver's own node, relative to the parameter server of Ray's documentation.

    make bench-engines

The gradient is trivial (a copy of the point), so that the communication between worker and server is measured, here
over shared memory. For other nodes see ``network.py``.
"""

import os
import platform
from functools import partial

import ray
from comparison import ROUNDS, engine, one_node, pattern
from processor_time import compare


def main():
    versions = f"Python {platform.python_version()}, Ray {ray.__version__}"
    print(f"{versions}, {os.cpu_count()} cores; {ROUNDS} alternating rounds")
    with one_node():
        for workers in (8, 40):
            ours = {"shared memory": partial(engine, 400, workers, 60_000)}
            compare(f"d = 400, M = {workers}", partial(pattern, 400, workers, 1_500), ours, ROUNDS)
        ours = {"shared memory": partial(engine, 1_000_000, 4, 500)}
        compare("d = 10^6, M = 4", partial(pattern, 1_000_000, 4, 200), ours, ROUNDS)


if __name__ == "__main__":
    main()
