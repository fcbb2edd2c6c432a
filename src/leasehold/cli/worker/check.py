"""`leasehold worker --check`: whether a worker could run here, without running it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape

from leasehold.cli.formatting import print_table
from leasehold.cli.worker.process import prepared
from leasehold.cli.worker.settings import CRASHED, MISCONFIGURED, STOPPED
from leasehold.cli.worker.target import Unusable, told
from leasehold.errors import ConnectionLost, InvalidArgument, LeaseholdError

if TYPE_CHECKING:
    from leasehold.cli.worker.settings import Settings
    from leasehold.queue.views import Counts
    from leasehold.worker import Handler, Worker

#: What a handler is, in a line.
TITLES = ("queue", "handler", "runs in", "batch", "lease", "limit", "attempts")
#: How long the server has to answer (s).
PATIENCE_SECONDS = 5.0


def check(settings: Settings) -> int:
    """Import the worker, begin and end its lifespan, ask the server, and print what there is.

    Nothing is leased.

    Returns:
        0 if the worker could run; 2 if it is not set up rightly; 1 if the lifespan fails, or the server does
        not answer.
    """
    complaints = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        worker = prepared(settings)
        counts = asyncio.run(_look(worker))
    except (Unusable, InvalidArgument) as error:
        complaints.print(escape(str(error)))
        return MISCONFIGURED
    except LeaseholdError as error:
        complaints.print(escape(str(error)))
        return CRASHED
    except Exception as error:  # noqa: BLE001 - whatever the user's lifespan raises
        complaints.print(escape(told("the lifespan fails", error)))
        return CRASHED
    rows = [[*_cells(handler), *count] for handler, count in zip(worker.handlers, counts, strict=True)]
    print_table([*TITLES, "waiting", "leased", "scheduled", "dead"], rows)
    typer.echo(f"{worker.concurrency} runs at once, {worker.grace:g} s of grace. All is well.")
    return STOPPED


async def _look(worker: Worker) -> list[Counts]:
    async with AsyncExitStack() as stack:
        for handler in worker.handlers:
            stack.push_async_callback(handler.queue.close)
        await worker.check()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return [await handler.queue.counts() for handler in worker.handlers]
        except TimeoutError:
            raise ConnectionLost("the server does not answer", maybe_applied=False) from None


def _cells(handler: Handler) -> list[object]:
    return [
        handler.queue.name,
        handler.name,
        handler.run_in,
        handler.batch,
        f"{handler.lease_time:g} s",
        None if handler.timeout is None else f"{handler.timeout:g} s",
        handler.retry.attempts,
    ]
