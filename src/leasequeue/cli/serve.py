"""`leasequeue serve`: run a server in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path  # noqa: TC003 - typer reads the annotations when it runs
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from leasequeue.cli.options import number_option
from leasequeue.embedded import EmbeddedServer
from leasequeue.errors import EmbeddedServerError

_MESSAGE = """\
[bold]{version}[/bold] is running ({origin})

  url     [bold cyan]{url}[/bold cyan]
  socket  {socket}
  data    {data}

Connect to it:

  export LEASEQUEUE_URL={url}

  from leasequeue import AsyncWorkQueue
  queue = AsyncWorkQueue.from_url("{url}", "emails")

Press Ctrl-C to stop."""


def serve(
    *,
    port: Annotated[
        int | None,
        number_option("TCP port on 127.0.0.1; by default a free one.", minimum=1, maximum=65535),
    ] = None,
    dir: Annotated[  # noqa: A002 - the option's name
        Path | None,
        typer.Option(file_okay=False, help="Folder for the data; by default the data is only in memory."),
    ] = None,
) -> None:
    """Run a server until Ctrl-C or SIGTERM."""
    try:
        asyncio.run(_serve(Console(soft_wrap=True, highlight=False), port=port, dir=dir))
    except EmbeddedServerError as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]{escape(str(error))}[/red]")
        raise typer.Exit(1) from None


async def _serve(console: Console, *, port: int | None, dir: Path | None) -> None:  # noqa: A002 - as above
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with await EmbeddedServer.start(dir=dir, port=port) as server:
        facts = {
            "version": server.program.version,
            "origin": server.program.origin,
            "url": server.url,
            "socket": server.socket_path,
            "data": f"in {server.dir}" if server.dir else "in memory only",
        }
        console.print(_MESSAGE.format_map({name: escape(fact) for name, fact in facts.items()}))
        while server.running and not stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), 0.25)
        if not stopping.is_set():
            raise EmbeddedServerError("the server ended unexpectedly")
    console.print("Stopped.")
