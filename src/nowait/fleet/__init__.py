"""Real workers: processes on this machine, on the nodes of a Ray cluster, and on machines that connect.

The folders say in which process the code runs: ``server`` in the user's process, ``host`` on every machine (on this one
it is called directly), ``worker`` in a worker process, ``wire`` everywhere, ``sources`` in the user's process: they say
where hosts come from.
"""
