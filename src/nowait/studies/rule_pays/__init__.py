"""Where the paper's stepsize rule pays: the study of ``nowait rule-pays``."""
