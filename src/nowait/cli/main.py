"""``nowait``: the command line."""

from __future__ import annotations

import sys
from typing import Annotated, Any, final

import typer
from typer.core import TyperGroup

import nowait
from nowait.cli.commands import COMMANDS
from nowait.cli.exits import end_early, place_of, status_of, words_of
from nowait.cli.new_folders import empty_folders_removed
from nowait.engines.signals import first_signals
from nowait.engines.watch import Watch


@final
class Commands(TyperGroup):
    """All commands. A signal ends each with the exit status for that signal."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            with Watch(), empty_folders_removed():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            typer.echo(words_of(error), err=True)
            raise typer.Exit(status_of(error)) from error


app = typer.Typer(cls=Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def nowait_command(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Train with workers of any speed and never wait for the slowest one."""
    if version:
        typer.echo(nowait.__version__)
        raise typer.Exit


for command in COMMANDS:
    app.command()(command)


def main() -> None:
    """Run the command line; user errors are printed in one line and end with status 1."""
    try:
        with first_signals(end_early):
            app()
    except (ValueError, TypeError, OSError, ArithmeticError, nowait.BadWorkerError, nowait.WorkerFailedError) as error:
        typer.echo(f"nowait: {place_of(error)}{_printable(str(error))}", err=True)
        sys.exit(1)
    except Exception as error:
        place = place_of(error)
        if not place:
            raise
        typer.echo(f"nowait: {place}{type(error).__name__}: {_printable(str(error))}", err=True)
        sys.exit(1)


def _printable(text: str) -> str:
    """Return the text with control characters escaped: an error may quote an untrusted file."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1] for letter in text)
