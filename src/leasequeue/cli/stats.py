"""`leasequeue stats`: how long items wait, and who works, as a table or for Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leasequeue.cli.formatting import print_rows
from leasequeue.cli.ls import All, is_idle
from leasequeue.cli.options import duration_option, format_time, number_option
from leasequeue.cli.probes import AddressUnusable, ProbeServer, one_at_a_time, probe
from leasequeue.cli.server import DEFAULT_URL, AnyQueues, AsJson, Code, Url, command, fail, note, visit
from leasequeue.errors import ExtraMissing

if TYPE_CHECKING:
    from leasequeue.queue import AsyncWorkQueue, QueueStats

#: The shortest interval between two samples (s).
SHORTEST = 0.1


@command
async def stats(
    queues: AnyQueues = None,
    *,
    port: Annotated[
        int | None,
        number_option("Answer /metrics, for Prometheus, and /live at this port.", minimum=1, maximum=65535),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where --port listens; 0.0.0.0: at all addresses.")
    ] = "127.0.0.1",
    every: Annotated[float, duration_option("With --port: the time between two samples.")] = 5.0,
    everything: All = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> Code:
    """Show how long items wait, and what workers do; serve metrics.

    The age of the oldest item is known from earlier calls: call it every few
    seconds, or use --port.
    """
    if every < SHORTEST:
        raise typer.BadParameter(f"must be at least {SHORTEST:g} s", param_hint="--every")
    if port is not None:
        return await _serve(url, queues or [], port=port, host=host, every=every)
    found: list[QueueStats] = []

    async def look(queue: AsyncWorkQueue) -> None:
        one = await queue.stats()
        if queues or everything or not await is_idle(queue, one.counts):
            found.append(one)

    await visit(url, queues, look)
    print_rows([*map(stats_document if as_json else _row, found)], as_json=as_json)
    return Code.DONE


def _row(one: QueueStats) -> dict[str, Any]:
    paused = None if one.paused is None else one.paused.reason or "yes"
    return {
        "queue": one.queue,
        **one.counts._asdict(),
        "oldest": _age(one),
        "waited": f"{one.wait.mean:.1f} s" if one.wait.samples else None,
        "workers": one.workers_alive,
        "running": sum(worker.running for worker in one.workers if not worker.dead),
        "paused": paused,
    }


def _age(one: QueueStats) -> str | None:
    """Return the bounds of the age of the oldest waiting item."""
    if one.oldest_age_error is None:
        return f"over {one.oldest_age:.1f} s"
    if not one.oldest_age and not one.oldest_age_error:
        return None
    return f"{one.oldest_age:.1f} to {one.oldest_age + one.oldest_age_error:.1f} s"


def stats_document(one: QueueStats) -> dict[str, Any]:
    """Return the stats of a queue as a JSON document."""
    paused = one.paused and {
        "reason": one.paused.reason,
        "since": format_time(one.paused.since),
        "until": format_time(one.paused.until),
    }
    facts = {key: value for key, value in asdict(one).items() if key not in {"queue", "counts"}}
    alive = {"workers_alive": one.workers_alive}
    return {"queue": one.queue, **one.counts._asdict(), **facts, "paused": paused, **alive}


async def _serve(url: str, queues: list[str], *, port: int, host: str, every: float) -> Code:
    try:
        from leasequeue.cli.exporter import Exporter
    except ImportError as error:
        raise ExtraMissing("metrics at a port", "prometheus") from error
    from leasequeue.cli.worker.settings import set_up_logs

    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    exporter = Exporter(url, queues, every=every)
    routes = {"/metrics": one_at_a_time(exporter.answer), "/live": probe(exporter.problems)}
    server = ProbeServer(host, port, routes, option="--port")
    try:
        server.start()
    except AddressUnusable as error:
        await exporter.close()
        return fail(str(error), Code.USAGE)
    set_up_logs("text", "info")
    note(f"serving {server.url}/metrics")
    running, stopped = asyncio.create_task(exporter.run()), asyncio.create_task(stopping.wait())
    await asyncio.wait([running, stopped], return_when=asyncio.FIRST_COMPLETED)
    server.close()
    for task in (running, stopped):
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await exporter.close()
    return Code.DONE
