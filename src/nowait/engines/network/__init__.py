"""Connections between the server and hosts on other machines: the protocol, the sockets, and the workers behind them.

Nothing here needs Ray. ``handshake``, ``frames`` and ``protocol`` have no input or output.
"""
