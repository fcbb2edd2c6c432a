"""Payloads are compressed and encrypted on the server, and nobody else needs to know."""

from __future__ import annotations

import asyncio
import logging
import pickle
import random
import sys
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from leasequeue import AsyncWorkQueue, Failure, InvalidArgument, Item, TaskQueue, Worker, lease_from
from leasequeue.codecs import MAGIC, AesGcm, Codec, Zstd, codec_in
from leasequeue.errors import UnreadablePayload
from leasequeue.item import MAX_DATA_BYTES
from tests.queue.asking import take, until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from redis.asyncio import Redis

    from tests.queue.fixtures import Clock, MakeQueue

pytestmark = pytest.mark.core

OLD, NEW = b"o" * 32, b"n" * 32
SECRET = b"a secret that compresses well. " * 100
BOTH = [Zstd(), AesGcm({"new": NEW, "old": OLD})]


class Folded:
    """A codec of a user: writes what is below its size as the name of a file."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def encode(self, data: bytes, item_id: str) -> tuple[str, bytes] | None:
        if data == b"disk full":
            raise OSError("no space left on device")
        self.files[item_id] = data
        return "claim check" if data == b"misnamed" else "file", item_id.encode()

    def decode(self, name: str, body: bytes, item_id: str) -> bytes | None:
        assert body.decode() in {item_id, "x"}
        return self.files[item_id] if name == "file" else None


async def stored(redis: Redis, name: str) -> list[bytes]:
    """Return all values that the server has of a queue."""
    return [await redis.dump(key) or b"" async for key in redis.scan_iter(f"*{name}*")]


async def data_of(redis: Redis, name: str, *ids: str) -> list[bytes]:
    """Return the data of items as the server has it."""
    values: list[Any] = await redis.mget(*(f"{name}:item:{one}" for one in ids))
    return values


async def everything(generator: AsyncGenerator[Any, None]) -> list[Any]:
    return [one async for one in generator]


@pytest.mark.parametrize("shards", [None, 2])
async def test_the_server_sees_no_payload_and_all_calls_do(
    make_queue: MakeQueue, redis: Redis, name: str, shards: int | None
) -> None:
    queue = make_queue(codec=AesGcm({"new": NEW}), shards=shards)
    item = Item(SECRET, id="a")
    assert await queue.add_item(item, tags=["red"], group="g")
    assert not await queue.add_item(item)
    await queue.schedules.every(3600, "s", SECRET)
    assert [
        view.data for view in (await queue.find("a"), *await queue.peek(), *await queue.inspect()) if view
    ] == ([SECRET] * 3)
    assert [one.data for one in [*await queue.tags.find("red"), *await queue.groups.peek("g")]] == [
        SECRET
    ] * 2
    assert [one.data for one in await queue.schedules.list()] == [SECRET]
    lease = await take(queue)
    assert lease.data == SECRET
    assert await queue.emit(lease, SECRET)
    assert not any(SECRET[:30] in value for value in await stored(redis, name))
    assert await queue.complete(lease, result=SECRET)
    assert await queue.results.get("a") == await queue.results.wait("a") == SECRET
    assert [chunk.value for chunk in await everything(queue.results.stream("a"))] == [SECRET]
    await queue.add_items([Item(SECRET, id="b")])
    await queue.fail(await take(queue), "why")
    assert [one.data for one in await queue.dead_letters.list()] == [SECRET]
    letter = await queue.dead_letters.get("b")
    assert letter is not None
    assert (letter.data, letter.size) == (SECRET, len(SECRET) + 40)
    assert not any(SECRET[:30] in value for value in await stored(redis, name))
    assert await queue.dead_letters.requeue("b") == [True]
    [lease] = await queue.lease_many(5, 30)
    assert await queue.complete_many([lease], results=[b""]) == [True]
    assert await queue.results.get("b") == b""


async def test_what_a_schedule_adds_can_be_read(make_queue: MakeQueue, clock: Clock) -> None:
    queue = make_queue(codec=BOTH, clock=clock)
    await queue.schedules.every(60, "s@home", SECRET)
    clock.now += 120
    await queue.schedules.tick()
    assert (await take(queue)).data == SECRET


async def test_a_pipeline_and_published_events_have_encoded_payloads(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    queue = make_queue(codec=BOTH)
    async with redis.pipeline(transaction=True) as pipeline:
        queue.add_item_to_pipeline(pipeline, Item(SECRET, id="a"))
        queue.add_unique_item_to_pipeline(pipeline, Item(SECRET, id="b"))
        await pipeline.execute()
    assert {codec_in(value) for value in await data_of(redis, name, "a", "b")} == {"aes.new"}
    await queue.events.publish()
    events = queue.events(live=True, kinds=["completed"])
    following = asyncio.ensure_future(anext(events))
    while not following.done():
        await queue.add_item(Item(b""))
        await queue.complete(await take(queue), result=SECRET)
        await asyncio.wait([following], timeout=0.01)
    assert following.result().result == SECRET
    await events.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "data", [MAGIC, MAGIC + b":x", MAGIC + b"zstd:x", MAGIC + b"no name!:x", b"\xff", b""]
)
async def test_no_bytes_are_mistaken_for_an_envelope(
    make_queue: MakeQueue, redis: Redis, name: str, data: bytes
) -> None:
    with_codec, without = make_queue(codec=Zstd()), make_queue()
    for writer in (with_codec, without):
        await writer.add_items([Item(data, id="a"), Item(data, id="b")])
        for reader in (with_codec, without):
            lease = await take(reader)
            assert lease.data == data
            assert await reader.complete(lease, result=data)
            assert await writer.results.get(lease.id) == data
    await redis.set(f"{name}:item:foreign", MAGIC + b"no name!:x")  # as the other libraries do
    await redis.lpush(f"{name}:queue", "foreign")
    assert (await take(with_codec)).data == MAGIC + b"no name!:x"


async def test_a_reader_without_the_key_gives_items_back(
    make_queue: MakeQueue, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    writer = make_queue(codec=BOTH, clock=clock)
    readers = [make_queue(codec=codec, clock=clock) for codec in (None, Zstd(), AesGcm({"new": OLD}))]
    await writer.add_item(Item(SECRET, id="a"))
    for reader in readers:
        with pytest.raises(UnreadablePayload) as caught:
            await reader.lease(30)
        assert (caught.value.item_id, caught.value.codec) == ("a", "aes.new")
        await until("it is given back", lambda: has(writer, scheduled=1))
        assert await writer.promote("a")
        with pytest.raises(UnreadablePayload):
            await lease_from([reader], 3, 30, block=False)
        await until("it is given back", lambda: has(writer, scheduled=1))
        clock.now += 11
    assert len([one for one in caplog.records if one.levelno == logging.WARNING]) == len(readers)
    await readers[0].add_item(Item(b"plain", id="b"))
    assert [one.id for one in await readers[0].lease_many(5, 30)] == ["b"], "others are not held up"
    await until("it is given back", lambda: has(writer, scheduled=1))
    clock.now += 11
    lease = await take(writer)
    assert (lease.data, lease.attempt) == (SECRET, 1)
    await writer.emit(lease, SECRET)
    await writer.complete(lease, result=SECRET)
    for call in (
        readers[0].results.get("a"),
        readers[0].results.wait("a"),
        everything(readers[0].results.stream("a")),
    ):
        with pytest.raises(UnreadablePayload):
            await call


async def has(queue: AsyncWorkQueue, **counts: int) -> bool:
    return counts.items() <= (await queue.counts())._asdict().items()


async def test_a_key_is_rotated_while_items_wait(make_queue: MakeQueue) -> None:
    for codec, key in (
        ({"old": OLD}, "old"),
        ({"old": OLD, "new": NEW}, "old"),
        ({"new": NEW, "old": OLD}, "new"),
    ):
        queue = make_queue(codec=AesGcm(codec))
        await queue.add_item(Item(SECRET))
        [view, *_] = await make_queue().inspect(start=-1)
        assert codec_in(view.data or b"") == f"aes.{key}"
    leases = await make_queue(codec=AesGcm({"new": NEW, "old": OLD})).lease_many(5, 30)
    assert [lease.data for lease in leases] == [SECRET] * 3


async def test_a_payload_cannot_be_changed_or_put_into_another_item(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    queue = make_queue(codec=AesGcm({"new": NEW}))
    await queue.add_items([Item(b"one", id="1"), Item(b"two", id="2")])
    one, two = await data_of(redis, name, "1", "2")
    for forged in (two, one[:-1] + bytes([one[-1] ^ 1]), one[:30], MAGIC + b"aes.new:"):
        await redis.set(f"{name}:item:1", forged)
        view = await queue.find("1")
        assert view is not None
        assert view.data == forged, "a view shows what is there"
    await queue.admin.move(f"{name}-other", ids=["2"])
    with pytest.raises(UnreadablePayload, match="bytes"):
        await queue.lease(30)
    moved = await make_queue(name=f"{name}-other", codec=AesGcm({"new": NEW})).lease(30)
    assert moved.data == b"two", "ids stay when items move"


async def test_a_queue_may_refuse_what_is_not_encrypted(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    queue = make_queue(codec=[Zstd(), AesGcm({"new": NEW}, only=True), Folded()])
    await redis.set(f"{name}:item:plain", b"forged")
    await redis.lpush(f"{name}:queue", "plain")
    await make_queue(codec=Zstd()).add_items([Item(SECRET, id="zstd"), Item(MAGIC, id="escaped")])
    await queue.add_item(Item(SECRET, id="good"))
    assert [lease.id for lease in await queue.lease_many(9, 30)] == ["good"]


async def test_small_payloads_are_not_compressed_and_none_grows(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    queue = make_queue(codec=Zstd(above=100))
    noise = random.Random(7).randbytes(1000)
    for item_id, data in (("small", b"s" * 100), ("noise", noise), ("large", b"l" * 101)):
        await queue.add_item(Item(data, id=item_id))
        assert (await take(queue)).data == data
    values = await data_of(redis, name, "small", "noise", "large")
    assert [codec_in(value) for value in values] == [None, None, "zstd"]
    assert len(values[2]) < 101


async def test_what_is_listed_is_limited_by_what_the_server_sends(make_queue: MakeQueue) -> None:
    queue = make_queue(codec=Zstd())
    await queue.add_items([Item(bytes(40_000), id=f"{at}") for at in range(251)], tags=["red"])
    pages = await queue.inspect(count=300), await queue.peek(300), await queue.tags.find("red", count=300)
    assert [len(views) for views in pages] == [251] * 3
    assert all(view.data for views in pages for view in views)
    await queue.add_items([Item(bytes(200_000), id=f"large {at}") for at in range(51)], priority=1)
    leases = await queue.lease_many(51, 60)
    await queue.fail_many([Failure(lease, "why") for lease in leases])
    assert [bool(letter.data) for letter in await queue.dead_letters.list()] == [True] * 51


async def test_what_unpacks_to_too_much_is_refused(make_queue: MakeQueue, redis: Redis, name: str) -> None:
    for item_id, sized in (("bomb", True), ("silent", False)):
        packed = zstandard.ZstdCompressor(write_content_size=sized).compress(bytes(MAX_DATA_BYTES + 1))
        await redis.set(f"{name}:item:{item_id}", MAGIC + b"zstd:" + packed)
    await redis.set(f"{name}:item:deep", MAGIC + b"file:deep")
    await redis.lpush(f"{name}:queue", "bomb", "silent", "deep")
    codec = Folded()
    codec.files["deep"] = MAGIC + b"file:deep"
    for problem in ("more than 67108864 bytes", "did not decompress full frame", "more than 8 envelopes"):
        with pytest.raises(UnreadablePayload, match=problem):
            await make_queue(codec=[Zstd(), codec]).lease(30)


async def test_a_codec_of_your_own(make_queue: MakeQueue, redis: Redis, name: str) -> None:
    codec = Folded()
    queue = make_queue(codec=codec)
    await queue.add_item(Item(SECRET, id="a"))
    assert await redis.get(f"{name}:item:a") == MAGIC + b"file:a"
    lease = await take(queue)
    assert lease.data == SECRET
    for wrong in (b"disk full", b"misnamed"):
        with pytest.raises(InvalidArgument, match=r"no space left|hyphens"):
            await queue.add_item(Item(wrong))
        with pytest.raises(InvalidArgument, match=r"no space left|hyphens"):
            await queue.complete(lease, result=wrong)
    codec.files.clear()
    await queue.release(lease)
    with pytest.raises(UnreadablePayload, match="KeyError"):
        await queue.lease(30)


async def test_what_a_codec_does_not_go_with(make_queue: MakeQueue) -> None:
    queue = make_queue(codec=Zstd())
    with pytest.raises(InvalidArgument, match="cancel by ids, or by a tag"):
        await queue.cancel_data(b"x")
    tasks = TaskQueue(queue.name, queue._engines._client, codec="tests.queue.test_codecs:BOTH")

    @tasks.task
    async def double(number: int) -> int:
        return 2 * number

    with pytest.raises(InvalidArgument, match="a queue without a codec: flow runs"):
        await double.call(1).then(double).add()
    await tasks.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda: AesGcm({}),
        lambda: AesGcm({"a": b"short"}),
        lambda: AesGcm({"a b": NEW}),
        lambda: AesGcm({"a" * 61: NEW}),
        lambda: Zstd(level=0),
        lambda: Zstd(above=-1),
        lambda: AsyncWorkQueue.from_url("redis://localhost", "q", codec="nowhere"),
        lambda: AsyncWorkQueue.from_url("redis://localhost", "q", codec="tests.queue.test_codecs:NEW"),
        lambda: AsyncWorkQueue.from_url("redis://localhost", "q", codec=[Zstd(), 7], shards=2),  # type: ignore[list-item]
    ],
)
def test_a_codec_that_cannot_be_used_is_refused(make: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert "short" not in str(caught.value)


@pytest.mark.parametrize("codec", BOTH)
def test_a_codec_can_be_pickled_and_shows_no_key(codec: Codec) -> None:
    copy = pickle.loads(pickle.dumps(codec))  # noqa: S301 - our own
    encoded = codec.encode(SECRET, "a")
    assert encoded is not None
    assert copy.decode(*encoded, "a") == SECRET
    assert NEW.decode() not in repr(codec)


@pytest.mark.slow
async def test_a_worker_without_the_key_releases_tasks_for_others(
    redis_url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither are attempts used up, nor does a handler see an envelope; the other worker gets all."""
    got: list[str] = []
    with_key = TaskQueue.from_url(redis_url, name, codec=BOTH)
    keyless = TaskQueue.from_url(redis_url, name)

    async def note(text: str) -> str:
        got.append(text)
        return text

    for tasks in (with_key, keyless):
        tasks.task(note)
    task = with_key.tasks[0]
    jobs = [await task.add(f"{SECRET.decode()}{number}") for number in range(3)]
    async with with_key, keyless:
        worker = asyncio.create_task(Worker(keyless, name="keyless").run())
        await until("all are given back", lambda: has(with_key.queue, scheduled=3))
        jobs.append(await keyless.tasks[0].add("plain"))
        await jobs[-1].result(timeout=60)
        assert got == ["plain"]
        other = asyncio.create_task(Worker(with_key, name="with key").run())
        done = asyncio.gather(*(job.result() for job in jobs[:3]))
        while not done.done():  # the worker without the key may lease them again
            await asyncio.gather(*(with_key.queue.promote(job.id) for job in jobs[:3]))
            await asyncio.wait([done], timeout=0.01)
        assert [len(one) for one in done.result()] == [len(SECRET) + 1] * 3
        for one in (worker, other):
            one.cancel()
        await asyncio.gather(worker, other, return_exceptions=True)
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len([one for one in warnings if "cannot be read" in one]) == 1, warnings


