"""`leasequeue serve`: run a server in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from pathlib import Path  # noqa: TC003 - typer reads the annotations when it runs
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from leasequeue.cli.options import number_option
from leasequeue.embedded import EmbeddedServer
from leasequeue.errors import EmbeddedServerError

#: The variable with the password: the arguments of a process can be read by other users.
_VARIABLE = "LEASEQUEUE_SERVE_PASSWORD"

_MESSAGE = """\
[bold]{version}[/bold] is running ({origin})

  url     [bold cyan]{url}[/bold cyan]
  socket  {socket}, for this user alone
  data    {data}
  open    {open}

Connect to it:

  export LEASEQUEUE_URL={url}

  from leasequeue import AsyncWorkQueue
  queue = AsyncWorkQueue.from_url("{url}", "emails")

Press Ctrl-C to stop."""


def serve(
    *,
    port: Annotated[
        int | None,
        number_option("TCP port; by default a free one.", minimum=1, maximum=65535),
    ] = None,
    dir: Annotated[  # noqa: A002 - the option's name
        Path | None,
        typer.Option(file_okay=False, help="Folder for the data; by default the data is only in memory."),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    password: Annotated[
        bool,
        typer.Option(
            "--password",
            help=f"Ask for a random password, which is in the URL that is printed; {_VARIABLE} sets one. "
            "Without, every user of this machine can read and write all data.",
        ),
    ] = False,
) -> None:
    """Run a server until Ctrl-C or SIGTERM."""
    try:
        asyncio.run(_serve(port, dir, host, os.environ.get(_VARIABLE) or (None if password else "")))
    except EmbeddedServerError as error:
        problem = str(error)
        if port is not None and "Address already in use" in problem:  # else it shows the server's log
            problem = (
                f"port {port} of {host} is taken by another program: give another one with --port, "
                "or leave it out for a free one"
            )
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]{escape(problem)}[/red]")
        raise typer.Exit(1) from None


async def _serve(port: int | None, dir: Path | None, host: str, password: str | None) -> None:  # noqa: A002 - as above
    console = Console(soft_wrap=True, highlight=False)
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with await EmbeddedServer.start(dir=dir, port=port or 0, host=host, password=password) as server:
        facts = {
            "version": server.program.version,
            "origin": server.program.origin,
            # One that the user has chosen is not shown: this may be kept as a log.
            "url": re.sub("//:.*@", "//:PASSWORD@", server.url) if password else server.url,
            "socket": server.socket_path,
            "data": f"in {server.dir}" if server.dir else "in memory only",
            "open": "every user of this machine can read and write all data: see --password"
            if password == ""
            else f"whoever reaches {host} and has the password; it is not encrypted",
        }
        console.print(_MESSAGE.format_map({name: escape(fact) for name, fact in facts.items()}))
        while server.running and not stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), 0.25)
        if not stopping.is_set():
            raise EmbeddedServerError("the server ended unexpectedly")
    console.print("Stopped.")
