"""What a command imports: it starts quickly. Times would depend on the machine; these do not."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING

from leasequeue import Item

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue

#: Runs a command, and prints which modules it has imported.
PROGRAM = """
import gc, json, sys
from leasequeue.cli import main
try:
    main()
finally:
    print(json.dumps([gc.isenabled(), *sys.modules]), file=sys.stderr)
"""
#: What takes long to import, and has no part in the command.
NEEDLESS = {"anyio", "leasequeue.alive", "leasequeue.tasks.queue", "leasequeue.worker", "lua", "pydantic"}


async def run(redis_url: str, *arguments: str) -> set[str]:
    """Run a command; return what it has imported."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, *arguments),
        env={**os.environ, "LEASEQUEUE_URL": redis_url},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    collects, *imported = json.loads(err)
    assert collects, "the garbage collector is off while a command is imported, and no longer"
    return {*imported}


async def test_the_version_is_printed_without_the_redis_client_and_without_rich() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, "--version"), stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    _, *imported = json.loads(err)
    assert not {"asyncio", "msgspec", "pydantic", "redis", "rich.console"} & {*imported}
    ours = {name for name in imported if name.startswith("leasequeue.")}
    assert ours == {"leasequeue.cli", "leasequeue.cli.app", "leasequeue.lazy"}


async def test_a_table_is_printed_without_workers_and_tasks(queue: AsyncWorkQueue, redis_url: str) -> None:
    imported = await run(redis_url, "ls", queue.name)
    assert not NEEDLESS & imported


async def test_items_are_added_and_shown_without_workers_tasks_and_tables(
    queue: AsyncWorkQueue, redis_url: str
) -> None:
    await queue.add_item(Item(b'{"task": "send", "args": {}}', id="x"))
    for arguments in (("add", queue.name, "hello"), ("show", queue.name, "--json")):
        imported = await run(redis_url, *arguments)
        assert not {*NEEDLESS, "rich.console"} & imported
