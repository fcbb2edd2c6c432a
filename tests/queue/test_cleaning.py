"""Cleaning repairs what other clients leave behind, and nothing else, whatever happens between its steps."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import ConnectionLost, Item, KeyPrefix
from leasequeue.queue import cleaning
from leasequeue.queue.engine import Engine
from leasequeue.views import CleanReport
from tests.queue.asking import take
from tests.queue.keyspace import snapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import Clock, MakeQueue

    Hook = Callable[[Engine, str, dict[str, Any]], Awaitable[None]]

pytestmark = pytest.mark.core


@pytest.mark.seed("RWQ-O19")
async def test_cleaning_leaves_a_result_under_a_derived_key_alone(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    result = KeyPrefix(name).concat(":sums:").of("a")
    await queue.add_item(Item.from_json_data([1, 2, 3], id="a"))
    lease = await take(queue)
    await redis.set(result, str(sum(lease.data_json())), ex=600)
    assert await queue.complete(lease)
    assert await queue.deep_clean() == CleanReport()
    assert await redis.get(result) == b"6"
    assert (await queue.counts()).total == 0


@pytest.mark.seed("RWQ-O20")
async def test_deleting_all_lease_keys_ends_foreign_leases_and_none_of_ours(
    queue: AsyncWorkQueue, redis: Redis, name: str, clock: Clock
) -> None:
    await queue.add_items([Item(b"ours", id="a"), Item(b"theirs", id="b")])
    ours = await take(queue)
    await redis.rpoplpush(f"{name}:queue", f"{name}:processing")
    await redis.set(f"{name}:lease:b", "foreign", ex=600)
    await queue.light_clean()

    leases = [key async for key in redis.scan_iter(match=f"{name}:lease*")]
    assert len(leases) == 3
    await redis.delete(*leases)

    clock.now += 20
    await queue.renew(ours, 1000)
    clock.now += 600  # the end of the foreign lease, which the clean has read
    [theirs] = await queue.lease_many(2, 30, block=False)
    assert theirs.id == "b"
    assert await queue.complete(ours) is True
    assert await queue.complete(theirs) is True
    assert (await queue.counts()).total == 0


@pytest.mark.seed("RWQ-B11")
async def test_a_deep_clean_that_cannot_read_the_queue_changes_nothing(
    queue: AsyncWorkQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_run = Engine.run

    async def without_walks(engine: Engine, script: str, *rest: Any, **arguments: Any) -> Any:
        if script == "deep_clean_walk":
            raise ConnectionLost("cut", maybe_applied=True)
        return await plain_run(engine, script, *rest, **arguments)

    await queue.add_items(Item(b"work") for _ in range(10))
    before = await snapshot(redis)
    monkeypatch.setattr(Engine, "run", without_walks)
    with pytest.raises(ConnectionLost):
        await queue.deep_clean()
    assert await snapshot(redis) == before


@pytest.fixture
def after_each_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[Hook], None]:
    """Return a function that has another one called after each script of a clean."""
    plain_run = Engine.run

    def install(hook: Hook) -> None:
        async def run(engine: Engine, script: str, *rest: Any, **arguments: Any) -> Any:
            reply = await plain_run(engine, script, *rest, **arguments)
            await hook(engine, script, arguments)
            return reply

        monkeypatch.setattr(Engine, "run", run)

    return install


async def waiting(redis: Redis, name: str) -> list[bytes]:
    """Return the ids that wait, in a list or in a lane."""
    members: Any = await redis.zrange(f"{name}:lanes", 0, -1)
    found: list[bytes] = [member.partition(b"\0")[2][16:] for member in members]
    for which in ("queue", "held"):
        ids: Any = await redis.lrange(f"{name}:{which}", 0, -1)
        found += ids
    return found


async def add(queue: AsyncWorkQueue, number: int, **how: Any) -> list[str]:
    ids = [f"i{at:05}" for at in range(number)]
    await queue.add_items([Item(b"x", id=one) for one in ids], **how)
    return ids


@pytest.mark.parametrize("removed", [1, 700])
@pytest.mark.parametrize("kind", ["plain", "controlled"])
async def test_ids_that_are_cancelled_between_two_steps_hide_no_other(
    queue: AsyncWorkQueue,
    redis: Redis,
    name: str,
    after_each_step: Callable[[Hook], None],
    removed: int,
    kind: str,
) -> None:
    if kind == "controlled":
        await queue.limits.set(concurrency=5)
    ids = await add(queue, 3_000)
    cancelled: list[str] = []

    async def cancel(engine: Engine, script: str, arguments: dict[str, Any]) -> None:
        is_walk = script == "deep_clean_walk" or arguments.get("state") == b"laned"
        if engine is queue._engine() and is_walk and len(ids) > 1_000:
            # They are near the young end, so that they leave the list at once.
            for _ in range(0, removed, 50):
                young, ids[:] = ids[-min(removed, 50) :], ids[: -min(removed, 50)]
                cancelled.extend(young)
                await redis.unlink(*(f"{name}:item:{one}" for one in young))
                for one in young:
                    await redis.lrem(f"{name}:{'held' if kind == 'controlled' else 'queue'}", 1, one)

    after_each_step(cancel)
    report = await queue.deep_clean()
    assert cancelled
    assert (report.restored, report.findings) == (0, ())
    assert sorted(await waiting(redis, name)) == sorted(one.encode() for one in ids)
    assert (await queue.counts()).waiting == len(ids)
    assert not [key async for key in redis.scan_iter(match=f"{name}:lease:*")], "no mark is left"


async def test_two_cleaners_put_each_orphan_back_once(
    make_queue: MakeQueue, redis: Redis, name: str, after_each_step: Callable[[Hook], None]
) -> None:
    queue, other = make_queue(), make_queue()
    ids = await add(queue, 3_000)
    await redis.unlink(f"{name}:queue")
    reports: list[CleanReport] = []

    async def clean(engine: Engine, script: str, _: dict[str, Any]) -> None:
        # The other one cleans all when this one has just looked.
        if engine is queue._engine() and script == "deep_clean_walk" and not reports:
            reports.append(await other.deep_clean())

    after_each_step(clean)
    reports.append(await queue.deep_clean())
    assert sum(report.restored for report in reports) == len(ids)
    assert sorted(await waiting(redis, name)) == [one.encode() for one in ids]


@pytest.mark.parametrize("kind", ["plain", "controlled"])
async def test_any_number_of_cleaners_put_each_orphan_back_once(
    make_queue: MakeQueue, redis: Redis, name: str, kind: str
) -> None:
    queues = [make_queue() for _ in range(4)]
    if kind == "controlled":
        await queues[0].limits.set(concurrency=5)
    ids = await add(queues[0], 2_000, **({"group": "g"} if kind == "controlled" else {}))
    await redis.unlink(f"{name}:queue", f"{name}:held", f"{name}:lanes")
    await asyncio.gather(*(queue.deep_clean() for queue in queues))
    found = await waiting(redis, name)
    assert len(found) == len({*found})
    await queues[0].deep_clean()  # what one has marked for another is put back by the next clean
    assert sorted(await waiting(redis, name)) == [one.encode() for one in ids]


@pytest.mark.parametrize("every", [1, 2, 3])
async def test_a_clean_finds_nothing_in_a_queue_that_begins_and_ceases_to_be_controlled(
    make_queue: MakeQueue, redis: Redis, name: str, after_each_step: Callable[[Hook], None], every: int
) -> None:
    """What waits moves from `queue` to `held` and back all the time, as items with a priority come and go."""
    queue, other, steps = make_queue(), make_queue(), itertools.count(1)
    ids = await add(queue, 5_000)

    async def flip(engine: Engine, script: str, arguments: dict[str, Any]) -> None:
        is_walk = script == "deep_clean_walk" or arguments.get("state") == b"laned"
        if engine is queue._engine() and is_walk and next(steps) % every == 0:
            if await redis.exists(f"{name}:levels"):
                await other.complete_many(await other.lease_many(1, 30))
            else:
                await other.add_item(Item(b"", id="first"), priority=1)

    after_each_step(flip)
    report = await queue.deep_clean()
    assert (report.restored, report.findings) == (0, ())
    assert sorted(set(await waiting(redis, name)) - {b"first"}) == [one.encode() for one in ids]
    assert (await queue.counts()).waiting - await redis.exists(f"{name}:item:first") == len(ids)


@pytest.mark.parametrize(
    "then", ["nothing", "cancel", "add again", "replace", "delay", "lease", "lose options"]
)
@pytest.mark.parametrize("stops", [False, True], ids=["clean ends", "clean is stopped"])
async def test_items_that_a_walk_has_missed_keep_their_places_in_lanes(
    make_queue: MakeQueue, redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch, then: str, *, stops: bool
) -> None:
    queue, walk, looks = make_queue(), cleaning._drop_waiting, itertools.count()
    ids = await add(queue, 20, group="g")
    some, changed = ids[:5], [Item(b"y", id=one) for one in ids[:5]]
    if then == "lose options":
        await redis.unlink(f"{name}:options")
    keys = await redis.mget(f"{name}:lease:{one}" for one in ids)

    async def miss(engine: Engine, suspects: set[bytes]) -> None:
        if next(looks) == 0:
            return
        if then in {"cancel", "add again"}:
            await queue.cancel_many(some)
        if then in {"add again", "replace"}:
            await queue.add_items(changed, group="h", replace=then == "replace")
        elif then == "delay":
            await queue.add_items(changed, group="h", replace=True, delay=100)
        elif then == "lease":
            await queue.lease_many(5, 30)
        if stops:
            raise asyncio.CancelledError
        await walk(engine, suspects)

    monkeypatch.setattr(cleaning, "_drop_waiting", miss)
    monkeypatch.setattr(cleaning._Hashes, "__contains__", lambda *_: False)
    report, *_ = await asyncio.gather(queue.deep_clean(), return_exceptions=True)
    assert stops or (isinstance(report, CleanReport) and report.restored == 0)
    left = ids if then in {"nothing", "add again", "replace", "lose options"} else ids[5:]
    assert sorted(await waiting(redis, name)) == [one.encode() for one in left]
    if not stops and then in {"nothing", "lose options"}:
        assert await redis.mget(f"{name}:lease:{one}" for one in ids) == keys
    monkeypatch.undo()
    report = await queue.deep_clean()
    assert (report.restored, report.findings) == (0, ())
    assert sorted(await waiting(redis, name)) == [one.encode() for one in left]
    assert (await queue.admin.fsck()).findings == ()


@pytest.mark.parametrize("key", ["queue", "held", "lanes"])
async def test_fsck_drops_an_id_that_waits_twice(
    queue: AsyncWorkQueue, redis: Redis, name: str, key: str
) -> None:
    if key == "held":
        await queue.limits.set(concurrency=100)
    ids = await add(queue, 2_000, **({"group": "g"} if key == "lanes" else {}))
    if key == "lanes":
        twice = ids[3:23]
        added = {f"50g\0{9 * 10**15}{one}": 0 for one in twice}
        await redis.zadd(f"{name}:lanes", added)
    else:
        twice = ["i00003", "i00900", "i01999"]
        await redis.lpush(f"{name}:{key}", *twice[:2])
        await redis.rpush(f"{name}:{key}", *twice[2:])
    report = await queue.admin.fsck()
    [finding] = report.findings
    assert (finding.problem, finding.count) == ("two_places", len(twice))
    assert finding.examples
    assert {*finding.examples} <= {*twice}
    assert sorted(await waiting(redis, name)) == [one.encode() for one in ids]
    assert (await queue.counts()).waiting == len(ids)
    await queue.cancel_many(ids[3:23])
    assert len(await waiting(redis, name)) == len(ids) - 20, "the place of the entry that stays is known"
    assert await queue.admin.fsck() == CleanReport(examined=len(ids) - 20)
    first = await queue.lease_many(1, 30)
    assert first[0].id == ("i01999" if key != "lanes" else "i00000"), "the entry stays that is leased first"


@pytest.mark.parametrize("kind", ["plain", "controlled"])
@pytest.mark.parametrize("seed", range(2))
async def test_a_clean_finds_nothing_in_a_queue_that_is_used(
    make_queue: MakeQueue, redis: Redis, name: str, kind: str, seed: int
) -> None:
    """Clients add, cancel what was added a moment ago, add it again, lease and release."""
    dice, queue, users = random.Random(seed), make_queue(), make_queue()
    if kind == "controlled":
        await queue.limits.set(concurrency=500)
    left = {*await add(queue, 2_000)}
    young: list[str] = []
    is_cleaning = True

    async def use() -> None:
        while is_cleaning:
            new = [f"n{dice.random()}" for _ in range(20)]
            await users.add_items([Item(b"x", id=one) for one in new])
            young.extend(new)
            left.update(new)
            some = dice.sample(young[-200:], 15)
            await users.cancel_many(some)
            again = some[:5]
            await users.add_items([Item(b"x", id=one) for one in again])
            left.difference_update(some)
            left.update(again)
            leases = await users.lease_many(5, 60, block=False)
            await users.release_many(leases, front=dice.random() < 0.5)

    using = asyncio.create_task(use())
    reports = [await queue.deep_clean() for _ in range(3)]
    is_cleaning = False
    await using
    assert [report.restored for report in reports] == [0, 0, 0]
    found = await waiting(redis, name)
    assert {*found} >= {one.encode() for one in left}
    if kind == "plain":  # of a controlled queue, ids of cancelled items stay until they are met
        assert len(found) == len(left)


async def test_a_deep_clean_keeps_no_ids_of_items_that_wait(
    queue: AsyncWorkQueue, redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of 10 million would take more than a gigabyte."""
    kept: list[set[bytes]] = []
    drop = cleaning._drop_waiting

    async def note(engine: Engine, suspects: set[bytes]) -> None:
        kept.append({*suspects})
        await drop(engine, suspects)

    monkeypatch.setattr(cleaning, "_drop_waiting", note)
    await add(queue, 2_000)
    await queue.add_items([Item(b"x", id=f"laned{at}") for at in range(1_000)], group="g")
    await redis.set(f"{name}:item:lost", b"x")
    report = await queue.deep_clean()
    assert kept == [{b"lost"}, {b"lost"}]
    assert (report.examined, report.restored) == (3_001, 1)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("clean", ["light_clean", "deep_clean", "fsck"])
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize(
    "number", [pytest.param(2_000, id="short"), pytest.param(200_000, id="long", marks=pytest.mark.long)]
)
async def test_the_steps_of_a_clean_grow_as_the_number_of_items(
    make_queue: MakeQueue,
    redis: Redis,
    name: str,
    after_each_step: Callable[[Hook], None],
    clean: str,
    number: int,
    *,
    lost: bool,
) -> None:
    """Four times the items take at most four times the steps, of the same size."""
    steps: list[Counter[str]] = []

    async def count(_: Engine, script: str, arguments: dict[str, Any]) -> None:
        assert arguments.get("count", 0) <= (1000 if script == "deep_clean_walk" else 500)
        steps[-1][script] += 1

    after_each_step(count)
    for many in (number, 4 * number):
        queue = make_queue(name=f"{name}-{many}")
        steps.append(Counter())
        for delay in (0, 3600):
            ids = (Item(b"x", id=f"{delay}-{at}") for at in range(many))
            while some := [*itertools.islice(ids, 10_000)]:
                await queue.add_items(some, delay=delay)
        held = 0
        while held < many // 2:
            held += len(await queue.lease_many(1_000, 3600, block=False))
        if lost:
            await redis.unlink(f"{queue.name}:queue")
        steps[-1].clear()
        report = await getattr(queue.admin if clean == "fsck" else queue, clean)()
        assert report.restored == (many - held if lost and clean != "light_clean" else 0)
        assert (await queue.counts()).leased == held
    small, large = steps
    for script in large:
        # A scan may take a few more, and those of all keys meet the ones of the other queue, too.
        times = 6 if script in {"fsck_keys", "fsck_runs", "deep_clean_scan"} else 5
        assert large[script] <= times * small[script] + 10, script
    assert large.total() <= 6 * small.total()
