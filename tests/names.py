"""Names of tests."""

import re


def plain(value):
    """A parameter as text without addresses, so that processes that share the work know a test by the same name."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
