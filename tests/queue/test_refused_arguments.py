"""An invalid argument raises before anything is sent, and changes nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from inspect import signature
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pytest
import redis as redis_py
from redis.asyncio import RedisCluster

from leasequeue import AsyncWorkQueue, Failure, InvalidArgument, Item, Lease
from leasequeue.item import MAX_DATA_BYTES
from leasequeue.keys import FAMILIES
from tests.queue.asking import take
from tests.queue.keyspace import snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue.testing import Proxy
    from tests.queue.fixtures import MakeQueue

LONGEST = 30 * 24 * 3600
NO_DURATIONS: list[Any] = [
    *(-1, -0.001, math.nan, math.inf, -math.inf, LONGEST + 1, 1e300),
    *(timedelta(seconds=-1), timedelta(days=31), timedelta.max),
    *("30", b"30", "", None, True, False, 1j, [], [30]),
]
NO_AGES: list[Any] = [bad for bad in NO_DURATIONS if bad not in (LONGEST + 1, timedelta(days=31))]
NO_LEASE_TIMES: list[Any] = [0, 0.0, -0.0, timedelta(0), *NO_DURATIONS]
#: None is none: no limit, or not to keep it.
NO_TIMEOUTS: list[Any] = [bad for bad in NO_LEASE_TIMES if bad is not None]
#: Of a call that does not wait, for which 0 is right.
UNUSED_TIMEOUTS: list[Any] = [bad for bad in NO_DURATIONS if bad is not None]
#: Of seconds that may be 0 and many.
NO_SPANS: list[Any] = [-1, math.nan, "soon", True]
NO_COUNTS: list[Any] = [0, -1, 1001, 10**30, 1.0, math.nan, "1", None, True, [1]]
NO_ITEMS: list[Any] = [None, b"bytes", "text", 5, {"data": b"x"}, (b"x", "id"), Item]
NO_IDS: list[Any] = [
    *("", "x" * 513, "é" * 257, "x" * 511 + "é", "€" * 171, "🙂" * 129, "\ud800", "ok\udcff"),
    *(b"id", 5, 0, 1.5, True, ["id"], object()),
]
NO_DATA: list[Any] = [None, 5, 1.5, True, ["x"], {"a": 1}, object(), "\ud800", iter(b"x"), Item(b"x")]
NO_TIMES: list[Any] = [datetime(2030, 1, 1), time.time(), "2030-01-01", 0, False, timedelta(1)]  # noqa: DTZ001
SOON = datetime(2030, 1, 1, tzinfo=UTC)
NO_RESULTS: list[Any] = ["text", 5, bytearray(b"x"), {}, bytes(MAX_DATA_BYTES + 1)]
NO_ERRORS: list[Any] = [None, b"why", 5, ValueError]
NO_WAITS: list[Any] = [bad for bad in NO_DURATIONS if bad is not None]
NO_KNOWN_IDS: list[Any] = ["\ud800", b"id", 5, None, ["x"]]
NO_STARTS: list[Any] = [1.0, "0", None, True, 10**30]
NO_INTERVALS: list[Any] = [*NO_LEASE_TIMES, 0.0004, timedelta(microseconds=499)]
NO_SCHEDULES: list[Any] = [*NO_IDS, "x" * 488, "é" * 244]
NO_FLAGS: list[Any] = [None, 0, 1, "", "yes", b"1", []]
NO_LEVELS: list[Any] = [-10, 10, 1.0, "1", None, True]
NO_GROUPS: list[Any] = ["", "x" * 257, "é" * 129, "a\0b", "\ud800", b"group", 5, True, ["group"]]
NO_LISTS: list[Any] = [None, 5, "text", b"bytes", {"a": 1}, object()]
NO_POLICIES: list[Any] = ["", "never", "Once", b"once", None, True, 0, ["once"]]
NO_NAMES: list[Any] = ["", "x" * 513, "é" * 257, "\ud800", b"name", None, 5, True, ["name"]]

ITEM = Item(b"never sent", id="never-sent")

#: What each argument refuses, in all calls; with the name of a call, what it refuses there.
REFUSED: dict[str, list[Any]] = {
    **dict.fromkeys(["replace", "block", "fenced", "front", "data", "scheduled", "dead", "note"], NO_FLAGS),
    **dict.fromkeys(["expires_in", "dedupe_for", "timeout"], NO_TIMEOUTS),
    **dict.fromkeys(["age", "elapsed"], NO_AGES),
    **dict.fromkeys(["keep", "horizon"], NO_SPANS),
    "at": NO_TIMES,
    "catch_up": NO_POLICIES,
    "count": NO_COUNTS,
    "delay": NO_DURATIONS,
    "error": NO_ERRORS,
    "expression": ["", "* * * *", "60 * * * *", "0 0 31 2 *", None, 5, b"* * * * *"],
    "failures": [*NO_LISTS, [ITEM], [None]],
    "group": NO_GROUPS,
    "interval": NO_INTERVALS,
    "item": NO_ITEMS,
    "item_id": NO_KNOWN_IDS,
    "item_ids": ["ab", b"ab", 5, None],
    "items": [*NO_LISTS, ITEM],
    "lease": [*NO_ITEMS, ITEM],
    "lease_time": NO_LEASE_TIMES,
    "leases": NO_LISTS,
    "name": NO_SCHEDULES,
    "priority": NO_LEVELS,
    "result": NO_RESULTS,
    "results": [*NO_LISTS[1:], [], [b"", b""]],
    "retry_in": NO_WAITS,
    "start": NO_STARTS,
    "state": ["", "ready", b"waiting", None, 0, []],
    "tz": ["", "Nowhere", "../x", "Europe", None, UTC],
    "cancel_data data": [7, None, []],
    "cancel_data limit": [0, -1, True],
    "admin.clear_leases count": [0, -1, True],
    "events.keep count": [0, -1, True],
    "events.keep age": [0, -1, math.nan],
    "schedules.every data": NO_DATA,
    "schedules.every start": NO_TIMES,
    "schedules.cron data": NO_DATA,
    "schedules.remove name": NO_KNOWN_IDS,
}
#: The arguments of each call that are checked.
ARGUMENTS = {
    "add_item": "item delay at priority group expires_in dedupe_for replace",
    "add_unique_item": "item delay at priority group expires_in",
    "add_items": "items delay at priority group expires_in dedupe_for replace",
    "lease": "lease_time timeout block",
    "lease_many": "count lease_time timeout block",
    "peek": "count data",
    "complete": "lease fenced result",
    "complete_many": "leases fenced results",
    "renew": "lease lease_time",
    "renew_many": "leases lease_time",
    "release": "lease delay front",
    "release_many": "leases delay front",
    "fail": "lease error retry_in",
    "fail_many": "failures",
    "cancel": "item_id keep",
    "cancel_many": "item_ids",
    "cancel_data": "data limit keep",
    "promote": "item_id",
    "set_priority": "item_id priority",
    "find": "item_id data",
    "inspect": "state start count data",
    "stats": "horizon note",
    "results.get": "item_id",
    "results.wait": "item_id timeout",
    "dead_letters.get": "item_id",
    "dead_letters.list": "start count data",
    "dead_letters.drop_older_than": "age",
    "events.keep": "count age",
    "schedules.every": "interval name data start catch_up",
    "schedules.cron": "expression name data tz catch_up",
    "schedules.remove": "name",
    "admin.recover": "count elapsed lease_time",
    "admin.clear_leases": "count elapsed",
    "admin.purge": "scheduled dead",
}

Call = Callable[[AsyncWorkQueue, Lease, Any], Awaitable[Any]]
#: Values within others, and arguments that depend on others, by the name in the error.
NESTED: list[tuple[str, list[Any], Call]] = [
    ("item", NO_ITEMS, lambda q, _, bad: q.add_items([ITEM, bad])),
    ("at", [SOON], lambda q, _, bad: q.add_item(ITEM, delay=5, at=bad)),
    ("timeout", UNUSED_TIMEOUTS, lambda q, _, bad: q.lease(30, block=False, timeout=bad)),
    ("timeout", UNUSED_TIMEOUTS, lambda q, _, bad: q.lease_many(5, 30, block=False, timeout=bad)),
    ("lease", REFUSED["lease"], lambda q, ok, bad: q.complete_many([ok, bad])),
    ("lease", REFUSED["lease"], lambda q, ok, bad: q.renew_many([ok, bad], 30)),
    ("lease", REFUSED["lease"], lambda q, ok, bad: q.release_many([ok, bad])),
    ("result", NO_RESULTS, lambda q, ok, bad: q.complete_many([ok, ok], results=[b"", bad])),
    ("keep_result", NO_TIMEOUTS, lambda q, ok, bad: q.complete(ok, result=b"", keep_result=bad)),
    ("keep_result", NO_TIMEOUTS, lambda q, ok, bad: q.complete_many([ok], results=[b""], keep_result=bad)),
    ("error", NO_ERRORS, lambda q, ok, bad: q.fail(ok, bad, retry_in=1)),
    ("lease", REFUSED["lease"], lambda q, ok, bad: q.fail_many([Failure(ok, "why"), Failure(bad, "why")])),
    ("error", NO_ERRORS, lambda q, ok, bad: q.fail_many([Failure(ok, bad)])),
    ("retry_in", NO_WAITS, lambda q, ok, bad: q.fail_many([Failure(ok, "why", bad)])),
    ("item_id", NO_KNOWN_IDS, lambda q, _, bad: q.dead_letters.requeue("a", bad)),
    ("item_id", NO_KNOWN_IDS, lambda q, _, bad: q.dead_letters.drop("a", bad)),
]


#: Arguments that are right, of calls that need them.
RIGHT: dict[str, Any] = {
    **dict.fromkeys(["age", "count", "elapsed", "interval", "lease_time", "priority"], 1),
    **dict.fromkeys(["data", "error", "item_id", "name"], "a"),
    "item": ITEM,
    "items": [ITEM],
    "item_ids": ["a"],
    "expression": "* * * * *",
}


async def call_of(method: str, queue: AsyncWorkQueue, held: Lease, /, **arguments: Any) -> Any:
    """Call a method with these arguments, and right ones for all others that have no default."""
    made, right = attrgetter(method)(queue), {**RIGHT, "lease": held, "leases": [held]}
    right["failures"] = [Failure(held, "why")]
    needed = [one.name for one in signature(made).parameters.values() if one.default is one.empty]
    return await made(**{name: right[name] for name in needed if name in right} | arguments)


def wrong_calls(method: str) -> Iterator[tuple[str, list[Any], Call]]:
    """Yield for each argument of a method its name, what it refuses, and a call that is right but for it."""
    for argument in ARGUMENTS[method].split():
        refused = REFUSED.get(f"{method} {argument}") or REFUSED[argument]
        yield argument, refused, lambda q, ok, bad, name=argument: call_of(method, q, ok, **{name: bad})  # type: ignore[misc]  # mypy 17372


def check(error: InvalidArgument, argument: str) -> None:
    """Check that the error names the argument, the given value and the allowed ones."""
    assert isinstance(error, ValueError)
    assert error.argument == argument
    assert error.given
    assert error.allowed
    assert str(error) == f"{argument}: got {error.given}, expected {error.allowed}"
    assert len(str(error)) < 400, "an error has to be readable"


def accepted(make: Callable[[Any], Any], argument: str, bad_values: list[Any]) -> list[Any]:
    wrong = []
    for bad in bad_values:
        try:
            make(bad)
        except InvalidArgument as error:
            check(error, argument)
        else:
            wrong.append(bad)
    return wrong


@pytest.mark.parametrize("method", [*ARGUMENTS, "nested"])
async def test_nothing_is_sent(
    make_queue: MakeQueue, queue: AsyncWorkQueue, redis: Redis, proxy: Proxy, method: str
) -> None:
    watched = make_queue(url=proxy.url)
    await queue.add_items([Item(b"1"), Item(b"2")])
    lease = await take(watched)
    before, sent = await snapshot(redis), list(proxy.commands)
    wrong = []
    for argument, bad_values, call in NESTED if method == "nested" else wrong_calls(method):
        for bad in bad_values:
            try:
                await call(watched, lease, bad)
            except InvalidArgument as error:
                check(error, argument)
            else:
                wrong.append((argument, bad))
    assert not wrong, "these were accepted"
    assert proxy.commands == sent
    assert await snapshot(redis) == before


async def test_an_invalid_argument_opens_no_connection(make_queue: MakeQueue, proxy: Proxy) -> None:
    queue = make_queue(url=proxy.url)
    with pytest.raises(InvalidArgument):
        await queue.lease(0)
    with pytest.raises(InvalidArgument):
        await queue.add_items([ITEM], delay=-1)
    assert proxy.commands == []


async def test_a_lease_of_another_queue_is_refused(make_queue: MakeQueue, redis: Redis, name: str) -> None:
    ours, others = make_queue(), make_queue(name=f"{name}-other")
    await others.add_item(ITEM)
    lease = await take(others)
    before = await snapshot(redis)
    for call in (ours.complete(lease), ours.renew(lease, 30), ours.release(lease), ours.fail(lease, "why")):
        with pytest.raises(InvalidArgument) as caught:
            await call
        check(caught.value, "lease")
        assert repr(name) in str(caught.value)
    assert await snapshot(redis) == before


@pytest.mark.parametrize("unique", [False, True])
async def test_pipelines_are_left_empty(queue: AsyncWorkQueue, redis: Redis, *, unique: bool) -> None:
    pipeline = redis.pipeline()
    put: Callable[..., None] = queue.add_unique_item_to_pipeline if unique else queue.add_item_to_pipeline
    assert not accepted(lambda bad: put(pipeline, bad), "item", NO_ITEMS)
    assert not accepted(lambda bad: put(pipeline, ITEM, delay=bad), "delay", NO_DURATIONS)
    assert not accepted(lambda bad: put(pipeline, ITEM, at=bad), "at", NO_TIMES)
    assert len(pipeline) == 0


@pytest.mark.seed("RRQ-B3")
def test_ids() -> None:
    assert not accepted(lambda bad: Item(b"x", id=bad), "id", NO_IDS)
    assert not accepted(lambda bad: Item.from_json_data({}, id=bad), "id", NO_IDS)
    assert not accepted(lambda bad: Item.from_dict({"data": b"x", "id": bad}), "id", NO_IDS)


def test_data() -> None:
    assert not accepted(Item, "data", NO_DATA)
    assert not accepted(Item.with_content_id, "data", NO_DATA)
    assert not accepted(lambda bad: Item.from_dict({"data": bad}), "data", NO_DATA)
    assert not accepted(Item.from_dict, "fields", [{}, {"id": "x"}, [], None, "x", b"x", [("data", b"x")]])
    assert not accepted(Item.parse, "text", ["{", "", b"\xff\xfe\xfd", None, 5, "[" * 100_000])
    assert not accepted(Item.parse, "fields", ["[]", "1", "null", '"data"', '{"id":"a"}'])
    endless: list[Any] = []
    endless.append(endless)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    not_json: list[Any] = [object(), {1: object()}, b"x", {(1, 2): 3}, {1, object()}, endless, deep]
    not_json += [float("nan"), {"x": [float("inf")]}, b"x"[:0], "\ud800".encode("utf-16", "surrogatepass")]
    assert not accepted(Item.from_json_data, "obj", not_json)


@pytest.mark.parametrize("kind", [bytes, bytearray, lambda size: memoryview(bytes(size)), "x".__mul__])
def test_the_limit_of_data_is_64_mib(kind: Callable[[int], Any]) -> None:
    assert MAX_DATA_BYTES == 64 * 2**20
    assert len(Item(kind(MAX_DATA_BYTES)).data) == MAX_DATA_BYTES
    with pytest.raises(InvalidArgument) as caught:
        Item(kind(MAX_DATA_BYTES + 1))
    check(caught.value, "data")
    assert str(MAX_DATA_BYTES) in caught.value.allowed


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_name_whose_keys_would_be_those_of_another_queue_is_refused(redis: Redis, family: str) -> None:
    bad = [f"shop:{family}", f"shop:{family}:b", f"shop:eu:{family}:b:c", f"{{shop}}:{family}"]
    assert not accepted(lambda name: AsyncWorkQueue(name, redis), "name", bad)
    with pytest.raises(InvalidArgument, match=f"'shop:eu:{family}:' belong to the queue 'shop:eu'"):
        AsyncWorkQueue(f"shop:eu:{family}", redis)
    for fine in (family, f"{family}:shop", f"shop:{family}z", f"shop{family}", f"shop:{family.upper()}"):
        assert AsyncWorkQueue(fine, redis).name == fine


def test_names_and_settings(redis: Redis) -> None:
    assert not accepted(lambda bad: AsyncWorkQueue(bad, redis), "name", NO_NAMES)
    assert not accepted(lambda bad: AsyncWorkQueue.from_url("redis://127.0.0.1", bad), "name", NO_NAMES)
    assert not accepted(
        lambda bad: AsyncWorkQueue("q", redis, return_to=bad), "return_to", ["middle", "", None, 5, b"end"]
    )
    assert not accepted(
        lambda bad: AsyncWorkQueue("q", redis, reply_timeout=bad), "reply_timeout", NO_LEASE_TIMES
    )


def test_clients_and_urls(redis: Redis) -> None:
    with redis_py.Redis() as plain:
        clients: list[Any] = [None, "redis://127.0.0.1", plain, redis.connection_pool]
        assert not accepted(lambda bad: AsyncWorkQueue("q", bad), "redis", clients)
    urls: list[Any] = [
        "",
        "127.0.0.1:6379",
        "http://127.0.0.1",
        "redis://127.0.0.1:port",
        None,
        5,
        b"redis://x",
    ]
    assert not accepted(lambda bad: AsyncWorkQueue.from_url(bad, "q"), "url", urls)


async def test_a_name_without_a_tag_is_refused_on_a_cluster() -> None:
    cluster = RedisCluster(host="127.0.0.1", port=1)  # connects when it is first used, so never here
    try:
        untagged = [
            "emails",
            "{}",
            "{}emails",
            "{emails",
            "emails{",
            "emails}",
            "}emails{",
            "a{}b{tag}",
            "}{",
        ]
        assert not accepted(lambda bad: AsyncWorkQueue(bad, cluster), "name", untagged)
        with pytest.raises(InvalidArgument, match=r"'\{emails\}'"):
            AsyncWorkQueue("emails", cluster)
        for fine in ("{emails}", "shop:{emails}", "a{b}c", "{a}{b}", "{a}{}", "{{a}", "x{{y}}", "{a b}"):
            AsyncWorkQueue(fine, cluster)
    finally:
        await cluster.aclose()


SET_LATER: list[tuple[str, Any]] = [
    *(("id", bad) for bad in ["", "x" * 513, "é" * 257, "\ud800", b"id", 5, None]),
    *(("data", bad) for bad in [None, "text", ["x"], (b"x",), 5, bytearray(b"x"), bytes(MAX_DATA_BYTES + 1)]),
]


@pytest.mark.parametrize(("attribute", "bad"), SET_LATER, ids=lambda value: repr(value)[:12])
async def test_an_attribute_that_was_set_after_the_item_was_made_is_checked(
    queue: AsyncWorkQueue, redis: Redis, attribute: str, bad: Any
) -> None:
    item = Item(b"x", id="x")
    setattr(item, attribute, bad)
    with pytest.raises(InvalidArgument, match=rf"^{attribute}: got "):
        await queue.add_item(item)
    with pytest.raises(InvalidArgument, match=rf"^{attribute}: got "):
        await queue.add_items([Item(b"fine"), item])
    assert await snapshot(redis) == {}
    assert await queue.add_item(Item(b"fine", id="fine"))
    assert await queue.counts() == (1, 0, 0, 0)


async def test_leases_may_come_from_a_generator(queue: AsyncWorkQueue) -> None:
    """They are read once: what follows from the answers needs them again."""
    await queue.add_items([Item(b"x") for _ in range(4)])
    leases = await queue.lease_many(4, 30)
    before = leases[0].deadline
    assert await queue.renew_many((lease for lease in leases), 60) == [True] * 4  # type: ignore[arg-type]
    assert leases[0].deadline > before
    first, *others = leases
    assert await queue.fail_many(Failure(one, "bad", 0) for one in [first]) == [True]  # type: ignore[arg-type]
    results: Any = (b"" for _ in others)
    assert await queue.complete_many(iter(others), results=results) == [True] * 3  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [None, 5, object()])
async def test_what_is_no_pipeline_is_refused(queue: AsyncWorkQueue, bad: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"pipeline: got .*, expected a pipeline of redis-py"):
        queue.add_item_to_pipeline(bad, ITEM)


async def test_an_unknown_option_of_an_item_is_refused_with_those_that_there_are(
    queue: AsyncWorkQueue,
) -> None:
    item, wrong = Item(b"x"), {"prio": 3}
    known = "options are delay, at, priority, group, tags, weight, expires_in, dedupe_for, "
    known += "unique_until_start, replace$"
    with pytest.raises(TypeError, match=f"'prio': {known}"):
        await queue.add_item(item, **wrong)  # type: ignore[arg-type]  # that is the test
    with pytest.raises(TypeError, match=f"'prio': {known}"):
        await queue.add_items([item], **wrong)  # type: ignore[arg-type]  # as above
    known = "without a check of the id, options are delay, at, priority, group, tags, weight, expires_in$"
    with pytest.raises(TypeError, match=f"'prio': {known}"):
        await queue.add_unique_item(item, **wrong)  # type: ignore[arg-type]  # as above
    assert (await queue.counts()).total == 0
