"""The command that lists methods."""

from __future__ import annotations

from typing import Annotated

import typer

from nowait.cli.completion import listed_names
from nowait.cli.options import Json


def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A method, stepsize rule, update or schedule.",
            show_default="lists all of them",
            autocompletion=listed_names,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the methods, stepsize rules, updates and schedules with their parameters, or explain one of them.

    Example: nowait methods ringmaster
    """
    from nowait.cli.exits import refused_as_options
    from nowait.cli.listings import listed, print_listing

    with refused_as_options():
        chosen = None if name is None else listed(name)
    print_listing(chosen, as_json=as_json)
