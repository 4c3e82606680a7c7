"""The simulator: virtual time, any speeds."""

from nowait.engines.simulator.compiled import simulate_compiled
from nowait.engines.simulator.plan import NotPlannable
from nowait.engines.simulator.replay import replay
from nowait.engines.simulator.run import run_simulation
from nowait.engines.simulator.simulator import simulate

__all__ = ["NotPlannable", "replay", "run_simulation", "simulate", "simulate_compiled"]
