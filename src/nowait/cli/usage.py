"""Wrong options and commands: what is printed about them, in one line that suggests the nearest name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from nowait.cli.exits import WRONG_OPTIONS
from nowait.core import checks

_click: Any = importlib.import_module(typer.BadParameter.__module__)
"""The exceptions of click: of the package in old versions of Typer, of Typer's own copy in new ones."""


@contextmanager
def reported_in_a_line(context: Any) -> Iterator[None]:
    """Print what is wrong with the options of a command in one line, and end with status 2."""
    try:
        yield
    except (typer.Exit, _click.NoArgsIsHelpError):
        raise
    except _click.UsageError as error:
        typer.echo(f"nowait: {printable(message_of(error))}", err=True)
        typer.echo(f"Try: {_command(error, context)} --help", err=True)
        raise typer.Exit(WRONG_OPTIONS) from error


def message_of(error: Any) -> str:
    """Return the message, with the nearest name if an option does not exist."""
    if isinstance(error, _click.NoSuchOption):
        params = error.ctx.command.get_params(error.ctx)  # --help is among them
        known = [name for item in params for name in (*item.opts, *item.secondary_opts)]
        return f"there is no option {error.option_name}{checks.did_you_mean(error.option_name, known)}"
    text: str = error.format_message()
    return text


def _command(error: Any, context: Any) -> str:
    """Return the command whose options are wrong."""
    own = error.ctx is not None and error.ctx.parent is not None
    name = error.ctx.info_name if own else context.invoked_subcommand
    return f"nowait {name}" if name else "nowait"


def printable(text: str) -> str:
    """Return the text with control characters escaped: an error may quote an untrusted file."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1] for letter in text)
