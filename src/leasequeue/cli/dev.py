"""`leasequeue dev`: a server, a worker that reloads and a dashboard, with one log and one Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path  # noqa: TC003 - typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated

import typer

from leasequeue.cli.dashboard import served_dashboard
from leasequeue.cli.formatting import print_error
from leasequeue.cli.options import duration_option
from leasequeue.cli.worker.command import Concurrency, Target, changes_of
from leasequeue.cli.worker.settings import CRASHED, WorkerSettings, set_up_logs
from leasequeue.cli.worker.supervisor import Supervisor
from leasequeue.embedded import EmbeddedServer, RunningServer
from leasequeue.errors import EmbeddedServerError
from leasequeue.errors.log import Log

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How often to look whether the server and the dashboard still run (s).
_LOOK_SECONDS = 0.2

log = Log("leasequeue.dev")


def dev(
    target: Target,
    *,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Use this server; by default one is started.")
    ] = None,
    dir: Annotated[  # noqa: A002 - the option's name, as of `leasequeue serve`
        Path | None,
        typer.Option(file_okay=False, help="Folder for the data; by default the data is only in memory."),
    ] = None,
    concurrency: Concurrency = None,
    grace: Annotated[float, duration_option("How long to wait for runs when it stops or reloads.")] = 0.5,
) -> None:
    """Run a server, a worker that reloads and a dashboard, for development.

    The program gets the server's URL in LEASEQUEUE_URL and REDIS_URL. The dashboard
    needs the extra of this name, and answers this machine alone. Ctrl-C ends all of
    it. Interrupted items return to the front of their queue.
    """
    if url is not None and dir is not None:
        raise typer.BadParameter("the server at --url keeps its data itself", param_hint="--dir")
    set_up_logs("text", "info")
    settings = WorkerSettings(target=target, concurrency=concurrency, grace=grace, log_runs=True)
    try:
        raise typer.Exit(asyncio.run(_dev(settings, url, dir)))
    except EmbeddedServerError as error:
        print_error(str(error))
        raise typer.Exit(CRASHED) from None


async def _dev(settings: WorkerSettings, url: str | None, folder: Path | None) -> int:
    async with RunningServer(url) if url else await EmbeddedServer.start(dir=folder) as server:
        # The worker's process inherits them.
        os.environ["LEASEQUEUE_URL"] = os.environ["REDIS_URL"] = server.url
        with served_dashboard(server.url) as served:
            log.info(
                "%s",
                f"the dashboard: {served.address}"
                if served
                else "for a dashboard in the browser: pip install 'leasequeue[dashboard]'",
            )
            log.info(
                "the program's server is in LEASEQUEUE_URL; for other terminals: export LEASEQUEUE_URL=%s",
                re.sub("//.*@", "//:PASSWORD@", server.url),
            )
            supervisor = Supervisor(settings, changes=changes_of(settings.target))

            def ended() -> Iterator[str]:
                if isinstance(server, EmbeddedServer) and not server.running:
                    yield "server"
                if served and not served.thread.is_alive():
                    yield "dashboard"

            async def stop_with_a_part() -> None:
                while not (names := [*ended()]):  # noqa: ASYNC110 - neither belongs to the event loop
                    await asyncio.sleep(_LOOK_SECONDS)
                log.error("the %s has ended by itself: stopping", " and the ".join(names))
                supervisor.stop()

            watching = asyncio.create_task(stop_with_a_part())
            code = await supervisor.run()
            # Else its end below would look like that of a dashboard which ends by itself.
            return code if watching.cancel() else CRASHED
