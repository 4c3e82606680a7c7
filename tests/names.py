"""Names of parametrised tests, and of commands."""

import re


def plain(value):
    """Return a parameter as text without memory addresses, so that test names are the same in all processes."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def typed(command):
    """Return a command's name as it is typed."""
    return command.__name__.replace("_", "-")
