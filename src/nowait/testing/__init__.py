"""Helpers for tests of methods, problems, stepsize rules, updates, outputs and engines: yours as well as ours.

Each list of checks is a contract: every check is a function of one object, and raises ``AssertionError`` if the object
breaks it. Those of the lists with MEMORY in their names take the memory that vectors are in as well.
"""

from nowait.testing.catalogue import CATALOGUE
from nowait.testing.contract import METHOD_CHECKS, METHOD_MEMORY_CHECKS
from nowait.testing.engines import ENGINE_CHECKS
from nowait.testing.outputs import OUTPUT_CHECKS, OUTPUT_MEMORY_CHECKS
from nowait.testing.problems import PROBLEM_CHECKS, the_mean_gradient_is_the_slope_of_the_loss
from nowait.testing.scripted import ScriptedHosts
from nowait.testing.scripted_runs import train_scripted
from nowait.testing.servers import a_server, check_invariants, gradient_from
from nowait.testing.stepsizes import STEPSIZE_CHECKS
from nowait.testing.updates import UPDATE_CHECKS, UPDATE_MEMORY_CHECKS
from nowait.testing.workers import ScriptedWorkers

__all__ = [
    "CATALOGUE",
    "ENGINE_CHECKS",
    "METHOD_CHECKS",
    "METHOD_MEMORY_CHECKS",
    "OUTPUT_CHECKS",
    "OUTPUT_MEMORY_CHECKS",
    "PROBLEM_CHECKS",
    "STEPSIZE_CHECKS",
    "UPDATE_CHECKS",
    "UPDATE_MEMORY_CHECKS",
    "ScriptedHosts",
    "ScriptedWorkers",
    "a_server",
    "check_invariants",
    "gradient_from",
    "the_mean_gradient_is_the_slope_of_the_loss",
    "train_scripted",
]
