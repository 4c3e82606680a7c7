"""A pytest plugin that runs tests in random order: ``NOWAIT_SHUFFLE=7 pytest -p shuffled``.

Files are shuffled, and tests within each file, so that module fixtures are created once. The same seed gives the same
order in every process of pytest-xdist.
"""

import os
import random


def pytest_collection_modifyitems(items):
    rng = random.Random(int(os.environ.get("NOWAIT_SHUFFLE", "0")))
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    groups = list(files.values())
    rng.shuffle(groups)
    for group in groups:
        rng.shuffle(group)
    items[:] = [item for group in groups for item in group]
