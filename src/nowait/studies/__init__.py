"""Studies that take many runs: ``race``, ``plan``, ``tune``, ``tolerance``, ``reproduce`` and ``certify``."""

from nowait.studies.advice import Advice, Simulated
from nowait.studies.bias import BiasRow
from nowait.studies.certify import Certificate, CertifiedRow, certify
from nowait.studies.longest_delay import LongestDelay, longest_delay
from nowait.studies.plan import plan
from nowait.studies.race import Race, race
from nowait.studies.reproduce import Reproduction, reproduce
from nowait.studies.tolerance import tolerance
from nowait.studies.tolerated import Tolerance, ToleranceRow
from nowait.studies.tune import Trial, Tuning, tune

__all__ = [
    "Advice",
    "BiasRow",
    "Certificate",
    "CertifiedRow",
    "LongestDelay",
    "Race",
    "Reproduction",
    "Simulated",
    "Tolerance",
    "ToleranceRow",
    "Trial",
    "Tuning",
    "certify",
    "longest_delay",
    "plan",
    "race",
    "reproduce",
    "tolerance",
    "tune",
]
