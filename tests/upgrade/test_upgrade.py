"""Two versions on one queue, in processes: rolled forward and back under load."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import Item
from leasequeue.errors import FormatTooNew
from tests.processes import printed
from tests.queue.asking import until
from tests.upgrade.newer import make_newer, path_with

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Collection

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.cli.program import Leasequeue

pytestmark = pytest.mark.slow

REFUSED = (
    "has format 2, set by leasequeue 0.2.0. This is leasequeue 0.1.0, which knows no format above 1; nothing "
    "was applied. Install leasequeue 0.2.0 or newer here"
)


class Version:
    """A worker of some version, in a process. See `tests.upgrade.program`."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def __call__(self, *words: str) -> str:
        """Send it a line, and return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words).encode() + b"\n")
        answer = await printed(self.process, words[0].encode())
        return answer.decode().strip().removeprefix(f"{words[0]} ")


@asynccontextmanager
async def started(url: str, name: str, prefix: str, path: str) -> AsyncIterator[Version]:
    """Run the program of a version inside the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.upgrade.program", url, name, prefix),
        env={**os.environ, "PYTHONPATH": path},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Version(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.fixture
async def old(redis_url: str, name: str) -> AsyncIterator[Version]:
    """Run this version."""
    async with started(redis_url, name, "old", os.pathsep.join(sys.path)) as version:
        yield version


@pytest.fixture
async def new(redis_url: str, name: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Version]:
    """Run the made-up one."""
    path = path_with(make_newer(tmp_path_factory.mktemp("newer")))
    async with started(redis_url, name, "new", path) as version:
        yield version


async def test_forward_and_back_under_load(
    old: Version, new: Version, queue: AsyncWorkQueue, redis: Redis, leasequeue: Leasequeue
) -> None:
    for one in (old, new):
        await one("add")
        await one("worked")
    await _forward(old, new, queue, redis, leasequeue)
    await _refused(new, queue, redis, leasequeue)
    await _back(new, queue, redis)
    # The older version works again, on a queue in which nothing of the newer one is left.
    assert await redis.keys(f"{queue.name}:too_new_for:*") + await redis.keys(f"{queue.name}:format") == []
    assert (await leasequeue("fsck", queue.name)).code == 0
    assert await queue.add_item(Item(b"x", id="late"))
    lease = await queue.lease(30, timeout=120)
    assert lease is not None
    assert (lease.id, await queue.complete(lease)) == ("late", True)


async def _forward(
    old: Version, new: Version, queue: AsyncWorkQueue, redis: Redis, leasequeue: Leasequeue
) -> None:
    # Both write format 1. The older worker holds the queue back, and whoever looks sees both.
    assert await new("upgrade", "2") == "1 1 held=old left="
    both = "0.1.0 that knows format 1 (1), 0.2.0 that knows format 2 (1)"
    for words in (("workers", "ls"), ("fsck",)):
        assert both in (await leasequeue(*words, queue.name)).err
    # It is killed, and the format is raised while the newer one adds, leases and completes.
    old.process.kill()
    await old.process.wait()
    assert (await leasequeue("workers", "fail", queue.name, "old")).code == 0
    assert await new("upgrade", "2") == "2 2 held= left="
    await new("worked")
    await new("park", "one")
    await until("an item has failed in the new format", lambda: _any_letter(redis, queue.name, b"why"))


async def _refused(new: Version, queue: AsyncWorkQueue, redis: Redis, leasequeue: Leasequeue) -> None:
    # What the older version does not know, it neither reads nor repairs. This process has used the queue.
    with pytest.raises(FormatTooNew) as refused:
        await queue.add_item(Item(b"x", id="late"))
    assert str(refused.value) == f"the queue {queue.name!r} {REFUSED}"
    for words in (("fsck",), ("dead", "ls"), ("clean", "--deep"), ("rm", "--yes"), ("upgrade",)):
        outcome = await leasequeue(*words, queue.name)
        assert (outcome.code, outcome.out) == (5, "")
        assert REFUSED in outcome.err
    assert await new("fsck") == "2 2 0"  # what is parked is not lost
    assert await redis.llen(f"{queue.name}:parked") == 1


async def _back(new: Version, queue: AsyncWorkQueue, redis: Redis) -> None:
    # Still under load: format 1 is written from now on, and what was written before stays until it is gone.
    name = queue.name
    said = await new("upgrade", "1")
    assert said.startswith("1 2 held= left=")
    assert "dead" in said
    before = {*await redis.zrange(f"{name}:dead", 0, -1)}
    await until("an item has failed in the old format", lambda: _any_letter(redis, name, b"error", before))
    assert await new("letters") == "[]"  # both fields are read
    with pytest.raises(FormatTooNew):
        await queue.add_item(Item(b"x", id="late"))
    added = int(await new("hold"))
    await new("park", "back")
    await until("all is done", lambda: _is_done(redis, name))
    # What the killed worker held is a dead letter, as there is one attempt; everything else has run.
    ended: set[Any] = await redis.smembers(f"ran-{name}") | {*await redis.zrange(f"{name}:dead", 0, -1)}
    of_old = sum(one.startswith(b"old") for one in ended)
    numbered = [f"new{number}" for number in range(added)] + [f"old{number}" for number in range(of_old)]
    assert {one.decode() for one in ended} == {"parked", *numbered}
    assert of_old
    await new("drop")
    assert await new("upgrade", "1") == "1 1 held= left="
    assert new.process.stdin is not None
    new.process.stdin.close()
    assert await new.process.wait() == 0
    await redis.delete(f"ran-{name}")


async def _any_letter(redis: Redis, name: str, field: bytes, but: Collection[bytes] = ()) -> bool:
    """Return whether there is a dead letter with this field, besides some; then all others have it."""
    ids = {*await redis.zrange(f"{name}:dead", 0, -1)}.difference(but)
    fields = [{*await redis.hkeys(f"{name}:dead:{one.decode()}")} & {b"error", b"why"} for one in ids]
    assert not but or all(one == {field} for one in fields)
    return {field} in fields


async def _is_done(redis: Redis, name: str) -> bool:
    # An id that is on its way to a worker is in none of the keys: what was parked is the last one.
    return bool(await redis.sismember(f"ran-{name}", "parked")) and not await redis.exists(
        *(f"{name}:{end}" for end in ("queue", "deadlines", "scheduled", "parked"))
    )
