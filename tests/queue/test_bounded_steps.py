"""No call takes the server long: large calls are made in several steps."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasequeue import ConnectionLost, Failure, Item
from leasequeue.queue.encoding import SLOW_ROWS, TRIP_BYTES, TRIP_ROWS, pages, trips
from leasequeue.queue.leasing import MAX_ITEMS, LeaseDispatcher
from leasequeue.wire.runner import Runner
from tests.queue.keyspace import audit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue, Lease
    from leasequeue.queue.leasing import LeasedItem
    from leasequeue.wire.runner import BoundScript
    from tests.queue.fixtures import MakeQueue

COUNT = 1000
#: How many values each row of a script has.
VALUES = {
    "add_items": 4,
    "complete_many": 3,
    "renew_many": 3,
    "release_many": 4,
    "fail_many": 4,
    "lease_many": 2,
    "requeue_many": 1,
    "drop_many": 1,
}


class Steps:
    """The steps of each script since the last look, by the number of their rows or items."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._found: defaultdict[str, list[int]] = defaultdict(list)
        send = Runner.send

        def note(script: BoundScript, rest: list[bytes], arguments: dict[str, Any]) -> None:
            name = script.script.name
            rows = arguments.get("count") or len(rest) // VALUES.get(name, 1)
            if name == "lease_many":
                rows = sum(int(count) for count in rest[::2])
            self._found[name].append(rows)

        def noting_send(
            runner: Runner, script: BoundScript, rest: Iterable[bytes], on_reply: Any, /, **arguments: Any
        ) -> None:
            note(script, rest := [*rest], arguments)
            send(runner, script, rest, on_reply, **arguments)

        monkeypatch.setattr(Runner, "send", noting_send)

    def of(self, name: str) -> list[int]:
        """Return the rows of each step of a script, and forget them."""
        found = self._found[name]
        self._found.clear()
        return found


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Give the steps that the queues of a test make."""
    return Steps(monkeypatch)


def numbered() -> list[Item]:
    return [Item(b"x", id=f"{number:04}") for number in range(COUNT)]


def several(maximum: int) -> list[int]:
    return [maximum] * (COUNT // maximum)


async def test_a_thousand_items_are_leased_in_steps_and_in_order(queue: AsyncWorkQueue, steps: Steps) -> None:
    items = numbered()
    await queue.add_items(items)
    assert steps.of("add_items") == several(TRIP_ROWS)
    leases = await queue.lease_many(COUNT, 30)
    assert [lease.id for lease in leases] == [item.id for item in items]
    assert steps.of("lease_many") == several(MAX_ITEMS)
    assert all(await queue.renew_many(leases, 60))
    assert steps.of("renew_many") == several(TRIP_ROWS)
    assert all(await queue.release_many(leases))
    assert steps.of("release_many") == several(TRIP_ROWS)
    leases = await queue.lease_many(COUNT, 30)
    assert [lease.id for lease in leases] == [item.id for item in items]
    assert all(await queue.complete_many(leases))
    assert steps.of("complete_many") == several(TRIP_ROWS)


async def test_only_the_first_step_of_a_lease_waits(queue: AsyncWorkQueue, redis: Redis) -> None:
    waiting = asyncio.create_task(queue.lease_many(COUNT, 30))
    await queue.add_items(numbered()[: MAX_ITEMS + 1])
    leases = await waiting
    if len(leases) <= MAX_ITEMS:  # some were added after it had leased the first
        leases += await queue.lease_many(COUNT, 30, block=False)
    assert len(leases) == MAX_ITEMS + 1
    assert await queue.lease_many(COUNT, 30, block=False) == []
    await audit(redis, queue.name)


async def test_what_was_leased_is_returned_although_a_later_step_fails(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await queue.add_items(numbered())
    usual, calls = LeaseDispatcher._request, Counter[str]()

    async def failing_third(self: LeaseDispatcher, *arguments: Any, **options: Any) -> list[LeasedItem]:
        calls["lease"] += 1
        if calls["lease"] == 3:
            raise ConnectionLost("cut", maybe_applied=True)
        return await usual(self, *arguments, **options)

    monkeypatch.setattr(LeaseDispatcher, "_request", failing_third)
    leases = await queue.lease_many(COUNT, 30)
    assert [lease.id for lease in leases] == [item.id for item in numbered()[: 2 * MAX_ITEMS]]
    assert f"only {2 * MAX_ITEMS} of {COUNT} items were leased" in caplog.text


async def test_a_cancelled_lease_of_many_steps_leaves_nothing_leased(
    queue: AsyncWorkQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.add_items(numbered())
    usual, calls, reached = LeaseDispatcher._request, Counter[str](), asyncio.Event()

    async def stuck_third(self: LeaseDispatcher, *arguments: Any, **options: Any) -> list[LeasedItem]:
        calls["lease"] += 1
        if calls["lease"] == 3:
            reached.set()
            await asyncio.Event().wait()
        return await usual(self, *arguments, **options)

    monkeypatch.setattr(LeaseDispatcher, "_request", stuck_third)
    leasing = asyncio.create_task(queue.lease_many(COUNT, 30))
    await reached.wait()
    leasing.cancel()
    await asyncio.gather(leasing, return_exceptions=True)
    monkeypatch.undo()
    await queue.close()  # waits until they are released
    places = await audit(redis, queue.name)
    assert places.waiting == [item.id.encode() for item in numbered()]


async def test_delayed_items_and_dead_letters_take_smaller_steps(
    queue: AsyncWorkQueue, steps: Steps, redis: Redis
) -> None:
    await queue.add_items(numbered(), delay=0.001)
    assert steps.of("add_items") == several(SLOW_ROWS)

    async def due() -> list[Any]:
        leases: list[Any] = []
        while len(leases) < COUNT:
            leases += await queue.lease_many(COUNT, 30, timeout=120)
        return leases

    assert all(await queue.release_many(await due(), delay=0.001))
    assert steps.of("release_many") == several(SLOW_ROWS)
    assert all(await queue.fail_many([Failure(lease, "bad", 0.001) for lease in await due()]))
    assert steps.of("fail_many") == several(SLOW_ROWS)
    assert all(await queue.fail_many([Failure(lease, "bad", 0) for lease in await due()]))
    assert steps.of("fail_many") == several(TRIP_ROWS)
    assert all(await queue.fail_many([Failure(lease, "bad") for lease in await due()]))
    assert steps.of("fail_many") == several(SLOW_ROWS)
    await audit(redis, queue.name)


async def test_concurrent_calls_share_steps_of_the_same_sizes(queue: AsyncWorkQueue, steps: Steps) -> None:
    await asyncio.gather(*(queue.add_item(item) for item in numbered()))
    assert max(steps.of("add_items")) == TRIP_ROWS
    leases = await queue.lease_many(COUNT, 30)
    assert all(await asyncio.gather(*(queue.release(lease, delay=0.001) for lease in leases)))
    assert max(steps.of("release_many")) == SLOW_ROWS
    leases = []
    while len(leases) < COUNT:
        leases += await queue.lease_many(COUNT, 30, timeout=120)
    assert all(await asyncio.gather(*(queue.fail(lease, "bad") for lease in leases)))
    assert max(steps.of("fail_many")) == SLOW_ROWS


async def test_dead_letters_are_listed_requeued_and_dropped_in_steps(
    queue: AsyncWorkQueue, steps: Steps
) -> None:
    async def bury() -> list[str]:
        await queue.fail_many([Failure(one, "bad") for one in await queue.lease_many(COUNT, 30)])
        assert await queue.dead_letters.count() == COUNT
        steps.of("")
        return [item.id for item in numbered()]

    await queue.add_items(numbered())
    ids = await bury()
    assert {letter.id for letter in await queue.dead_letters.list(count=COUNT)} == set(ids)
    assert steps.of("dead_list") == several(50)
    assert all(await queue.dead_letters.requeue(*ids))
    assert steps.of("requeue_many") == several(SLOW_ROWS)
    await bury()
    assert await queue.dead_letters.requeue_all() == COUNT
    assert steps.of("requeue_many") == several(SLOW_ROWS)
    await bury()
    assert all(await queue.dead_letters.drop(*ids))
    assert steps.of("drop_many") == several(TRIP_ROWS)
    await queue.add_items(numbered())
    await bury()
    assert await queue.dead_letters.drop_all() == COUNT
    assert set(steps.of("drop_old")) == {TRIP_ROWS}


@pytest.mark.parametrize(
    ("state", "start"),
    [("waiting", 0), ("waiting", 400), ("waiting", -400), ("leased", 0), ("scheduled", -400)],
)
async def test_items_are_inspected_in_steps_and_in_order(
    queue: AsyncWorkQueue, steps: Steps, state: Any, start: int
) -> None:
    await queue.add_items(numbered(), delay=3600 if state == "scheduled" else 0)
    if state == "leased":
        await queue.lease_many(COUNT, 30)
    steps.of("")
    places = [view.id for view in await queue.inspect(state, start=start, count=COUNT)]
    assert max(steps.of("inspect")) <= TRIP_ROWS
    expected = [item.id for item in numbered()][start:]
    assert (places if state == "waiting" else sorted(places)) == expected


@pytest.mark.parametrize(
    ("start", "count", "found"),
    [
        (0, 1, [(0, 1)]),
        (0, 10, [(0, 4), (4, 4), (8, 2)]),
        (3, 4, [(3, 4)]),
        (-10, 100, [(-10, 4), (-6, 4), (-2, 2)]),
        (-10, 5, [(-10, 4), (-6, 1)]),
        (-1, 1, [(-1, 1)]),
    ],
)
def test_a_slice_is_divided_into_pages(start: int, count: int, found: list[tuple[int, int]]) -> None:
    assert list(pages(start, count, 4)) == found


HALF = TRIP_BYTES // 2


@pytest.mark.parametrize(
    ("sizes", "cuts"),
    [
        ([], []),
        ([1], [(0, 1)]),
        ([TRIP_BYTES * 9], [(0, 1)]),
        ([HALF, HALF], [(0, 2)]),
        ([HALF, HALF, 1], [(0, 2), (2, 3)]),
        ([1, TRIP_BYTES], [(0, 1), (1, 2)]),
        ([TRIP_BYTES, 1], [(0, 1), (1, 2)]),
        ([1, TRIP_BYTES * 9, 1], [(0, 1), (1, 2), (2, 3)]),
        ([1] * TRIP_ROWS, [(0, TRIP_ROWS)]),
        ([1] * (TRIP_ROWS + 1), [(0, TRIP_ROWS), (TRIP_ROWS, TRIP_ROWS + 1)]),
        ([0] * (2 * TRIP_ROWS), [(0, TRIP_ROWS), (TRIP_ROWS, 2 * TRIP_ROWS)]),
    ],
    ids=lambda value: f"{len(value)} of {sum(value)}" if value and isinstance(value[0], int) else "",
)
def test_a_trip_ends_at_500_rows_or_a_mebibyte(sizes: list[int], cuts: list[tuple[int, int]]) -> None:
    assert [*trips(sizes)] == cuts


@given(st.lists(st.integers(min_value=0, max_value=TRIP_BYTES * 2), max_size=50))
def test_every_row_is_sent_once_in_order_and_trips_are_full(sizes: list[int]) -> None:
    cuts = [*trips(sizes)]
    assert [row for start, stop in cuts for row in range(start, stop)] == [*range(len(sizes))]
    for start, stop in cuts:
        assert stop - start == 1 or sum(sizes[start:stop]) <= TRIP_BYTES
        if stop < len(sizes):
            assert sum(sizes[start : stop + 1]) > TRIP_BYTES


async def test_no_call_takes_more_commands_in_a_larger_queue(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    """Nor do the scripts of a call send more of them."""

    async def sent() -> Counter[str]:
        stats = await redis.info("commandstats")
        ours = {one: value["calls"] for one, value in stats.items() if not _IS_OUTSIDE.match(one)}
        return Counter(ours)

    async def measured(queue: AsyncWorkQueue) -> dict[str, Counter[str]]:
        found: dict[str, Counter[str]] = {}
        leases: list[Lease] = []

        async def count(what: str, call: Awaitable[Any]) -> Any:
            before = await sent()
            answer = await call
            found[what] = await sent() - before
            return answer

        await count("add one", queue.add_item(Item(b"x")))
        await count("add some", queue.add_items(Item(b"x") for _ in range(100)))
        await count("delay", queue.add_items((Item(b"x") for _ in range(50)), delay=3600))
        leases = await count("lease", queue.lease_many(200, 3600))
        await count("renew", queue.renew_many(leases[:100], 3600))
        await count("release", queue.release_many(leases[:100]))
        await count("fail", queue.fail_many([Failure(lease, "x") for lease in leases[100:150]]))
        await count("complete", queue.complete_many(leases[150:]))
        for state in ("waiting", "leased", "scheduled"):
            await count(f"inspect {state}", queue.inspect(state, start=100, count=100))
        await count("find", queue.find(leases[0].id))
        await count("dead letters", queue.dead_letters.list(count=50))
        await count("requeue", queue.dead_letters.requeue(leases[100].id))
        await count("counts", queue.counts())
        await count("stats", queue.stats())
        return found

    found = []
    for size in (1_000, 20_000):
        queue = make_queue(name=f"{name}-{size}")
        await queue.add_items(Item(b"x") for _ in range(size + size // 2))
        await queue.add_items((Item(b"x") for _ in range(size // 4)), delay=3600)
        for _ in range(size // 1_000):
            await queue.lease_many(250, 3600)
            await queue.fail_many([Failure(one, "x") for one in await queue.lease_many(250, 3600)])
        await measured(queue)  # opens connections, and loads scripts
        found.append(await measured(queue))
    small, large = found
    # For each item that leaves `processing`, three old entries are looked at, which may be left over.
    more = {what: large[what] - small[what] for what in small}
    assert {what: some for what, some in more.items() if some.total() > 4 * 50} == {}


#: Commands that a connection or the test itself sends.
_IS_OUTSIDE = re.compile("cmdstat_(info|ping|client|hello|select|subscribe|script|config|eval)")
