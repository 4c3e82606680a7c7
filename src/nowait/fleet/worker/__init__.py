"""A worker process: reads orders, computes gradients, and reports."""
