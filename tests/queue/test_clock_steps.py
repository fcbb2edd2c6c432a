"""A queue whose server's clock was ahead for a moment continues in its time, with the next wait or clean."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from leasequeue.views import CleanReport

if TYPE_CHECKING:
    from tests.queue.fixtures import Clock, MakeQueue

pytestmark = pytest.mark.core
STEP = 7_200


@pytest.mark.parametrize("clean", ["light_clean", "deep_clean", "fsck"])
@pytest.mark.parametrize("kind", ["plain", "limited"])
async def test_items_leased_ahead_by_a_client_that_died_return(
    make_queue: MakeQueue, clock: Clock, clean: str, kind: str
) -> None:
    queue, dead = make_queue(clock=clock), make_queue(clock=clock)
    group = "g" if kind == "limited" else None
    if group:
        await queue.limits.set(rate="5/s", concurrency=50)
        await queue.limits.set(group=group, rate="5/s", concurrency=50)
    items = [Item(b"x", id=f"i{at:02}") for at in range(20)]
    await queue.add_items(items, group=group)
    clock.now += STEP
    held = [one.id for one in await dead.lease_many(3, 1, block=False)]
    assert held
    await queue.pause(for_=2)
    clock.now -= STEP

    report = await getattr(queue.admin if clean == "fsck" else queue, clean)()
    assert isinstance(report, CleanReport)
    found: set[str] = set()
    began = clock.now
    while len(found) < len(items):
        clock.now += 0.25
        leases = await queue.lease_many(50, 60, block=False)
        found |= {one.id for one in leases}
        assert all(await queue.complete_many(leases))
        assert clock.now <= began + 12, f"{len(found)} of {len(items)} were leased"
    assert found == {item.id for item in items}, "also those of the client that died"
    assert (await queue.counts()).total == 0
    if not group:
        assert await queue.admin.fsck() == CleanReport()


@pytest.mark.parametrize("ahead", [STEP, -STEP])
async def test_tokens_grow_whatever_the_clock_does(make_queue: MakeQueue, clock: Clock, ahead: int) -> None:
    queue = make_queue(clock=clock)
    tokens: list[int] = []
    for at in range(6):
        await queue.add_item(Item(b"x", id="a"))
        [lease] = await queue.lease_many(1, 60, block=False)
        tokens.append(lease.token)
        clock.now += ahead if at % 2 else -ahead
        assert await queue.complete(lease)
    assert tokens == sorted({*tokens})
