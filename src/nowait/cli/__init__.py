"""The command line."""

from nowait.cli.main import app, main

__all__ = ["app", "main"]
