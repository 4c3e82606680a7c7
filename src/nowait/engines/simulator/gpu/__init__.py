"""Sweeps on a GPU: the plans of the compiled simulation, executed for all runs at once by one Triton kernel."""
