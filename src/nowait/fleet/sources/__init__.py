"""Where hosts come from: this machine, a Ray cluster, machines that connect."""
