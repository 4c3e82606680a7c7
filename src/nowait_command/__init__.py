"""The entry point of the ``nowait`` command.

It is a package of its own, so that it can handle Ctrl-C while ``nowait`` and NumPy are being imported.
"""

import sys

INTERRUPTED = 130
"""The exit status after Ctrl-C, as in shells: 128 plus the number of the signal."""


def main() -> None:
    """Import the command line and run it; Ctrl-C during the imports ends it with one line."""
    try:
        from nowait.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("nowait: interrupted before it started; nothing was written\n")
        sys.exit(INTERRUPTED)
    run()
