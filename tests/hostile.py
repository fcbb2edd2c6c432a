"""A text that attacks whatever shows it, a queue that is full of it, and the check that it does no harm."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from leasequeue import Item
from tests.plans.run_hashes import chain, write_run

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue

#: How a forged line of a log begins.
FORGED = "2026-01-01 00:00:00.000 CRITICAL"
#: A line break, a title of a terminal, an escape of 8 bits, NUL, quotes, HTML, and what turns the direction.
TEXT = f"a\n{FORGED}\r\x1b]0;title\x07\x1b[2J\x9b31m\0\"'<script>alert(1)</script>\u202e\u2028"
#: The same for what refuses NUL.
NAME = TEXT.replace("\0", "")
#: The same with a byte that is no UTF-8, and a mebibyte long.
BYTES = TEXT.encode() + b"\xff" + b"y" * (1 << 20)
#: The same as a text of JSON, with half of a surrogate.
LONG = f"{TEXT}\ud800{'y' * (1 << 20)}"
#: How the beginning of all of them is shown.
SHOWN = rf"a\n{FORGED}\r\x1b]0;title\x07\x1b[2J\x9b31m"
#: The longest line that may be shown: a row of a table has several cells.
LONGEST = 20_000
#: What a terminal acts on, and what cannot be encoded; a line break and a tab are layout.
_ACTS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def harm_of(shown: str, *, longest: int | None = LONGEST) -> list[str]:
    """Return what a text does to the terminal or the log that shows it; empty: nothing."""
    lines = shown.split("\n")
    return [
        *(f"the terminal acts on {found[0]!r}" for found in _ACTS.finditer(shown)),
        *("a line is forged" for line in lines if line.startswith(FORGED)),
        *(f"a line has {len(line):,} characters" for line in lines if longest and len(line) > longest),
    ][:5]


def task_of(name: str = LONG) -> bytes:
    """Return the data of an item that is for a task."""
    return json.dumps({"task": name, "args": {TEXT: LONG}}).encode()


async def raw(redis: Redis, *command: str | bytes | int) -> None:
    """Send a command."""
    await redis.execute_command(*command)  # type: ignore[no-untyped-call]  # theirs has no types


async def write_item(redis: Redis, queue: AsyncWorkQueue, item_id: bytes, *, waits: bool) -> None:
    """Write an item by its keys, as any client can: it waits, or is leased by another one."""
    name = queue.name.encode()
    await raw(redis, "LPUSH", name + (b":queue" if waits else b":processing"), item_id)
    await raw(redis, "SET", name + b":item:" + item_id, task_of() if waits else BYTES)
    await raw(redis, "HSET", name + b":errors", item_id, BYTES)
    await raw(redis, "HSET", name + b":progress", item_id, json.dumps(LONG))
    options = {"group": LONG, "run": LONG, "trace": LONG, "logged": 1000}
    await raw(redis, "HSET", name + b":options", item_id, json.dumps(options))
    record = json.dumps([1_700_000_000_000, TEXT, TEXT, TEXT + "y" * (1 << 18), f"{TEXT}\n{TEXT}"])
    chunk = ("token", "7", "attempt", TEXT, "chunk", f"1 1\n{record}")
    await raw(redis, "XADD", name + b":logged:" + item_id, "7-1", *chunk)
    if not waits:
        await raw(redis, "ZADD", name + b":deadlines", 4_000_000_000_000, item_id)
        await raw(redis, "HSET", name + b":ledger", item_id, "7 7 1 1700000000000")
        await raw(redis, "SET", name + b":lease:" + item_id, BYTES)


async def write_worker(redis: Redis, queue: AsyncWorkQueue, session: str) -> None:
    """Register a worker by its keys. One that said more of itself would not be read at all."""
    text = LONG[: len(TEXT) + 1_000]
    about: dict[str, Any] = dict.fromkeys(("name", "host", "worker"), text)
    about |= {"pid": 1, "queues": [text], "running": [[text, text, 1]]}
    await raw(redis, "HSET", f"{queue.name}:workers", session, json.dumps(about))
    await raw(redis, "ZADD", f"{queue.name}:heartbeats", "inf", session)


async def fill(redis: Redis, queue: AsyncWorkQueue) -> None:
    """Put the text wherever keys of a queue hold one: by the API where that lets it in, else by the keys.

    The queue's name has a hash tag, without which it could share no limits.
    """
    await queue.events.keep(count=1_000)
    await queue.add_item(Item(TEXT.encode(), id=TEXT), group=NAME)
    await queue.add_item(Item(task_of(), id=f"{TEXT} later"), delay=1_000)
    await write_item(redis, queue, b"waits " + BYTES, waits=True)
    await write_item(redis, queue, b"leased " + BYTES, waits=False)
    for item_id in (TEXT.encode(), BYTES):
        key = queue.name.encode() + b":dead"
        await raw(redis, "ZADD", key, 1_700_000_000_000, item_id)
        letter = ("data", task_of(), "error", BYTES, "attempt", "3", "token", "5")
        await raw(redis, "HSET", key + b":" + item_id, *letter)
    await queue.schedules.every(60, TEXT, TEXT.encode())
    await queue.pause(reason=TEXT)
    await queue.pause(reason=TEXT, group=NAME)
    await queue.limits.set(rate="1/s", shared=f"{queue.name} shared")
    await raw(redis, "SET", f"{queue.name}:result:{TEXT}", BYTES, "PX", 600_000)
    await write_worker(redis, queue, TEXT)
    stage = NAME[:40]
    plan = chain(queue.name, stage, f"{stage} 2", flow=stage, user=json.dumps(TEXT).encode())
    facts = {f"s:{stage}": "failed", f"e:{stage}": TEXT, "error": f"{stage}: {TEXT}", "correlation": TEXT}
    await write_run(redis, queue, NAME, plan, facts, state="failed", active=0)
    await queue.admin.fsck()  # it finds the run
