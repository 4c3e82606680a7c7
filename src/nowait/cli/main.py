"""``nowait``: the command line."""

from __future__ import annotations

import sys
from typing import Annotated, Any, final

import typer
from typer.core import TyperGroup

import nowait
from nowait.cli.commands import COMMANDS
from nowait.cli.exits import advice_on, end_early, place_of, sentence_of, signals_told_once, status_of, words_of
from nowait.cli.listings import epilog_of
from nowait.cli.new_folders import empty_folders_removed
from nowait.cli.usage import printable, reported_in_a_line
from nowait.core import checks
from nowait.engines.signals import first_signals
from nowait.engines.watch import Watch


@final
class Commands(TyperGroup):
    """All commands. A signal ends each with the exit status for that signal."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            with reported_in_a_line(ctx), signals_told_once(), Watch(), empty_folders_removed():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            typer.echo(words_of(error), err=True)
            raise typer.Exit(status_of(error)) from error

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the command."""
        with reported_in_a_line(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; for a wrong name, suggest the nearest one."""
        if not ctx.resilient_parsing and args[0] not in self.commands:
            ctx.fail(f"there is no command {args[0]!r}{checks.did_you_mean(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def nowait_command(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Train with workers of any speed and never wait for the slowest one."""
    if version:
        typer.echo(nowait.__version__)
        raise typer.Exit


for command in COMMANDS:
    app.command(epilog=epilog_of(command))(command)


def main() -> None:
    """Run the command line; user errors are printed in one line and end with status 1."""
    try:
        with first_signals(end_early):
            app()
    except (ValueError, TypeError, OSError, ArithmeticError, nowait.BadWorkerError, nowait.WorkerFailedError) as error:
        typer.echo(f"nowait: {place_of(error)}{printable(sentence_of(error))}{advice_on(error)}", err=True)
        sys.exit(1)
    except Exception as error:
        place = place_of(error)
        if not place:
            raise
        typer.echo(f"nowait: {place}{type(error).__name__}: {printable(str(error))}", err=True)
        sys.exit(1)
