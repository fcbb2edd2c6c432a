"""`leasehold clean`: put queues in order, once or for as long as it runs."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from leasehold.cli.formatting import print_json, print_table
from leasehold.cli.server import DEFAULT_URL, AsJson, Code, Url, carry_out, opened
from leasehold.cli.times import duration
from leasehold.cli.worker.logs import set_up_logs
from leasehold.errors import ServerError
from leasehold.log import Log
from leasehold.worker.maintenance import Maintenance

if TYPE_CHECKING:
    from leasehold import AsyncWorkQueue

#: Seconds between two cleans: at least, and if nothing is said.
SHORTEST_WAIT, EVERY = 0.1, 60.0

log = Log("leasehold.clean")


def clean(
    queues: Annotated[list[str], typer.Argument(metavar="QUEUE", help="The queues' names.")],
    *,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also look for items that are in no list; with --watch, at the start."),
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until SIGTERM or Ctrl-C.")] = False,
    every: Annotated[
        float | None,
        typer.Option(
            parser=duration, metavar="DURATION", help="With --watch: clean about so often; 60s by default."
        ),
    ] = None,
    keep_dead: Annotated[
        float | None,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            help="With --watch: drop dead letters that are older; by default none are dropped.",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Bring back and drop what dead processes and other clients left behind.

    With --watch it is a process that does so by itself, as each worker does:
    it also adds what schedules say is due, and makes a deep clean now and then.
    Any number may run. It goes on while the server is away, says on standard
    error what it found, and ends with exit code 0 on SIGTERM.
    """
    for option, value in (("--every", every), ("--keep-dead", keep_dead)):
        if value is not None and not watch:
            raise typer.BadParameter("it goes with --watch", param_hint=option)
    if every is not None and every < SHORTEST_WAIT:
        raise typer.BadParameter(f"at least {SHORTEST_WAIT:g} s", param_hint="--every")
    if watch:
        maintenance = Maintenance(clean_every=EVERY if every is None else every, keep_dead=keep_dead)
        carry_out(_watch(url, queues, maintenance, deep=deep, as_json=as_json))
    carry_out(_clean(url, queues, deep=deep, as_json=as_json))


async def _clean(url: str, names: list[str], *, deep: bool, as_json: bool) -> Code:
    reports = {}
    for name in names:
        async with opened(url, name) as queue:
            reports[name] = asdict(await (queue.deep_clean() if deep else queue.light_clean()))
    if as_json:
        for name, report in reports.items():
            print_json({"queue": name, **report})
    else:
        titles = ("queue", "looked at", "returned", "dropped", "adopted", "restored")
        print_table(titles, [(name, *report.values()) for name, report in reports.items()])
    return Code.DONE


async def _watch(url: str, names: list[str], maintenance: Maintenance, *, deep: bool, as_json: bool) -> Code:
    set_up_logs("json" if as_json else "text", "info")
    watching = asyncio.create_task(_keep(url, names, maintenance, deep=deep))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, watching.cancel)
    try:
        await watching
    except asyncio.CancelledError:
        log.info("stopped")
    return Code.DONE


async def _keep(url: str, names: list[str], maintenance: Maintenance, *, deep: bool) -> None:
    async with AsyncExitStack() as stack:
        queues = {name: await stack.enter_async_context(opened(url, name)) for name in names}
        log.info("watching %s", ", ".join(queues))
        for queue in queues.values():
            await _clean_first(queue, maintenance, deep=deep)
        await maintenance.run(queues)


async def _clean_first(queue: AsyncWorkQueue, maintenance: Maintenance, *, deep: bool) -> None:
    try:
        await maintenance.clean_once(queue, deep=deep)
    except ServerError as error:
        log.warning("%s could not be cleaned: %s", queue.name, error)
