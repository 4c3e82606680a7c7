"""The paper's theory as code: stepsizes, guarantees, speedups, estimates of constants, and checks of the lemmas."""

from nowait.theory.certificate import Condition, RunCertificate, certificate
from nowait.theory.constants import Constants
from nowait.theory.estimate import Estimate, Uncertain, estimate
from nowait.theory.guarantee import Guarantee, Prescription
from nowait.theory.heterogeneity import heterogeneity_floor, worker_weights
from nowait.theory.lemmas import LemmaCheck, check_lemmas
from nowait.theory.limited import prescribe_ringleader, prescribe_ringmaster
from nowait.theory.ranking import RankedMethod, ranking
from nowait.theory.rates import Rate
from nowait.theory.regimes import SpeedupRange, relative_noise
from nowait.theory.rivals import prescribe_constant, prescribe_minibatch
from nowait.theory.rounds import (
    prescribe_m_synchronous,
    prescribe_malenia,
    prescribe_quantile,
    prescribe_rennala,
)
from nowait.theory.speedup import Speedup, lower_bound_time, malenia_time, rennala_time, speedup
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
    "RankedMethod",
    "Rate",
    "RunCertificate",
    "Speedup",
    "SpeedupRange",
    "StepsizeRange",
    "Table1Row",
    "Table2Row",
    "Uncertain",
    "certificate",
    "check_lemmas",
    "estimate",
    "heterogeneity_floor",
    "lower_bound_time",
    "malenia_time",
    "prescribe",
    "prescribe_constant",
    "prescribe_m_synchronous",
    "prescribe_malenia",
    "prescribe_minibatch",
    "prescribe_quantile",
    "prescribe_rennala",
    "prescribe_ringleader",
    "prescribe_ringmaster",
    "ranking",
    "relative_noise",
    "rennala_time",
    "speedup",
    "stepsize_range",
    "table_1",
    "table_2",
    "worker_weights",
]