#: Completes items with their data as the result, without end. Its keys are those of some letters.
WORKER = """
import asyncio, sys
from leasequeue import AsyncWorkQueue
from leasequeue.codecs import AesGcm, Zstd
from leasequeue.errors import UnreadablePayload

async def work():
    codec = [Zstd(above=100), AesGcm({name: name.encode() * 32 for name in sys.argv[3]})]
    async with AsyncWorkQueue.from_url(sys.argv[1], sys.argv[2], codec=codec) as queue:
        while True:
            try:
                for lease in await queue.lease_many(3, 3600):
                    await queue.complete(lease, result=lease.data)
                    print("completed", flush=True)
            except UnreadablePayload:
                print("unreadable", flush=True)

asyncio.run(work())
"""


def keys_of(names: str) -> list[Codec]:
    return [Zstd(above=100), AesGcm({name: name.encode() * 32 for name in names})]


@pytest.mark.slow
async def test_nothing_is_lost_when_keys_are_rotated_while_workers_are_killed(
    make_queue: MakeQueue, redis_url: str, name: str
) -> None:
    """Also if a worker has missed the new key, and is killed when it gives items back."""
    data: dict[str, bytes] = {}
    for writes, reads in (("on", "o"), ("no", "on"), ("no", "o")):
        queue = make_queue(codec=keys_of(writes))
        workers = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", WORKER, redis_url, name, names), stdout=asyncio.subprocess.PIPE
            )
            for names in (writes, reads)
        ]
        try:
            last = "unreadable" if (writes, reads) == ("no", "o") else "completed"
            told = asyncio.gather(_read_lines(workers[0], "completed"), _read_lines(workers[1], last))
            while not told.done():
                ids = [f"i{len(data) + at}" for at in range(10 if await queue.queue_len() < 20 else 0)]
                data |= {one: one.encode() * 100 for one in ids}
                await queue.add_items([Item(data[one], id=one) for one in ids])
                await asyncio.wait([told], timeout=0.01)
            await told
        finally:
            for worker in workers:
                worker.kill()
                await worker.wait()
        await queue.admin.clear_leases()
    reader = make_queue(codec=keys_of("no"))
    for view in await reader.inspect("scheduled", count=1000, data=False):
        await reader.promote(view.id)

    async def is_drained() -> bool:
        leases = await reader.lease_many(250, 60, timeout=1)
        await reader.complete_many(leases, results=[lease.data for lease in leases])
        return (await reader.counts())[:] == (0, 0, 0, 0)

    # What was sent to a worker as it was killed is in its inbox for a minute.
    await until("all is done", is_drained)
    results = await asyncio.gather(*map(reader.results.get, data))
    assert [*results] == [*data.values()]


async def _read_lines(worker: asyncio.subprocess.Process, wanted: str) -> None:
    """Return when a worker has said something twice."""
    assert worker.stdout is not None
    count = 0
    while count < 2:
        line = await worker.stdout.readline()
        assert line, "it has ended"
        count += line.decode().strip() == wanted
