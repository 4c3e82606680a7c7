"""Every method once or more, ready to run: what the contract suite runs over."""

from __future__ import annotations

from nowait import methods
from nowait.core import Constant, DelayAdaptive, Method

CATALOGUE: dict[str, Method] = {
    "ATA": methods.ATA(Constant(0.1), batch=6),
    "AdaptiveRevision": methods.AdaptiveRevision(Constant(0.1)),
    "AsynchronousSGD": methods.AsynchronousSGD(DelayAdaptive(0.05)),
    "AsynchronousSGD, constant": methods.AsynchronousSGD(Constant(0.05)),
    "Auto": methods.Auto(Constant(0.1)),
    "Auto, no momentum": methods.Auto(Constant(0.1), momentum=0.0),
    "CA2FL": methods.CA2FL(Constant(0.1), buffer=3),
    "ClippedASGD": methods.ClippedASGD(Constant(0.05), max_norm=0.3),
    "CycleSGD": methods.CycleSGD(Constant(0.01), group=2),
    "DecoupledDiLoCo": methods.DecoupledDiLoCo(Constant(0.02), quorum=3),
    "DecoupledDiLoCo, grace": methods.DecoupledDiLoCo(Constant(0.02), quorum=2, grace_seconds=0.5),
    "DelayCompensatedSGD": methods.DelayCompensatedSGD(Constant(0.05)),
    "DelayCompensatedSGD, adaptive": methods.DelayCompensatedSGD(Constant(0.05), methods.AdaptiveStrength()),
    "DelayedNesterov": methods.DelayedNesterov(Constant(0.05), every=3, beta=0.5),
    "FADAS": methods.FADAS(Constant(0.1), buffer=3),
    "FedAT": methods.FedAT(Constant(0.5), tiers=2),
    "FedBuff": methods.FedBuff(Constant(0.1), buffer=3),
    "GradientTable": methods.GradientTable(Constant(0.05)),
    "MSynchronousSGD": methods.MSynchronousSGD(Constant(0.1), m=4),
    "MSynchronousSGD, cancel=True": methods.MSynchronousSGD(Constant(0.1), m=4, cancel=True),
    "MaleniaSGD": methods.MaleniaSGD(Constant(0.1), batch=8),
    "MindFlayerSGD": methods.MindFlayerSGD(Constant(0.1), timeout_seconds=2.0, trials=2),
    "MindFlayerSGD, some rest": methods.MindFlayerSGD(Constant(0.1), timeout_seconds=2.0, trials=[2, 0, 1]),
    "MinibatchSGD": methods.MinibatchSGD(Constant(0.1)),
    "OrderedMomentum": methods.OrderedMomentum(DelayAdaptive(0.02), beta=0.5),
    "PIAG": methods.PIAG(0.9),
    "PIAG, EqualParts": methods.PIAG(0.9, methods.EqualParts()),
    "PickySGD": methods.PickySGD(Constant(0.05), radius=0.2),
    "QuantileMinibatchSGD": methods.QuantileMinibatchSGD(Constant(0.1)),
    "RandomAssignment": methods.RandomAssignment(DelayAdaptive(0.05)),
    "RennalaSGD": methods.RennalaSGD(Constant(0.1), batch=4),
    "RennalaSGD, cancel=False": methods.RennalaSGD(Constant(0.1), batch=4, cancel=False),
    "RescaledASGD": methods.RescaledASGD(Constant(0.03)),
    "RingleaderASGD": methods.RingleaderASGD(Constant(0.05)),
    "RingmasterASGD": methods.RingmasterASGD(Constant(0.05), max_delay=4),
    "RingmasterASGD, cancel_stale=True": methods.RingmasterASGD(Constant(0.05), max_delay=4, cancel_stale=True),
    "RingmasterLMO": methods.RingmasterLMO(Constant(0.3), "euclidean"),
    "RingmasterLMO, constant": methods.RingmasterLMO(Constant(0.05), "sign", max_delay=6, beta=0.5),
    "ShuffledAssignment": methods.ShuffledAssignment(DelayAdaptive(0.05)),
    "StaleSynchronousSGD": methods.StaleSynchronousSGD(Constant(0.05), slack=2),
}
"""An example of every method, by name. The library's own tests run ``METHOD_CHECKS`` on each."""
