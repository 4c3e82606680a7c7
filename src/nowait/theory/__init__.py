"""The paper's theory as code: stepsizes, guarantees, speedups, estimates of constants, and checks of the lemmas."""

from nowait.theory.certificate import Condition, RunCertificate, certificate
from nowait.theory.constants import Constants
from nowait.theory.estimate import Estimate, Uncertain, estimate
from nowait.theory.guarantee import Guarantee, Prescription
from nowait.theory.lemmas import LemmaCheck, check_lemmas
from nowait.theory.rates import Rate
from nowait.theory.rivals import prescribe_constant, prescribe_minibatch
from nowait.theory.speedup import Speedup, malenia_time, rennala_time, speedup
from nowait.theory.tables import Table1Row, Table2Row, table_1, table_2
from nowait.theory.theorems import prescribe
from nowait.theory.transfer import StepsizeRange, stepsize_range

__all__ = [
    "Condition",
    "Constants",
    "Estimate",
    "Guarantee",
    "LemmaCheck",
    "Prescription",
    "Rate",
    "RunCertificate",
    "Speedup",
    "StepsizeRange",
    "Table1Row",
    "Table2Row",
    "Uncertain",
    "certificate",
    "check_lemmas",
    "estimate",
    "malenia_time",
    "prescribe",
    "prescribe_constant",
    "prescribe_minibatch",
    "rennala_time",
    "speedup",
    "stepsize_range",
    "table_1",
    "table_2",
]
