"""Studies that take many runs, such as ``race``, ``tolerance``, ``bench`` and ``reproduce``; ``whatif`` takes none."""

from nowait.studies.advice import Advice, Simulated
from nowait.studies.bench import Bench, bench
from nowait.studies.bias import BiasRow
from nowait.studies.certified import CertifiedRow
from nowait.studies.certify import Certificate, MutantRow, certify
from nowait.studies.entrants import paper_methods, usual_methods
from nowait.studies.exact import WorstCase, worst_case
from nowait.studies.longest_delay import LongestDelay, longest_delay
from nowait.studies.plan import plan
from nowait.studies.race import Race, race
from nowait.studies.reproduce import Reproduction, reproduce
from nowait.studies.rule_pays.prescribed import Prescribed
from nowait.studies.rule_pays.settings import Cluster
from nowait.studies.rule_pays.study import RulePays, rule_pays
from nowait.studies.rule_pays.tuned import Ratio
from nowait.studies.tolerance import tolerance
from nowait.studies.tolerated import Tolerance, ToleranceRow
from nowait.studies.tune import Trial, Tuning, tune
from nowait.studies.whatif import whatif
from nowait.studies.whatif_result import Alternative, WhatIf

__all__ = [
    "Advice",
    "Alternative",
    "Bench",
    "BiasRow",
    "Certificate",
    "CertifiedRow",
    "Cluster",
    "LongestDelay",
    "MutantRow",
    "Prescribed",
    "Race",
    "Ratio",
    "Reproduction",
    "RulePays",
    "Simulated",
    "Tolerance",
    "ToleranceRow",
    "Trial",
    "Tuning",
    "WhatIf",
    "WorstCase",
    "bench",
    "certify",
    "longest_delay",
    "paper_methods",
    "plan",
    "race",
    "reproduce",
    "rule_pays",
    "tolerance",
    "tune",
    "usual_methods",
    "whatif",
    "worst_case",
]
