"""What shells complete from the server: names of queues, tasks, schedules, workers, flows and runs.

Completion is a help only: it takes a second at most, and what fails completes nothing and prints nothing.
What a shell would read as more than a word is left out: any client may choose such a name, and zsh evaluates
what it gets.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import sys
import warnings
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import typer  # noqa: TC002 - typer reads the annotations when it runs

from leasequeue.errors import LeasequeueError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from leasequeue import AsyncWorkQueue
    from leasequeue.queue.runs.views import FlowRunView

#: How long a completion may take (s), and how many keys it scans to find queues.
TIMEOUT = 1.0
MAX_KEYS = 50_000
#: How many items are read of each state to find the names of tasks, and how many runs to find flows.
MAX_ITEMS = 100
#: What is special to a shell, within quotes or without.
SPECIAL = frozenset(" \"$&'();<>\\`|!*?#")


def complete_queue(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of queues that begin with a text."""
    from leasequeue.scripting.discovery import find_queues

    async def find() -> list[str]:
        return (
            await find_queues(ctx.params["url"], prefix=incomplete, reply_timeout=TIMEOUT, max_keys=MAX_KEYS)
        )[0]

    return _completed(find(), incomplete)


def complete_task(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of tasks that begin with a text: of the queue's items, schedules and runs."""
    from leasequeue.fleet import Fleet
    from leasequeue.tasks.wire import task_of

    async def find(queue: AsyncWorkQueue) -> set[str]:
        waiting = await queue.inspect("waiting", count=MAX_ITEMS)
        scheduled = await queue.inspect("scheduled", count=MAX_ITEMS)
        data = [one.data for one in (*waiting, *scheduled)]
        data += [one.data for one in await queue.schedules.list()]
        runs = [run.handler for worker in await Fleet(queue).workers() for run in worker.running]
        return {*filter(None, (task_of(one or b"") for one in data)), *runs}

    return _completed(_ask(ctx, find), incomplete)


def complete_schedule(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of schedules that begin with a text."""

    async def find(queue: AsyncWorkQueue) -> list[str]:
        return [view.name for view in await queue.schedules.list()]

    return _completed(_ask(ctx, find), incomplete)


def complete_worker(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of workers that begin with a text."""
    from leasequeue.fleet import Fleet

    async def find(queue: AsyncWorkQueue) -> list[str]:
        return [worker.name for worker in await Fleet(queue).workers()]

    return _completed(_ask(ctx, find), incomplete)


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of flow runs that begin with a text, of the newest runs."""

    async def find(queue: AsyncWorkQueue) -> list[str]:
        return [view.id for view in await _newest_runs(queue)]

    return _completed(_ask(ctx, find), incomplete)


def complete_flow(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of flows that begin with a text: those of the newest runs."""

    async def find(queue: AsyncWorkQueue) -> set[str]:
        return {view.flow for view in await _newest_runs(queue) if view.flow}

    return _completed(_ask(ctx, find), incomplete)


async def _newest_runs(queue: AsyncWorkQueue) -> list[FlowRunView]:
    return [view for view in await queue.runs.list(count=MAX_ITEMS, fields=()) if view]


async def _ask(
    ctx: typer.Context, find: Callable[[AsyncWorkQueue], Coroutine[Any, Any, Iterable[str]]]
) -> Iterable[str]:
    from leasequeue.queue import AsyncWorkQueue

    # After an option that lacks its value, which is what is completed, the arguments are not parsed.
    name = ctx.params["name"] or next(iter(ctx.args), "")
    async with AsyncWorkQueue.from_url(ctx.params["url"], name, reply_timeout=TIMEOUT) as queue:
        return await find(queue)


def _completed(find: Coroutine[Any, Any, Iterable[str]], incomplete: str) -> list[str]:
    async def limited() -> Iterable[str]:
        async with asyncio.timeout(TIMEOUT):
            return await find

    disabled = logging.root.manager.disable
    logging.disable()  # a line would stand between the prompt and what is typed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            names = asyncio.run(limited())
    except (LeasequeueError, OSError, TimeoutError):
        return []
    finally:
        logging.disable(disabled)
    words = (name for name in names if name.isprintable() and not SPECIAL & {*name})
    return sorted({word for word in words if word.startswith(incomplete)})


def complete_in_bash(run: Callable[[], None]) -> None:
    """Run a completion for bash, which breaks words at colons: `app:emails` are three words to it.

    Args:
        run: Reads the words from the environment, and prints what completes the last one.
    """
    words = os.environ["COMP_WORDS"].split("\n")
    words = words[: int(os.environ["COMP_CWORD"]) + 1]
    joined = words[:1]
    for before, word in pairwise(words):
        if ":" in (before, word):
            joined[-1] += word
        else:
            joined.append(word)
    os.environ |= {"COMP_WORDS": "\n".join(joined), "COMP_CWORD": str(len(joined) - 1)}
    # What bash takes for words before the last one.
    whole = joined[-1]
    before = "" if whole == words[-1] else whole[: whole.rindex(":") + 1]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            run()
    finally:
        for line in printed.getvalue().splitlines():
            sys.stdout.write(f"{line.removeprefix(before)}\n")
