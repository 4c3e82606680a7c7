"""The user's process: what is known about workers and hosts, the event loop, and connections to hosts."""
