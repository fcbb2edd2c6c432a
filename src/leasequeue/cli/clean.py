"""`leasequeue clean`: clean queues, once, at intervals, or as another program says."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leasequeue.cli.formatting import print_json, print_line, print_rows
from leasequeue.cli.options import duration_option
from leasequeue.cli.server import DEFAULT_URL, AsJson, Code, Url, command, note, open_queue, until_signal
from leasequeue.cli.worker.settings import set_up_logs
from leasequeue.durations import LONGEST_KEPT_SECONDS, Backoff
from leasequeue.errors import ServerError
from leasequeue.errors.log import Log
from leasequeue.queue.shards import opening
from leasequeue.wire.discovery import client_at
from leasequeue.worker.maintenance import Maintenance

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue
    from leasequeue.queue import CleanReport


#: Seconds between two cleans: the minimum and the default.
MIN_INTERVAL, DEFAULT_INTERVAL = 0.1, 60.0

log = Log("leasequeue.clean")


@command
async def clean(
    queues: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUEUE", help="The queues' names; none with --lines."),
    ] = None,
    *,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also find items that are in no list; with --watch, when it starts."),
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Clean at intervals, until SIGTERM or Ctrl-C.")
    ] = False,
    every: Annotated[
        float | None, duration_option("With --watch: the interval between cleans; 60s by default.")
    ] = None,
    keep_dead: Annotated[
        float | None,
        duration_option(
            "With --watch: drop dead letters older than this; by default none are dropped.",
            longest=LONGEST_KEPT_SECONDS,
        ),
    ] = None,
    lines: Annotated[
        bool,
        typer.Option("--lines", help="Read light:QUEUE and deep:QUEUE from standard input, line by line."),
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> Code:
    """Reclaim expired leases and repair what dead processes and other clients left behind.

    With --watch the command cleans at intervals, as each worker does: it also adds
    the items of schedules that are due, and sometimes does a deep clean. Any number of
    cleaners may run at once. The command keeps running while the server is unavailable, logs
    to standard error, and ends with exit code 0 on SIGTERM.

    With --lines another program says what to clean: the command answers each line light:QUEUE or
    deep:QUEUE with "light cleaned QUEUE", and ends with its standard input.
    """
    if lines:
        if queues or deep or watch:
            raise typer.BadParameter("takes no queues, --deep or --watch", param_hint="--lines")
        return await clean_lines(url, as_json=as_json)
    if not queues:
        raise typer.BadParameter("Missing argument 'QUEUE': name one queue or more")
    for option, value in (("--every", every), ("--keep-dead", keep_dead)):
        if value is not None and not watch:
            raise typer.BadParameter("needs --watch", param_hint=option)
    if every is not None and every < MIN_INTERVAL:
        raise typer.BadParameter(f"must be at least {MIN_INTERVAL:g} s", param_hint="--every")
    if watch:
        maintenance = Maintenance(
            clean_every=DEFAULT_INTERVAL if every is None else every, keep_dead=keep_dead
        )
        return await _watch(url, queues, maintenance, deep=deep, as_json=as_json)
    reports: dict[str, dict[str, Any]] = {}
    for name in queues:
        async with open_queue(url, name) as queue:
            report = await (queue.deep_clean() if deep else queue.light_clean())
        reports[name] = {"queue": name, **counts_of(report)}
    print_rows([*reports.values()], as_json=as_json)
    return Code.DONE


async def _watch(url: str, names: list[str], maintenance: Maintenance, *, deep: bool, as_json: bool) -> Code:
    set_up_logs("json" if as_json else "text", "info")
    if await until_signal(_run_maintenance(url, names, maintenance, deep=deep)) is None:
        log.info("stopped")
    return Code.DONE


async def _run_maintenance(url: str, names: list[str], maintenance: Maintenance, *, deep: bool) -> Code:
    async with AsyncExitStack() as stack:
        names = [*dict.fromkeys(names)]
        log.info("watching %s", ", ".join(names))
        queues = [await stack.enter_async_context(await _opened(url, name)) for name in names]
        for queue in queues:
            await _clean_first(queue, maintenance, deep=deep)
        await maintenance.run([shard for queue in queues for shard in queue.shards])
    return Code.DONE


async def _opened(url: str, name: str) -> AsyncWorkQueue:
    """Open a queue, once the server says whether it has shards."""
    backoff = Backoff()
    while True:
        try:
            return await opening.open_queue(name, await client_at(url))
        except ServerError as error:
            log.warning("%s could not be cleaned: %s", name, error)
        await asyncio.sleep(backoff.next())


async def _clean_first(queue: AsyncWorkQueue, maintenance: Maintenance, *, deep: bool) -> None:
    try:
        await maintenance.clean_once(queue, deep=deep)
    except ServerError as error:
        log.warning("%s could not be cleaned: %s", queue.name, error)


async def clean_lines(url: str, *, as_json: bool) -> Code:
    """Read `light:<queue>` and `deep:<queue>`; answer each with `light cleaned <queue>` when it is done."""
    code = Code.DONE
    while line := await asyncio.to_thread(sys.stdin.readline):
        kind, _, name = line.rstrip("\r\n").partition(":")
        if kind not in ("light", "deep") or not name:
            note(f"cannot read {line.strip()!r}: expected light:QUEUE or deep:QUEUE")
            code = Code.MISSED
            continue
        async with open_queue(url, name, create=True) as queue:
            report = await (queue.deep_clean() if kind == "deep" else queue.light_clean())
        if as_json:
            print_json({"queue": name, "cleaned": kind, **counts_of(report)})
        else:
            print_line(f"{kind} cleaned {name}")
        sys.stdout.flush()
    return code


def counts_of(report: CleanReport) -> dict[str, int]:
    """Return the counts of a report."""
    counts = {field: value for field, value in asdict(report).items() if field != "findings"}
    return {**counts, "repaired": report.repaired}
