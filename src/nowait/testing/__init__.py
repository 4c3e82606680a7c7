"""Helpers for tests of methods, problems and engines: yours as well as ours."""

from nowait.testing.catalogue import CATALOGUE
from nowait.testing.contract import METHOD_CHECKS
from nowait.testing.engines import ENGINE_CHECKS
from nowait.testing.scripted import ScriptedTransport
from nowait.testing.scripted_runs import train_scripted
from nowait.testing.servers import a_server, check_invariants, gradient_from
from nowait.testing.workers import ScriptedWorkers

__all__ = [
    "CATALOGUE",
    "ENGINE_CHECKS",
    "METHOD_CHECKS",
    "ScriptedTransport",
    "ScriptedWorkers",
    "a_server",
    "check_invariants",
    "gradient_from",
    "train_scripted",
]
