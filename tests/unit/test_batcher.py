"""The batcher: which calls share a trip, and the answer of each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from leasequeue import ConnectionLost, LeasequeueError
from leasequeue.keys import QueueKeys
from leasequeue.queue.engine import BATCHED
from leasequeue.wire.batcher import Batcher
from leasequeue.wire.runner import BoundScript
from leasequeue.wire.scripts import load
from tests.history.recording import BATCHED_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasequeue.wire.connection import OnReply
    from leasequeue.wire.runner import Runner

#: Any script: a batcher does not look into it.
SCRIPT = BoundScript("add_items", QueueKeys("queue", "session"))


class Uncopyable(Exception):
    """An error that `copy.copy` fails with."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


class Server:
    """Records the trips and answers them on demand: each row with itself in capitals."""

    def __init__(self) -> None:
        self.trips: list[list[bytes]] = []
        self._replies: list[OnReply] = []
        self._answered = 0
        self.refusal: Exception | None = None
        self.reply_timeout = 3600.0

    def send(
        self, script: BoundScript, rest: Iterable[bytes], on_reply: OnReply, /, **_: bytes | int
    ) -> None:
        assert script is SCRIPT
        if self.refusal is not None:
            raise self.refusal
        self.trips.append([*rest])
        self._replies.append(on_reply)

    @property
    def under_way(self) -> int:
        return len(self.trips) - self._answered

    def answer(self) -> None:
        """Answer the oldest trip."""
        at, self._answered = self._answered, self._answered + 1
        self._replies[at]([row.upper() for row in self.trips[at]], None)

    def reply(self, reply: object) -> None:
        """Answer the oldest trip with a reply of any shape."""
        at, self._answered = self._answered, self._answered + 1
        self._replies[at](reply, None)

    def fail(self, error: Exception) -> None:
        """Fail the oldest trip."""
        at, self._answered = self._answered, self._answered + 1
        self._replies[at](None, error)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def batcher(server: Server) -> Batcher:
    return Batcher(
        cast("Runner", server), SCRIPT, max_rows=3, max_bytes=1000, max_waiting_bytes=2000, max_in_flight=1
    )


async def turn() -> None:
    """Let the event loop run all tasks that are ready."""
    for _ in range(5):
        await asyncio.sleep(0)


async def occupy(server: Server, batcher: Batcher) -> asyncio.Future[list[Any]]:
    """Make a lone call, which is sent at once, so that the next ones gather."""
    first = call(batcher, b"first")
    await asyncio.sleep(0)
    assert server.trips == [[b"first"]]
    return first


def call(batcher: Batcher, *rows: bytes, size: int = 10) -> asyncio.Future[list[Any]]:
    return asyncio.ensure_future(batcher.call(rows, row_count=len(rows), size=size))


@pytest.mark.parametrize(
    ("rows", "sizes", "trips"),
    [
        pytest.param(["a"], [10], ["a"], id="a single call"),
        pytest.param(["a", "b", "c"], [10, 10, 10], ["abc"], id="concurrent calls share a trip"),
        pytest.param(["a", "b", "c", "d"], [10] * 4, ["abc", "d"], id="a trip has at most 3 rows"),
        pytest.param(["a", "bcd", "ef"], [10] * 3, ["a", "bcd", "ef"], id="a call is not divided"),
        pytest.param(["ab", "c"], [10] * 2, ["abc"], id="calls of several rows share a trip"),
        pytest.param(["a", "b", "c"], [600, 400, 1], ["ab", "c"], id="a trip has at most 1000 bytes"),
        pytest.param(["a", "b", "c"], [1, 5000, 1], ["a", "b", "c"], id="too large a call goes alone"),
    ],
)
async def test_concurrent_calls_share_bounded_trips(
    server: Server, batcher: Batcher, rows: list[str], sizes: list[int], trips: list[str]
) -> None:
    """While the first call is in flight, the others gather."""
    first = await occupy(server, batcher)
    split = [[letter.encode() for letter in letters] for letters in rows]
    calls = [call(batcher, *letters, size=size) for letters, size in zip(split, sizes, strict=True)]
    for number in range(len(trips) + 1):
        await turn()
        assert [b"".join(trip).decode() for trip in server.trips] == ["first", *trips[:number]]
        server.answer()
    assert await first == [b"FIRST"]
    answers = await asyncio.gather(*calls)
    assert answers == [[letter.upper() for letter in letters] for letters in split]


async def test_where_calls_come_together_the_first_waits_for_the_others(
    server: Server, batcher: Batcher
) -> None:
    """The first call of a turn goes alone only if the trip before carried a single call."""
    await occupy(server, batcher)
    for rows in ([b"a", b"b"], [b"c", b"d"], [b"e"], [b"f", b"g"]):
        calls = [call(batcher, row) for row in rows]
        await turn()
        while server.under_way:
            server.answer()
        await asyncio.gather(*calls)
    assert server.trips == [[b"first"], [b"a", b"b"], [b"c", b"d"], [b"e"], [b"f"], [b"g"]]


