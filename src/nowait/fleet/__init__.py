"""Real workers: processes on this machine, on the nodes of a Ray cluster, and on machines that connect.

A folder says in which process its code runs: ``server`` in the process of the user, ``host`` once on every machine (on
this one it is called directly), ``worker`` in the workers, ``wire`` in all of them. ``sources`` says where hosts come
from, in the process of the user.
"""
