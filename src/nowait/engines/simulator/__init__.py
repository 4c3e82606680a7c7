"""The simulator: virtual time, any speeds."""

from nowait.engines.simulator.cold import is_better_not_compiled
from nowait.engines.simulator.compiled import simulate_compiled
from nowait.engines.simulator.replay import replay
from nowait.engines.simulator.simulator import simulate

__all__ = ["is_better_not_compiled", "replay", "simulate", "simulate_compiled"]
