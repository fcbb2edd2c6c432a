"""A rule machine: random calls on a real queue, compared with a model in plain Python after each call.

The test moves the clock. After each call, the lists, sets and ledger on the server equal those of the model,
so an item is in exactly one state and lengths equal counts; tokens grow; `complete` is True for exactly one
holder of each incarnation. In the end all leases expire, and every item is leased again.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from leasequeue import AsyncWorkQueue, Item, Lease
from tests.stateful.live import Live, run_machine
from tests.stateful.model import Held, Known, Letter, Model

if TYPE_CHECKING:
    from collections.abc import Coroutine

pytestmark = [pytest.mark.core, pytest.mark.slow]

T = TypeVar("T")
_names = itertools.count()
# Few ids, so that calls meet the same item; odd ones, so that none has a meaning.
IDS = st.sampled_from(["a", "b:c", "*", "{d}", "ü\n\x00", "[e]", "f", "g"])
# Leases are long in real time, so that no key expires during a run; only the clock of the test ends them.
LEASES = st.integers(60, 600)
DELAYS = st.one_of(st.just(0), st.integers(60, 600))


class QueueMachine(RuleBasedStateMachine):
    """Calls a queue and its model, and compares them."""

    url: str

    @initialize(front=st.booleans())
    def begin(self, front: bool) -> None:  # noqa: FBT001 - Hypothesis fills it in
        self.name = f"machine-{next(_names)}"
        self.live = Live(self.url)
        self.redis = self.live.server
        self.queue = self.live.open(self.name, return_to="front" if front else "end")
        self.model = Model(return_front=front)
        self.held: list[Lease] = []
        self.highest: dict[str, int] = {}
        self.completed: set[tuple[str, int]] = set()

    @property
    def now(self) -> int:
        return self.live.now

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.live.wait(work)

    @rule(item_id=IDS, data=st.binary(max_size=9), delay=DELAYS)
    def add(self, item_id: str, data: bytes, delay: int) -> None:
        added = self.run(self.queue.add_item(Item(data, item_id), delay=delay))
        assert added == self.model.add(item_id, Known(data), self.now, delay * 1000)

    @rule(
        item_id=IDS,
        data=st.binary(max_size=9),
        delay=DELAYS,
        window=DELAYS,
        replaces=st.booleans(),
        expires_in=DELAYS,
    )
    def add_with_options(
        self,
        item_id: str,
        data: bytes,
        delay: int,
        window: int,
        replaces: bool,  # noqa: FBT001 - Hypothesis fills it in
        expires_in: int,
    ) -> None:
        options = {"dedupe_for": window or None, "replace": replaces, "expires_in": expires_in or None}
        added = self.run(self.queue.add_item(Item(data, item_id), delay=delay, **options))  # type: ignore[arg-type]
        known = Known(data, expires=self.now + expires_in * 1000 if expires_in else None)
        expected = self.model.add(
            item_id, known, self.now, delay * 1000, window=window * 1000, replaces=replaces
        )
        assert added == expected

    @rule(ids=st.lists(IDS, max_size=5))
    def add_many(self, ids: list[str]) -> None:
        added = self.run(self.queue.add_items([Item(item_id, item_id) for item_id in ids]))
        assert added == [self.model.add(item_id, Known(item_id.encode()), self.now) for item_id in ids]

    @rule(count=st.integers(1, 4), lease_time=LEASES)
    def lease(self, count: int, lease_time: int) -> None:
        leases = self.run(self.queue.lease_many(count, lease_time, block=False))
        expected = self.model.lease(count, self.now, lease_time * 1000)
        assert [(Held(one.id, one.token), one.data, one.attempt) for one in leases] == expected
        for one in leases:
            assert one.token > self.highest.get(one.id, 0)
            self.highest[one.id] = one.token
        self.held += leases

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(min_value=0), fenced=st.booleans())
    def complete(self, pick: int, fenced: bool) -> None:  # noqa: FBT001 - Hypothesis fills it in
        lease = self.held[pick % len(self.held)]
        known = self.model.items.get(lease.id)
        done = self.run(self.queue.complete(lease, fenced=fenced))
        assert done == self.model.complete(Held(lease.id, lease.token), fenced=fenced)
        if done:
            assert known is not None
            assert known.first is not None
            incarnation = (lease.id, known.first)
            assert incarnation not in self.completed
            self.completed.add(incarnation)

    @rule(ids=st.lists(IDS, min_size=1, max_size=3), keep=st.sampled_from([0, 3600]))
    def cancel(self, ids: list[str], keep: int) -> None:
        known = {item_id: self.model.items.get(item_id) for item_id in ids}
        cancelled = self.run(self.queue.cancel_many(ids, keep=keep))
        assert cancelled == [self.model.cancel(item_id) for item_id in ids]
        for item_id, done in zip(ids, cancelled, strict=True):
            if done and (one := known[item_id]) is not None and one.first is not None:
                # A holder of this incarnation gets False, if it completes the item.
                assert (item_id, one.first) not in self.completed
                self.completed.add((item_id, one.first))

    @rule(data=st.one_of(st.binary(max_size=1), IDS.map(str.encode)))
    def cancel_data(self, data: bytes) -> None:
        assert {*self.run(self.queue.cancel_data(data, keep=0))} == self.model.cancel_data(data)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(min_value=0), lease_time=LEASES)
    def renew(self, pick: int, lease_time: int) -> None:
        lease = self.held[pick % len(self.held)]
        renewed = self.run(self.queue.renew(lease, lease_time))
        assert renewed == self.model.renew(Held(lease.id, lease.token), self.now, lease_time * 1000)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(min_value=0), delay=DELAYS, front=st.booleans())
    def release(self, pick: int, delay: int, front: bool) -> None:  # noqa: FBT001 - Hypothesis fills it in
        lease = self.held[pick % len(self.held)]
        released = self.run(self.queue.release(lease, delay=delay, front=front))
        held = Held(lease.id, lease.token)
        assert released == self.model.release(held, self.now, delay * 1000, front=front)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(min_value=0), retry_in=st.one_of(st.none(), DELAYS), error=st.text(max_size=9))
    def fail(self, pick: int, retry_in: int | None, error: str) -> None:
        lease = self.held[pick % len(self.held)]
        failed = self.run(self.queue.fail(lease, error, retry_in=retry_in))
        held = Held(lease.id, lease.token)
        assert failed == self.model.fail(held, error, self.now, None if retry_in is None else retry_in * 1000)

    @rule(ids=st.lists(IDS, min_size=1, max_size=3, unique=True))
    def requeue(self, ids: list[str]) -> None:
        requeued = self.run(self.queue.dead_letters.requeue(*ids))
        assert requeued == [self.model.requeue(item_id) for item_id in ids]

    @rule()
    def requeue_all(self) -> None:
        assert self.run(self.queue.dead_letters.requeue_all()) == self.model.requeue_all()

    @rule(item_id=IDS)
    def drop(self, item_id: str) -> None:
        dropped = self.run(self.queue.dead_letters.drop(item_id))
        assert dropped == [self.model.dead.pop(item_id, None) is not None]

    @rule(age=st.integers(0, 700))
    def drop_old(self, age: int) -> None:
        dropped = self.run(self.queue.dead_letters.drop_older_than(age))
        assert dropped == self.model.drop_older_than(age * 1000, self.now)

    @rule(seconds=st.integers(0, 700))
    def move_the_clock(self, seconds: int) -> None:
        self.live.now += seconds * 1000

    @rule()
    def light_clean(self) -> None:
        report = self.run(self.queue.light_clean())
        self.model.reclaim(self.now)
        self.model.discard_late(self.now)
        assert (report.dropped, report.adopted) == (0, 0)

    @rule()
    def deep_clean(self) -> None:
        report = self.run(self.queue.deep_clean())
        self.model.reclaim(self.now)
        self.model.discard_late(self.now)
        assert (report.dropped, report.adopted, report.restored) == (0, 0, 0)

    @rule(item_id=IDS)
    def another_client_pushes_an_id(self, item_id: str) -> None:
        """Make a ghost or a double, as foreign clients do."""
        self.redis.lpush(f"{self.name}:queue", item_id.encode())
        self.model.waiting.append(item_id)

    @invariant()
    def the_server_holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "model"):
            return
        model, server = self.model, self.redis
        key = f"{self.name}:{{}}".format
        line = [one.decode() for one in reversed(_list(server.lrange(key("queue"), 0, -1)))]
        assert line == model.waiting
        assert self._times("deadlines") == model.leased
        assert sorted(one.decode() for one in _list(server.lrange(key("processing"), 0, -1))) == sorted(
            model.leased
        )
        assert self._times("scheduled") == model.scheduled
        records = {
            one.decode(): tuple(map(int, record.split()))
            for one, record in server.hgetall(key("ledger")).items()
        }
        assert records == {
            item_id: (known.first, known.last, known.attempt, known.leased_ms)
            for item_id, known in model.items.items()
            if known.first
        }
        assert self._single_keys("item") == {item_id: known.data for item_id, known in model.items.items()}
        session = self.run(session_of(self.queue)).encode()
        guards = dict.fromkeys(model.scheduled, b"lh:scheduled")
        assert self._single_keys("lease") == dict.fromkeys(model.leased, session) | guards
        assert self._single_keys("leased_by_session") == dict.fromkeys(model.leased, session)
        counts = self.run(self.queue.counts())
        assert counts == (len(model.waiting), len(model.leased), len(model.scheduled), len(model.dead))

    @invariant()
    def the_dead_are_those_of_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        letters = self.run(self.queue.dead_letters.list())
        assert {
            one.id: Letter(one.data or b"", one.error, round(one.died_at * 1000), one.attempt, one.token)
            for one in letters
        } == self.model.dead
        kept = self.live.keys_of(f"{self.name}:dead")
        assert len(kept) == len(letters) == len(self.model.dead)

    def _times(self, key: str) -> dict[str, int]:
        entries = _list(self.redis.zrange(f"{self.name}:{key}", 0, -1, withscores=True))
        return {one.decode(): int(time) for one, time in entries}

    def _single_keys(self, kind: str) -> dict[str, bytes]:
        start = f"{self.name}:{kind}:".encode()
        keys = [one for one in self.redis.scan_iter(count=1000) if one.startswith(start)]
        return {one.removeprefix(start).decode(): self.redis.get(one) for one in keys}

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        # All holders are gone. Two rounds, because a released item with a delay falls due after the leases.
        returned: dict[str, bytes] = {}
        for _ in range(2):
            self.live.now += 1_000_000
            self.model.discard_late(self.now)
            for lease in self.run(self.queue.lease_many(100, 60, block=False)):
                returned[lease.id] = lease.data
                assert self.run(self.queue.complete(lease))
        assert returned == {item_id: known.data for item_id, known in self.model.items.items()}
        assert self.run(self.queue.dead_letters.drop_all()) == len(self.model.dead)
        self.run(self.queue.close())
        left = self.live.keys_of(self.name)
        self.live.close()
        assert left <= {"fence", "cancelled", "recent"}


async def session_of(queue: AsyncWorkQueue) -> str:
    """Return the session of the running event loop."""
    return queue.session


def _list(reply: Any) -> list[Any]:
    return list(reply)


@pytest.mark.parametrize("examples", [15, pytest.param(500, marks=pytest.mark.long)])
@pytest.mark.seed("RWQ-G1", "RWQ-G2", "RWQ-G3", "RWQ-B6")
def test_a_queue_equals_its_model(redis_url: str, examples: int) -> None:
    QueueMachine.url = redis_url
    run_machine(QueueMachine, examples)
