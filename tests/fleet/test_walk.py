"""How many functions of this library one gradient meets, in all processes together: ARCHITECTURE.md shows them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import nowait as nw

SOURCE = str(Path(nw.__file__).parent)
ARCHITECTURE = Path(__file__).parents[2] / "ARCHITECTURE.md"
COUNTED = 20
"""The gradient that is followed: the first ones meet more."""


class Steps:
    """Notes the functions that are called from one call of ``at`` to the next."""

    def __init__(self):
        self.calls, self.functions = 0, set()

    def at(self):
        self.calls += 1
        if self.calls == COUNTED:
            sys.setprofile(self._note)
        elif self.calls == COUNTED + 1:
            sys.setprofile(None)

    def _note(self, frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE) and not code.co_name.startswith("<"):
            self.functions.add((Path(code.co_filename).relative_to(SOURCE).as_posix(), code.co_qualname))


class Followed:
    """A user's problem with only what a problem needs. Its worker writes which functions a gradient meets there."""

    dimension = 50

    def __init__(self, file):
        self.file, self.steps = str(file), None

    def initial(self):
        return np.ones(self.dimension)

    def gradient(self, point, sample):
        if self.file:
            self.steps = self.steps or Steps()
            self.steps.at()
            if self.steps.calls == COUNTED + 1:
                Path(self.file).write_text(json.dumps(sorted(self.steps.functions)))
        return 2e-4 * point

    def loss(self, point):
        return float(point @ point)


class FollowedMethod(nw.Method):
    """Asynchronous SGD in the server, whose functions are noted from one arrival to the next."""

    def __init__(self):
        self.stepsize, self.steps = nw.DelayAdaptive(1e-6), Steps()
        self.inner = nw.AsynchronousSGD(self.stepsize)

    def start(self, server):
        self.inner.start(server)

    def on_arrival(self, server, arrival):
        self.steps.at()
        self.inner.on_arrival(server, arrival)


def simulated(_):
    method = FollowedMethod()
    nw.simulate(Followed(""), method, nw.speeds.Fixed([1.0]), steps=2 * COUNTED, evaluate_every=10**9, progress=False)
    return method.steps.functions


def trained(folder):
    method, file = FollowedMethod(), folder / "worker"
    options = {"evaluate_every": 10**9, "progress": False, "audit": False}
    nw.train(Followed(file), method, workers=1, steps=200 * COUNTED, **options)
    return method.steps.functions | {tuple(function) for function in json.loads(file.read_text())}


@pytest.mark.parametrize(
    ("walk", "most_functions", "most_files"), [(simulated, 29, 13), (trained, 32, 14)], ids=["simulator", "processes"]
)
def test_a_gradient_meets_few_functions(walk, most_functions, most_files, tmp_path):
    functions = walk(tmp_path)
    assert len(functions) <= most_functions, sorted(functions)
    assert len({file for file, _ in functions}) <= most_files, sorted({file for file, _ in functions})
    shown = ARCHITECTURE.read_text(encoding="utf-8")
    assert [name for _, name in functions if f"`{name}`" not in shown] == []
