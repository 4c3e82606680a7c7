"""Every machine: starts and kills worker processes, and carries orders and reports."""
