"""Shared fixtures."""

import os
import signal
import sys

import pytest
from hypothesis import settings

from forked_zygotes import TEMPLATES
from nowait.engines.simulator import cold
from nowait.fleet.host import launch

os.environ["HF_HUB_OFFLINE"] = "1"  # models of tests come from configs: nothing is downloaded
cold.PATIENCE.gradients = 0  # on a fresh machine, too, short runs of tests go the compiled way
settings.register_profile("deterministic", derandomize=True, deadline=None, max_examples=60, database=None)
settings.load_profile("deterministic")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def forked_zygotes(request, monkeypatch):
    """Fork the zygotes of this process from one that has imported the library."""
    if request.node.get_closest_marker("new_interpreter") is None:
        monkeypatch.setattr(launch, "subprocess", TEMPLATES)
        imports_torch = "torch" in vars(request.module) or request.module.__name__ == "test_examples"
        TEMPLATES.with_torch = imports_torch and "torch" in sys.modules


@pytest.fixture(autouse=True, scope="session")
def templates():
    yield
    TEMPLATES.close()


@pytest.fixture
def record():
    """A callback that keeps a copy of every iterate."""
    return Recorder()


class Recorder:
    def __init__(self):
        self.iterates = []

    def __call__(self, control):
        self.iterates.append(control.params.copy())
