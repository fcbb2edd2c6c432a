"""`leasequeue workers`: list the workers of queues, fail them, and send them orders."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leasequeue import Fleet
from leasequeue.cli.formatting import print_json, print_line, print_table
from leasequeue.cli.options import format_time
from leasequeue.cli.server import (
    DEFAULT_URL,
    AnyQueues,
    AsJson,
    Code,
    Url,
    all_queues,
    command,
    fail,
    group_of,
    note,
    open_queue,
    queue_command,
)
from leasequeue.errors import WorkerUnknown
from leasequeue.queue.formats import mixture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue import AsyncWorkQueue
    from leasequeue.alive import WorkerView

app = group_of(help="List the workers of queues; fail, quiet or stop one.")

WorkerName = Annotated[
    str,
    typer.Argument(metavar="WORKER", help="The worker's name, or its id."),
]


@app.command("ls")
@command
async def list_workers(
    queues: AnyQueues = None,
    *,
    dead: Annotated[bool, typer.Option("--dead", help="Only those that are dead.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> Code:
    """List the workers of queues. With --json each worker is a line, with what it runs."""
    names = dict.fromkeys(queues or await all_queues(url))
    workers: Sequence[WorkerView] = ()
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(open_queue(url, name, create=not queues or None))
            for name in names
        ]
        if opened:
            fleet = Fleet(*opened)
            workers = await (fleet.dead() if dead else fleet.workers())
    if as_json:
        for one in workers:
            print_json(worker_document(one))
    elif workers:
        titles = ("worker", "state", "queues", "running", "runs", "failures", "since")
        print_table(titles, [_row(one) for one in workers])
        if text := mixture(one.versions for one in workers):
            note(text)
        for name in sorted({name for one in workers if one.failures for name in one.queues}):
            note(f"what has failed for good is in the dead letters: `leasequeue dead ls {name}`")
    else:
        note("no dead worker" if dead else "no worker is registered")
    return Code.DONE


def _row(one: WorkerView) -> list[str | int | None]:
    since = None if one.started is None else format_time(one.started)
    queues = ", ".join(one.queues)
    return [one.name, state_of(one), queues, len(one.running), one.runs, one.failures, since]


def state_of(one: WorkerView) -> str:
    """Return the state of a worker in one word."""
    if one.dead:
        return "dead"
    if one.stopping:
        return "stopping"
    return "quiet" if one.quiet else "working"


def worker_document(one: WorkerView) -> dict[str, Any]:
    """Return a worker as a JSON document, with what it runs."""
    document = {**asdict(one), "state": state_of(one), "queues": list(one.queues)}
    for name in ("started", "alive_until"):
        document[name] = None if document[name] is None else format_time(document[name])
    now = time.time()
    document["running"] = [
        {"queue": run.queue, "id": run.item_id, "handler": run.handler, "seconds": round(now - run.since, 1)}
        for run in one.running
    ]
    return document


@app.command("fail")
@queue_command
async def fail_worker(queue: AsyncWorkQueue, worker: WorkerName, *, as_json: AsJson = False) -> Code:
    """Return the items of a worker to the front of the queue; reject what it still sends.

    If it is alive, it stops these runs, and works on.
    """
    return await _order(queue, worker, "fail", as_json=as_json)


@app.command()
@queue_command
async def quiet(queue: AsyncWorkQueue, worker: WorkerName, *, as_json: AsJson = False) -> Code:
    """Have a worker lease nothing more, of any queue. Its runs continue."""
    return await _order(queue, worker, "quiet", as_json=as_json)


@app.command()
@queue_command
async def resume(queue: AsyncWorkQueue, worker: WorkerName, *, as_json: AsJson = False) -> Code:
    """Have a worker that is quiet lease again."""
    return await _order(queue, worker, "resume", as_json=as_json)


@app.command()
@queue_command
async def stop(queue: AsyncWorkQueue, worker: WorkerName, *, as_json: AsJson = False) -> Code:
    """Have a worker stop, as after SIGTERM. What supervises its process may start another."""
    return await _order(queue, worker, "stop", as_json=as_json)


async def _order(queue: AsyncWorkQueue, worker: str, what: str, *, as_json: bool) -> Code:
    """Call a method of the fleet for a worker, and print how many items were returned, if any were to be."""
    try:
        returned = await getattr(Fleet(queue), what)(worker)
    except WorkerUnknown as error:
        known = f"`leasequeue workers ls {queue.name}` lists those that are"
        return fail(f"no worker {error.worker!r} is registered on {queue.name!r}: {known}", Code.MISSED)
    if as_json:
        done = {"ordered": what} if returned is None else {"returned": returned}
        print_json({"queue": queue.name, "worker": worker, **done})
    elif returned is not None:
        print_line(f"{returned:,} returned")
    return Code.DONE
