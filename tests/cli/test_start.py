"""What a command imports and composes: it starts quickly. Times would depend on the machine; these do not."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING

from leasequeue import Item

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue

#: Runs a command, and prints which modules it has imported and which scripts it has composed.
PROGRAM = """
import gc, json, sys
from leasequeue.cli import main
try:
    main()
finally:
    catalogue = sys.modules.get("leasequeue.scripting.catalogue")
    composed = catalogue.find_script.cache_info().currsize if catalogue else 0
    print(json.dumps([gc.isenabled(), composed, *sys.modules]), file=sys.stderr)
"""
#: What takes long to import, and has no part in the command.
NEEDLESS = {"anyio", "pydantic", "leasequeue.fleet", "leasequeue.tasks.queue", "leasequeue.worker"}


async def run(redis_url: str, *arguments: str) -> tuple[int, set[str]]:
    """Run a command; return how many scripts it has composed, and what it has imported."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, *arguments),
        env={**os.environ, "LEASEQUEUE_URL": redis_url},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    collects, composed, *imported = json.loads(err)
    assert collects, "the garbage collector is off while a command is imported, and no longer"
    return composed, {*imported}


async def test_the_version_is_printed_without_the_redis_client_and_without_rich() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, "--version"), stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    _, _, *imported = json.loads(err)
    assert not {"asyncio", "msgspec", "pydantic", "redis", "rich.console"} & {*imported}
    ours = {name for name in imported if name.startswith("leasequeue.")}
    assert ours == {"leasequeue.cli", "leasequeue.cli.app", "leasequeue.cli.values", "leasequeue.lazy"}


async def test_a_table_is_printed_without_workers_and_tasks(queue: AsyncWorkQueue, redis_url: str) -> None:
    composed, imported = await run(redis_url, "ls", queue.name)
    assert not NEEDLESS & imported
    assert composed <= 2  # what probes the server's rights, and what counts


async def test_items_are_added_and_shown_without_workers_tasks_and_tables(
    queue: AsyncWorkQueue, redis_url: str
) -> None:
    await queue.add_item(Item(b'{"task": "send", "args": {}}', id="x"))
    for arguments in (("add", queue.name, "hello"), ("show", queue.name, "--json")):
        composed, imported = await run(redis_url, *arguments)
        assert not {*NEEDLESS, "rich.console"} & imported
        assert composed <= 3
