"""Real workers: the server and the processes that compute gradients for it, on this machine and on others.

A folder says in which process its code runs: ``server`` in the process of the user, ``host`` once on every machine,
``worker`` in the workers, ``wire`` in all of them. ``sources`` says where hosts come from, in the process of the user.
"""