@pytest.mark.parametrize(
    "error", [MemoryError(), ConnectionLost("cut", maybe_applied=False), Uncopyable("a", "b")]
)
async def test_a_batcher_goes_on_after_sending_has_failed(server: Server, error: Exception) -> None:
    """Each caller gets the error, and no trip counts as in flight for ever."""
    batcher = Batcher(cast("Runner", server), SCRIPT, max_rows=3, max_in_flight=2)
    server.refusal = error
    for _ in range(3):
        calls = [call(batcher, b"%d" % n) for n in range(10)]
        async with asyncio.timeout(120):
            for answer in await asyncio.gather(*calls, return_exceptions=True):
                assert type(answer) is type(error)
            await batcher.drained()
    server.refusal = None
    after = call(batcher, b"a")
    await turn()
    server.answer()
    assert await after == [b"A"]


async def test_a_reply_that_is_no_list_fails_its_callers(server: Server, batcher: Batcher) -> None:
    first = await occupy(server, batcher)
    server.reply(b"OK")
    with pytest.raises(AssertionError, match="not a list"):
        await first
    await batcher.drained()


async def test_max_in_flight_trips_are_in_flight_at_once(server: Server) -> None:
    batcher = Batcher(cast("Runner", server), SCRIPT, max_rows=1, max_in_flight=2)
    calls = [call(batcher, row) for row in (b"a", b"b", b"c", b"d")]
    await turn()
    assert (server.trips, server.under_way) == ([[b"a"], [b"b"]], 2)
    server.answer()
    await turn()
    assert (server.trips[2:], server.under_way) == ([[b"c"]], 2)
    for _ in range(3):
        server.answer()
        await turn()
    assert await asyncio.gather(*calls) == [[b"A"], [b"B"], [b"C"], [b"D"]]


async def test_a_call_cancelled_before_its_trip_is_not_sent(server: Server, batcher: Batcher) -> None:
    first = call(batcher, b"a")
    await turn()
    calls = [call(batcher, row) for row in (b"b", b"c", b"d")]
    await turn()
    calls[1].cancel()
    await turn()
    server.answer()
    await turn()
    assert server.trips == [[b"a"], [b"b", b"d"]]
    server.answer()
    answers = await asyncio.gather(first, *calls, return_exceptions=True)
    assert [answers[0], answers[1], answers[3]] == [[b"A"], [b"B"], [b"D"]]
    assert isinstance(answers[2], asyncio.CancelledError)


async def test_a_call_cancelled_during_its_trip_affects_no_other(server: Server, batcher: Batcher) -> None:
    await occupy(server, batcher)
    calls = [call(batcher, b"a"), call(batcher, b"b1", b"b2")]
    second = [call(batcher, b"d"), call(batcher, b"e1", b"e2")]
    for trip, cancelled in (([b"a", b"b1", b"b2"], calls[1]), ([b"d", b"e1", b"e2"], second[0])):
        await turn()
        server.answer()
        await turn()
        assert server.trips[-1] == trip
        cancelled.cancel()
    await turn()
    server.answer()
    assert await second[1] == [b"E1", b"E2"]
    assert await calls[0] == [b"A"]
    assert second[0].cancelled()
    assert calls[1].cancelled()


async def test_when_all_are_cancelled_nothing_is_sent(server: Server, batcher: Batcher) -> None:
    calls = [call(batcher, b"a"), call(batcher, b"b")]
    first = asyncio.get_running_loop().create_future()
    first.set_result(None)
    await first
    for each in calls:
        each.cancel()
    await turn()
    assert server.under_way == len(server.trips)
    while server.under_way:
        server.answer()
    await batcher.drained()
    after = call(batcher, b"c")
    await turn()
    server.answer()
    assert await after == [b"C"]


async def test_a_trip_that_fails_fails_all_its_callers_and_no_other(server: Server, batcher: Batcher) -> None:
    await occupy(server, batcher)
    calls = [call(batcher, row) for row in (b"a", b"b", b"c", b"d")]
    await turn()
    server.answer()
    server.fail(ConnectionLost("cut", maybe_applied=True))
    await turn()
    server.answer()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    lost = answers[:3]
    assert all(isinstance(each, ConnectionLost) and each.maybe_applied for each in lost)
    assert len({str(each) for each in lost}) == 1
    assert answers[3] == [b"D"]


