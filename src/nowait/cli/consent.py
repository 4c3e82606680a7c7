"""Asks the user before a command runs code or joins a cluster that only the run's folder names.

A folder is not trusted: its ``config.json`` may name a function to call, or a Ray cluster to join, and both can do
anything that the user can. Names are printed with ``repr``, so that they cannot imitate the question.
"""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from nowait.cli.problems import code_of, source_file

REFUSED = 2
"""The exit status if the user did not confirm."""


def confirm_problem(folder: Path, problem: str) -> None:
    """Return if the problem that a folder names is data, or code that the user confirms; else end the command."""
    code = code_of(problem)
    if code is None:
        typer.echo(f"nowait: reading the data file {problem!r}, which config.json in {str(folder)!r} names", err=True)
        return
    place, function = code
    file = source_file(place)
    where = "a module whose file is not known" if file is None else f"the file {file!r}"
    _confirm(
        f"config.json in {str(folder)!r} names code to run: {function}() of {place!r}, which is {where}",
        f"--problem {problem!r}",
    )


def confirm_method(folder: Path, method: str) -> None:
    """Return if the user confirms the file with the method that a folder names; else end the command."""
    _confirm(
        f"config.json in {str(folder)!r} names code to run: the method {method!r}",
        f"--method {method!r}",
    )


def confirm_cluster(folder: Path, address: str) -> None:
    """Return if the user confirms the Ray cluster that a folder names; else end the command."""
    _confirm(
        f"config.json in {str(folder)!r} names a Ray cluster to join, which can run code here: {address!r}",
        f"--engine ray --address {address!r}",
    )


def on_terminal() -> bool:
    """Return True if the user can be asked."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def _confirm(what: str, option: str) -> None:
    if not on_terminal():
        typer.echo(f"nowait: {what}; if you trust it, give {option}", err=True)
        raise typer.Exit(REFUSED)
    typer.echo(f"{what}.", err=True)
    if not typer.confirm("Do you trust it?", default=False, err=True):
        typer.echo("nowait: nothing was run", err=True)
        raise typer.Exit(REFUSED)
