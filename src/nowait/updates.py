"""Updates, and the penalties and constraints for ``Proximal``. The updates are in ``nowait`` itself too.

>>> import nowait as nw
>>> nw.Proximal(nw.updates.Ball(1.0))
Proximal(penalty=Ball(radius=1.0))
"""

from nowait.core.realigned_update import HeLoCo
from nowait.core.scaled_gradients import ScaleGradient
from nowait.core.shaped_updates import LMO, Muon
from nowait.core.updates import L1, Adam, AMSGrad, Ball, Box, Momentum, Nesterov, Proximal, Sgd, Update

__all__ = [
    "L1",
    "LMO",
    "AMSGrad",
    "Adam",
    "Ball",
    "Box",
    "HeLoCo",
    "Momentum",
    "Muon",
    "Nesterov",
    "Proximal",
    "ScaleGradient",
    "Sgd",
    "Update",
]
