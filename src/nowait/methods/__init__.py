"""The methods. Each has a file of its own and is a small handler that calls the server's verbs."""

from nowait.methods.adaptive_revision import AdaptiveRevision
from nowait.methods.asynchronous_sgd import AsynchronousSGD
from nowait.methods.ata import ATA
from nowait.methods.auto import Auto
from nowait.methods.ca2fl import CA2FL
from nowait.methods.clipped_asgd import ClippedASGD
from nowait.methods.cycle_sgd import CycleSGD
from nowait.methods.decoupled_diloco import DecoupledDiLoCo
from nowait.methods.delay_compensated_sgd import AdaptiveStrength, DelayCompensatedSGD
from nowait.methods.delayed_nesterov import DelayedNesterov
from nowait.methods.fadas import FADAS
from nowait.methods.fed_at import FedAT
from nowait.methods.fed_buff import FedBuff
from nowait.methods.gradient_table import GradientTable
from nowait.methods.m_synchronous_sgd import MSynchronousSGD
from nowait.methods.malenia_sgd import MaleniaSGD
from nowait.methods.mind_flayer_sgd import MindFlayerSGD
from nowait.methods.minibatch_sgd import MinibatchSGD
from nowait.methods.ordered_momentum import OrderedMomentum
from nowait.methods.piag import PIAG, EqualParts, ShareOfTheRest, WindowRule
from nowait.methods.picky_sgd import PickySGD
from nowait.methods.quantile_minibatch_sgd import QuantileMinibatchSGD
from nowait.methods.random_assignment import RandomAssignment
from nowait.methods.rennala_sgd import RennalaSGD
from nowait.methods.rescaled_asgd import RescaledASGD
from nowait.methods.ringleader_asgd import RingleaderASGD
from nowait.methods.ringmaster_asgd import RingmasterASGD
from nowait.methods.ringmaster_lmo import RingmasterLMO
from nowait.methods.shuffled_assignment import ShuffledAssignment
from nowait.methods.stale_synchronous_sgd import StaleSynchronousSGD

__all__ = [
    "ATA",
    "CA2FL",
    "FADAS",
    "PIAG",
    "AdaptiveRevision",
    "AdaptiveStrength",
    "AsynchronousSGD",
    "Auto",
    "ClippedASGD",
    "CycleSGD",
    "DecoupledDiLoCo",
    "DelayCompensatedSGD",
    "DelayedNesterov",
    "EqualParts",
    "FedAT",
    "FedBuff",
    "GradientTable",
    "MSynchronousSGD",
    "MaleniaSGD",
    "MindFlayerSGD",
    "MinibatchSGD",
    "OrderedMomentum",
    "PickySGD",
    "QuantileMinibatchSGD",
    "RandomAssignment",
    "RennalaSGD",
    "RescaledASGD",
    "RingleaderASGD",
    "RingmasterASGD",
    "RingmasterLMO",
    "ShareOfTheRest",
    "ShuffledAssignment",
    "StaleSynchronousSGD",
    "WindowRule",
]