async def test_the_error_of_a_trip_keeps_its_facts_for_each_caller(server: Server, batcher: Batcher) -> None:
    error = ConnectionLost("cut", maybe_applied=False)
    error.__cause__ = OSError("cable")
    await occupy(server, batcher)
    calls = [call(batcher, b"a"), call(batcher, b"b")]
    await turn()
    server.answer()
    server.fail(error)
    for each in calls:
        with pytest.raises(LeasequeueError) as raised:
            await each
        assert isinstance(raised.value, ConnectionLost)
        assert raised.value.maybe_applied is False
        assert raised.value.__cause__ is error.__cause__


async def test_callers_wait_while_too_many_bytes_wait(server: Server, batcher: Batcher) -> None:
    first = call(batcher, b"a", size=1000)
    await turn()
    waiting = [call(batcher, b"b", size=1000), call(batcher, b"c", size=1000)]
    await turn()
    held_back = [call(batcher, b"d"), call(batcher, b"e")]
    await turn()
    assert batcher._small.waiting_bytes == 2000
    held_back[0].cancel()
    for _ in range(4):
        if server.under_way:
            server.answer()
        await turn()
    assert server.trips[:3] == [[b"a"], [b"b"], [b"c"]]
    assert server.trips[3:] == [[b"e"]]
    assert [await each for each in (first, *waiting, held_back[1])] == [[b"A"], [b"B"], [b"C"], [b"E"]]
    assert batcher._small.waiting_bytes == 0


async def test_settled_waits_for_calls_in_flight(server: Server, batcher: Batcher) -> None:
    await batcher.drained()
    calls = [call(batcher, row) for row in (b"a", b"b", b"c", b"d")]
    await turn()
    settled = asyncio.ensure_future(batcher.drained())
    await turn()
    assert not settled.done()
    server.answer()
    await turn()
    assert not settled.done(), "one more trip is in flight"
    server.fail(ConnectionLost("cut", maybe_applied=True))
    await turn()
    assert settled.done()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_settled_waits_for_calls_that_have_not_been_sent(server: Server, batcher: Batcher) -> None:
    soon = call(batcher, b"a")
    await asyncio.sleep(0)
    settled = asyncio.ensure_future(batcher.drained())
    await turn()
    assert not settled.done()
    server.answer()
    await turn()
    assert settled.done()
    assert await soon == [b"A"]


@pytest.mark.parametrize(
    ("count", "trips"), [(1001, [1] + [250] * 4), (10_001, [1] + [500] * 18 + [250] * 4)]
)
async def test_many_callers_get_their_own_answers_in_order(
    server: Server, count: int, trips: list[int]
) -> None:
    """After the first, trips are small while few calls wait, and large while many do."""
    batcher = Batcher(cast("Runner", server), SCRIPT)
    calls = [call(batcher, b"row %d" % n) for n in range(count)]
    while not all(each.done() for each in calls):
        await turn()
        while server.under_way:
            server.answer()
    assert [await each for each in calls] == [[b"ROW %d" % n] for n in range(count)]
    assert [len(trip) for trip in server.trips] == trips


def test_each_batched_script_exists_and_is_known_to_the_history() -> None:
    assert set(load()) >= set(BATCHED)
    reading = {"read_chunks"}
    assert set(BATCHED) - reading == set(BATCHED_KINDS), (
        "declare the kind of its events in tests/history/recording.py"
    )


async def test_calls_end_together_when_the_server_answers_nothing(server: Server, batcher: Batcher) -> None:
    """All that were made before it was last known to answer nothing for the reply timeout, and no others."""
    first = await occupy(server, batcher)
    old = [call(batcher, b"x", size=500) for _ in range(8)]  # more than may wait: 2000 bytes
    await turn()
    server.reply_timeout = 0.0  # from now on, each call has waited for long enough
    server.fail(ConnectionLost("silent", maybe_applied=True))
    await turn()
    ended = await asyncio.gather(first, *old, return_exceptions=True)
    lost = [error.maybe_applied for error in ended if isinstance(error, ConnectionLost)]
    assert lost == [True] + [False] * 8
    assert server.trips == [[b"first"]]


async def test_calls_that_were_made_later_are_sent_after_a_trip_is_lost(
    server: Server, batcher: Batcher
) -> None:
    first = await occupy(server, batcher)
    second = call(batcher, b"x")
    await turn()
    server.fail(ConnectionLost("cut", maybe_applied=True))
    await turn()
    server.answer()
    assert await second == [b"X"]
    with pytest.raises(ConnectionLost):
        await first


@pytest.mark.parametrize("error", [None, LeasequeueError("no")])
async def test_calls_go_on_waiting_while_the_server_answers(
    server: Server, batcher: Batcher, error: Exception | None
) -> None:
    server.reply_timeout = 0.0
    first = await occupy(server, batcher)
    second = call(batcher, b"x")
    await turn()
    server.answer() if error is None else server.fail(error)
    await turn()
    server.answer()
    assert await second == [b"X"]
    await asyncio.gather(first, return_exceptions=True)
