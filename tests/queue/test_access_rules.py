"""Users whose access rules forbid keys or commands."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ResponseError

from leasequeue import Item
from leasequeue.errors import ServerRefused
from leasequeue.wire.scripts import load
from tests.queue.asking import command, take
from tests.queue.keyspace import snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue.embedded import EmbeddedServer
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core


async def test_a_forbidden_command_raises_server_refused(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue, name: str
) -> None:
    rules = {"other keys": ["~other:*", "+@all"], "no scripts": [f"~{name}:*", "+@all", "-@scripting"]}
    for user, rule in rules.items():
        login = user.replace(" ", "-")
        await command(admin, "ACL", "SETUSER", login, "on", ">pw", *rule)
        queue = make_queue(url=own.url.replace("redis://", f"redis://{login}:pw@"))
        for call in (queue.add_item(Item(b"x")), queue.lease(30), queue.counts()):
            with pytest.raises(ServerRefused, match="nothing was applied"):
                await call
        assert await snapshot(admin) == {}, user


async def test_a_queue_works_without_access_to_info(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue, name: str
) -> None:
    """The server's version is then not checked, and everything else works."""
    await command(admin, "ACL", "SETUSER", "plain", "on", ">pw", f"~{name}:*", "+@all", "-info")
    queue = make_queue(url=own.url.replace("redis://", "redis://plain:pw@"))
    assert await queue.add_item(Item(b"x"))
    await take(queue)


async def test_a_queue_without_access_to_blmove_cannot_wait(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue, name: str
) -> None:
    await command(admin, "ACL", "SETUSER", "hasty", "on", ">pw", f"~{name}:*", "+@all", "-blmove")
    queue = make_queue(url=own.url.replace("redis://", "redis://hasty:pw@"))
    assert await queue.lease(30, block=False) is None
    async with asyncio.timeout(120):
        for _ in range(2):
            with pytest.raises(ServerRefused, match="nothing was applied"):
                await queue.lease(30)
    assert await queue.add_item(Item(b"x"))
    await take(queue)


async def test_the_documented_access_rules_suffice(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue, name: str
) -> None:
    """The commands that a queue sends, and those that its scripts use, on its own keys."""
    used = {name.encode() for script in load().values() for name in script.commands}
    for newer in (b"MSETEX", b"SPUBLISH"):
        try:
            await command(admin, "ACL", "SETUSER", "probe", b"+" + newer.lower())
        except ResponseError:
            used.remove(newer)  # the scripts do without it where there is none
    allowed = [b"+" + word.lower() for word in {b"EVALSHA", b"EVAL", b"INFO", b"BLMOVE", *used}]
    await command(admin, "ACL", "SETUSER", "worker", "on", ">pw", f"~{name}:*", "-@all", *allowed)
    queue = make_queue(url=own.url.replace("redis://", "redis://worker:pw@"))
    assert await queue.add_items([Item(b"x", id=f"{n}") for n in range(200)])
    await queue.add_item(Item(b"x", id="late"), delay=0.01)
    leases = await queue.lease_many(200, 30)
    assert await queue.renew_many(leases, 60) == [True] * 200
    assert await queue.release(leases[0], delay=0.01)
    assert await queue.release(leases[1])
    assert await queue.complete_many(leases[2:]) == [True] * 198
    for _ in range(3):
        lease = await take(queue, 30, timeout=120)
        assert await queue.complete(lease)
    assert await queue.lease(30, timeout=0.05) is None
    assert await queue.counts() == (0, 0, 0, 0)


@pytest.mark.parametrize("refused", ["zadd", "hset", "unlink", "ltrim"])
async def test_a_script_that_needs_a_forbidden_command_is_refused_before_it_writes(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue, name: str, refused: str
) -> None:
    await command(admin, "ACL", "SETUSER", "some", "on", ">pw", f"~{name}:*", "&*", "+@all", f"-{refused}")
    owner, queue = make_queue(url=own.url), make_queue(url=own.url.replace("redis://", "redis://some:pw@"))
    await owner.add_items([Item(b"x", id=f"{n}") for n in range(9)])
    before = await snapshot(admin)
    with pytest.raises(ServerRefused, match=f"{refused.upper()}.*lease_many needs; nothing was applied"):
        await queue.lease_many(9, 30, block=False)
    assert await snapshot(admin) == before
    assert await queue.counts() == (9, 0, 0, 0), "a script that does not need it is permitted"


async def test_leases_do_without_msetex_where_it_is_forbidden(
    admin: Redis, own: EmbeddedServer, make_queue: MakeQueue, name: str
) -> None:
    """An access rule for older servers cannot name it."""
    try:
        await command(admin, "ACL", "SETUSER", "old", "on", ">pw", f"~{name}:*", "&*", "+@all", "-msetex")
    except ResponseError:
        await command(admin, "ACL", "SETUSER", "old", "on", ">pw", f"~{name}:*", "&*", "+@all")
    queue = make_queue(url=own.url.replace("redis://", "redis://old:pw@"))
    await queue.add_items([Item(b"x", id=f"{n}") for n in range(200)])
    leases = await queue.lease_many(200, 30)
    assert await queue.complete_many(leases) == [True] * 200
