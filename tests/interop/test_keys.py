"""Our keys are those of the family, byte for byte, and items pass through them unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue, Item
from tests.interop.state import contents
from tests.queue.keyspace import snapshot

if TYPE_CHECKING:
    from tests.interop.conftest import Shared
    from tests.interop.foreign import Foreign

pytestmark = pytest.mark.core

BINARY = bytes(range(256)) + b"\r\n\x00$-1\r\n"
#: Items that pass unchanged: (id, data).
ITEMS = [
    ("6f1ed002-ab55-4f2b-8f6c-3c2e7f3d5f5e", BINARY),
    ("3f0bd4e0c4f24c60b7b5ae3b54e3a2f1", "Grüße, 世界 🌍".encode()),
    ("ключ ✓ 🗝", b'{"to":"ann"}'),
    ("with space\r\nand line\x00and NUL", b"\xff\xfe\x80"),
    ("a*b[1]?\\{x}:item:y", b"0"),
    ("0", b"a real item of that name"),
    ("empty", b""),
    ("large", BINARY * 4096),
]
FAMILY = ("queue", "processing", "item", "leased_by_session")


@pytest.mark.seed("RWQ-L1", "RWQ-L3")
async def test_an_added_item_is_its_raw_data_and_an_id_pushed_left(
    queue: AsyncWorkQueue, shared: Shared
) -> None:
    """No envelope, no expiry, no other key."""
    await queue.add_item(Item(BINARY, id="a"))
    await queue.add_item(Item(b"", id="ключ"))
    assert await contents(shared.redis, shared.name) == {
        "item:a": (b"string", False, BINARY),
        "item:ключ": (b"string", False, b""),
        "queue": (b"list", False, ["ключ".encode(), b"a"]),
    }


@pytest.mark.seed("RWQ-G16", "RWQ-L2", "RWQ-L4", "RWQ-B19")
async def test_a_leased_item_is_popped_right_pushed_left_and_named_by_both_lease_keys(
    queue: AsyncWorkQueue, shared: Shared
) -> None:
    """Clients since 0.3 read `lease`, earlier ones `leased_by_session`."""
    await queue.add_items(Item(b"data of " + item_id.encode(), id=item_id) for item_id in "abc")
    for expected in "ab":
        lease = await shared.lease()
        assert lease.id == expected
    found = await contents(shared.redis, shared.name)
    assert queue.session.startswith("lh:"), "the prefix of our sessions"
    holder = (b"string", True, queue.session.encode())
    family = {key: value for key, value in found.items() if key.split(":")[0] in {*FAMILY, "lease"}}
    assert family == {
        "item:a": (b"string", False, b"data of a"),
        "item:b": (b"string", False, b"data of b"),
        "item:c": (b"string", False, b"data of c"),
        "lease:a": holder,
        "lease:b": holder,
        "leased_by_session:a": holder,
        "leased_by_session:b": holder,
        "processing": (b"list", False, [b"b", b"a"]),
        "queue": (b"list", False, [b"c"]),
    }
    for key in ("lease:a", "leased_by_session:a"):
        assert 20_000 < await shared.redis.pttl(f"{shared.name}:{key}") <= 30_000
    assert set(found) - set(family) == {"deadlines", "fence", "ledger"}


async def test_we_write_what_a_foreign_client_writes(
    queue: AsyncWorkQueue, shared: Shared, foreign: Foreign
) -> None:
    """Adding, leasing and completing leave the same keys of the family with each client."""

    async def of_the_family() -> dict[str, Any]:
        found = await contents(shared.redis, shared.name)
        family = {key: value for key, value in found.items() if key.split(":")[0] in FAMILY}
        # Each client has its own session.
        return {key: value[: 2 if "session" in key else 3] for key, value in family.items()}

    ours, theirs = [], []
    for item_id in "abc":
        await queue.add_item(Item(BINARY, id=item_id))
    ours.append(await of_the_family())
    leases = [await queue.lease(30), await queue.lease(30)]
    ours.append(await of_the_family())
    assert leases[0] is not None
    assert await queue.complete(leases[0])
    ours.append(await of_the_family())
    await shared.redis.delete(*(f"{shared.name}:{key}" for key in await shared.keys()))

    for item_id in "abc":
        await foreign.add(item_id, BINARY)
    theirs.append(await of_the_family())
    assert [await foreign.lease(30), await foreign.lease(30)] == [("a", BINARY), ("b", BINARY)]
    theirs.append(await of_the_family())
    assert await foreign.complete("a")
    theirs.append(await of_the_family())
    assert ours == theirs


@pytest.mark.seed("RWQ-G5")
async def test_items_go_from_us_to_a_foreign_client_unchanged(
    queue: AsyncWorkQueue, shared: Shared, foreign: Foreign
) -> None:
    assert all(await queue.add_items(Item(data, id=item_id) for item_id, data in ITEMS))
    assert (await foreign.queue_len(), await foreign.processing()) == (len(ITEMS), 0)
    assert [await foreign.lease(30) for _ in ITEMS] == ITEMS
    assert await foreign.lease(30) is None
    await queue.light_clean()  # it finds what other clients hold
    assert (await queue.queue_len(), await queue.processing()) == (0, len(ITEMS))
    assert all([await foreign.complete(item_id) for item_id, _ in ITEMS])
    assert await shared.keys() == {"deadlines"}, "their leases are watched until they would have expired"


async def test_items_go_from_a_foreign_client_to_us_unchanged(
    queue: AsyncWorkQueue, shared: Shared, foreign: Foreign
) -> None:
    for item_id, data in ITEMS:
        await foreign.add(item_id, data)
    assert await queue.queue_len() == len(ITEMS)
    leases = await queue.lease_many(100, 30, block=False)
    assert [(lease.id, lease.data) for lease in leases] == ITEMS
    assert (await foreign.queue_len(), await foreign.processing()) == (0, len(ITEMS))
    assert all(await queue.complete_many(leases))
    assert await shared.keys() == {"fence"}


async def test_an_item_that_one_client_holds_is_not_given_to_another(
    queue: AsyncWorkQueue, shared: Shared, foreign: Foreign
) -> None:
    """The cleaner of each side leaves the leases of the other alone."""
    await queue.add_items([Item(b"1", id="ours"), Item(b"2", id="theirs")])
    lease = await shared.lease()
    assert await foreign.lease(30) == ("theirs", b"2")
    for _ in range(2):
        await foreign.light_clean()
        report = await queue.deep_clean()
        assert (report.reclaimed, report.restored, report.dropped) == (0, 0, 0)
        assert await foreign.lease(30) is None
        assert await queue.lease(30, block=False) is None
    assert not await queue.add_item(Item(b"again", id="theirs"))
    assert await queue.complete(lease)
    assert await foreign.complete("theirs")
    # We notice the foreign completion when we check the lease the next time.
    assert await shared.keys() == {"fence", "deadlines"}
    shared.clock.advance(31)
    await queue.light_clean()
    assert await shared.keys() == {"fence"}


async def test_a_foreign_cleaner_leaves_schedules_alone_and_a_foreign_worker_gets_their_items(
    queue: AsyncWorkQueue, shared: Shared, foreign: Foreign
) -> None:
    await queue.schedules.every(60, "a", "data")
    await queue.schedules.cron("0 3 29 2 *", "b", "data")
    before = await snapshot(shared.redis)
    await foreign.light_clean()
    assert await snapshot(shared.redis) == before
    shared.clock.advance(60)
    await queue.schedules.tick()
    leased = await foreign.lease(30)
    assert leased is not None
    assert leased.id.startswith("a@")
    assert leased.data == b"data"
    assert await foreign.complete(leased.id)
    await queue.light_clean()
    await foreign.light_clean()
    assert await shared.keys() == {"schedules", "ticks", "schedule:a", "schedule:b"}
