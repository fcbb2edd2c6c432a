"""The commands, put together: a file for each, a line for each."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from leasehold.cli.demo.command import demo
from leasehold.cli.serve import serve

app = typer.Typer(name="leasehold", no_args_is_help=True, add_completion=False, rich_markup_mode="rich")


def _show_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"leasehold {importlib.metadata.version('leasehold')}")
        raise typer.Exit


@app.callback()
def _leasehold(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Leasehold: an atomic work queue for asyncio on Redis or Valkey."""


app.command()(demo)
app.command()(serve)
