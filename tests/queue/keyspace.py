"""Reads the state of all keys, and checks that every item is in exactly one state."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.queue.asking import keys_like

if TYPE_CHECKING:
    from redis.asyncio import Redis

_LEASE_KEYS = (b":lease:", b":leased_by_session:")


async def snapshot(redis: Redis) -> dict[bytes, bytes]:
    """Return every key of the database with its serialized value."""
    keys = await keys_like(redis, "*")
    async with redis.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.dump(key)
        return dict(zip(keys, await pipeline.execute(), strict=True))


@dataclass(frozen=True)
class Places:
    """The ids by state, the next one first."""

    waiting: list[bytes]
    leased: list[bytes]
    scheduled: list[bytes]
    #: Dead letters, the oldest first. Their ids may be in use again.
    dead: list[bytes]

    @property
    def all(self) -> Counter[bytes]:
        return Counter([*self.waiting, *self.leased, *self.scheduled])


async def places(redis: Redis, name: str) -> Places:
    """Read the ids of a queue by state; those in inboxes of waiting processes come first."""
    prefix = name.encode()
    inboxes = await keys_like(redis, glob(name) + b":inbox:*")
    async with redis.pipeline(transaction=False) as pipeline:
        for key in (*inboxes, prefix + b":queue"):
            pipeline.lrange(key, 0, -1)
        pipeline.zrange(prefix + b":deadlines", 0, -1)
        pipeline.zrange(prefix + b":scheduled", 0, -1)
        pipeline.zrange(prefix + b":dead", 0, -1)
        *lists, leased, scheduled, dead = await pipeline.execute()
    waiting = [item_id for ids in lists for item_id in reversed(ids)]
    return Places(waiting, leased, scheduled, dead)


async def audit(redis: Redis, name: str) -> Places:
    """Check that every item is in exactly one state, and that no entry lacks an item.

    Call it when no call is in flight, on queues that no client of another library uses.
    """
    prefix = name.encode()
    found = await places(redis, name)
    dead = {key.removeprefix(prefix + b":dead:") for key in await keys_like(redis, glob(name) + b":dead:*")}
    assert dead == set(found.dead), f"each dead letter is listed: {found.dead} are, {dead} are there"
    data = {key.removeprefix(prefix + b":item:") for key in await keys_like(redis, glob(name) + b":item:*")}
    assert found.all == Counter(data), f"each item in one place: {found} are the places, {data} the items"

    noted = await redis.zrange(prefix + b":gone", 0, -1)  # first: in the background, entries leave both
    listed = await redis.lrange(prefix + b":processing", 0, -1)
    assert set(found.leased) <= set(listed), (
        f"the family's list shows the leased ones: {listed}, {found.leased}"
    )
    extra = Counter(listed) - Counter(found.leased)
    assert set(extra) <= {*noted, *found.leased}, f"other entries are noted, or come twice: {extra}, {noted}"
    ledger = set(await redis.hkeys(prefix + b":ledger"))
    assert ledger <= data, f"the ledger speaks of items that are there: {ledger - data} are not"
    assert set(found.leased) <= ledger, f"the ledger knows every lease, but {set(found.leased) - ledger}"
    options = await redis.hgetall(prefix + b":options")
    carried = {one: await redis.hget(prefix + b":dead:" + one, "options") for one in dead}
    tagged = {
        tag.encode() + b"\0" + one
        for texts in (options, carried)
        for one, text in texts.items()
        for tag in json.loads(text or "{}").get("tags", ())
    }
    assert tagged == set(await redis.zrange(prefix + b":tags", 0, -1)), (
        "each is found by its tags, and no other"
    )
    for key, one in (await redis.hgetall(prefix + b":unstarted")).items():
        assert json.loads(options.get(one, "{}")).get("unstarted", "").encode() == key, f"{one!r} has {key!r}"
    for kind in _LEASE_KEYS:
        held = {key.removeprefix(prefix + kind) for key in await keys_like(redis, glob(name) + kind + b"*")}
        assert held <= {*found.leased, *found.scheduled}, f"lease keys of items in sight: {held}, {found}"
    return found


async def left_over(redis: Redis, name: str) -> set[bytes]:
    """Return the keys of a queue without the token counter: none if it is empty and no client waits."""
    return set(await keys_like(redis, glob(name) + b":*")) - {name.encode() + b":fence"}


def glob(name: str) -> bytes:
    """Return a pattern that matches this name and nothing else."""
    return b"".join(b"\\" + bytes([byte]) if byte in b"*?[]\\^" else bytes([byte]) for byte in name.encode())


async def calls(redis: Redis, *commands: str) -> int:
    """Return how often the server has executed these commands since it started."""
    stats = await redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{command}", {}).get("calls", 0) for command in commands)
