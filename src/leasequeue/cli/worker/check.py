"""`leasequeue worker --check`: find out whether a worker can run, without running it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape

from leasequeue.cli.formatting import print_rows
from leasequeue.cli.server import Code, explain, fail
from leasequeue.cli.worker.process import prepare
from leasequeue.cli.worker.settings import CRASHED, MISCONFIGURED, STOPPED
from leasequeue.cli.worker.target import Unusable, with_traceback
from leasequeue.errors import ConnectionLost, InvalidArgument, LeasequeueError, ServerError
from leasequeue.queue.internals import expect_rights

if TYPE_CHECKING:
    from leasequeue.cli.worker.settings import Settings
    from leasequeue.queue.views import Counts
    from leasequeue.worker import Handler, Worker

#: Seconds to wait for the server.
PATIENCE_SECONDS = 5.0


def check(settings: Settings) -> int:
    """Import the worker, ask the servers, and print its handlers and the counts of their queues.

    Nothing is leased. The lifespan is run only on demand: it may change something elsewhere.

    Returns:
        0 if the worker can run; 2 if it is not configured correctly; 1 if the lifespan fails; 5 if the server
        cannot be reached or refuses.
    """
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        worker = prepare(settings)
        counts = asyncio.run(_check(worker, lifespan=settings.lifespan))
    except (Unusable, InvalidArgument) as error:
        errors.print(escape(str(error)))
        return MISCONFIGURED
    except ServerError as error:
        return fail(explain(error), Code.SERVER)
    except LeasequeueError as error:
        errors.print(escape(str(error)))
        return CRASHED
    except Exception as error:  # noqa: BLE001 - whatever the user's lifespan raises
        errors.print(escape(with_traceback("the lifespan fails", error)))
        return CRASHED
    print_rows([*map(_row, worker.handlers, counts)], as_json=False)
    typer.echo(f"The worker can run: {worker.concurrency} runs at once, grace {worker.grace:g} s.")
    if worker.has_lifespan and not settings.lifespan:
        typer.echo("Its lifespan was not run: --check --lifespan does.")
    return STOPPED


async def _check(worker: Worker, *, lifespan: bool) -> list[Counts]:
    async with AsyncExitStack() as stack:
        for handler in worker.handlers:
            stack.push_async_callback(handler.queue.close)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                for handler in worker.handlers:
                    await expect_rights(handler.queue, handler.consumer.adds_to)
                counts = [await handler.queue.counts() for handler in worker.handlers]
        except TimeoutError:
            raise ConnectionLost("the server does not answer", maybe_applied=False) from None
        if lifespan or not worker.has_lifespan:
            await worker.check()
        return counts


def _row(handler: Handler, counts: Counts) -> dict[str, object]:
    return {
        "queue": handler.queue.name,
        "handler": handler.name,
        "runs in": handler.run_in,
        "batch": handler.batch,
        "lease": f"{handler.lease_time:g} s",
        "limit": None if handler.timeout is None else f"{handler.timeout:g} s",
        "attempts": handler.retry.attempts,
        **counts._asdict(),
    }
