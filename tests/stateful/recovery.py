"""Recover a queue after an interruption as a live system does, and check what it holds then."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from leasequeue import AsyncWorkQueue, Lease, LeasequeueError
from leasequeue.queue.queue import engine_of
from tests.lua.space import Call, Expiring, Space, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.stateful.leftovers import Drawn

#: How far the clock moves in each round, in ms: all leases and delays of the states and the calls end before.
ROUND_MS = 20_000_000
#: What is not leased after so many rounds is lost.
ROUNDS = 3
#: How long the leases of the recovery last, in seconds.
LONG = 2_000_000
#: Scripts that create a key and give it a time to live with the next command, as no command of Redis 6.2 does
#: both. If they are interrupted in between, it gets one when the caller repeats the call.
GIVE_TIME_TO_LIVE = {
    "add_once",
    "await_results",
    "cancel_data",
    "cancel_many",
    "hold_drop",
    "hold_limits",
    "hold_take",
    "lease_set",
    "probe",
    "register",
    "run_start",
    "set_failures_put",
    "stream_hold",
}

#: Scripts that are called to remove items.
REMOVE = {"close_queue", "delete_queue", "purge_queue"}

#: Removes the lease keys of foreign clients, as if they had expired.
EXPIRE = """
local cursor = '0'
repeat
  local page = redis.call('SCAN', cursor, 'MATCH', ARGV[1], 'COUNT', 1000, 'TYPE', 'string')
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    if redis.call('GET', key) == 'another session' then
      redis.call('UNLINK', key)
    end
  end
until cursor == '0'
"""


class View:
    """The keys of a queue.

    Args:
        state: Their names and contents.
    """

    def __init__(self, state: State) -> None:
        self.keys = state
        self.items = self._by_id("item:")
        self.dead = self._by_id("dead:")

    def last_token(self, item_id: str) -> int:
        """Return the last token in an item's entry in the ledger; 0: it has none."""
        entry = self.hash("ledger").get(item_id)
        return int(entry.split()[1]) if entry else 0

    def highest_token(self) -> int:
        """Return the highest token that is stored anywhere."""
        fence = self.keys.get("fence", "0")
        places = [token for token, _ in self.set_places()]
        return max(int(str(fence)), *map(self.last_token, self.hash("ledger")), *places, 0)

    def set_places(self) -> list[tuple[int, str]]:
        """Return the tokens and ids in all sets."""
        places = [place for key in self.keys if key.startswith("set:") for place in self.contents(key)]
        found = [re.fullmatch(r"(\d+) (.*)", place, re.DOTALL) for place in places]
        return [(int(place[1]), place[2]) for place in found if place]

    def hash(self, key: str) -> dict[str, str]:
        """Return the contents of a hash."""
        return dict(self.contents(key) or {})

    def zset(self, key: str) -> dict[str, float]:
        """Return the contents of a sorted set."""
        return dict(self.contents(key) or {})

    def contents(self, key: str) -> Any:
        """Return the contents of a key; None: there is no such key."""
        found = self.keys.get(key)
        return found.contents if isinstance(found, Expiring) else found

    def _by_id(self, start: str) -> dict[str, Any]:
        return {key.removeprefix(start): self.contents(key) for key in self.keys if key.startswith(start)}


def _is_late(before: View, item_id: str, call: Call) -> bool:
    """Return whether a call may discard an item, as it has expired."""
    options = json.loads(before.hash("options").get(item_id, "{}"))
    return bool(options.get("expires", float("inf")) <= int(str(call.arguments["now_ms"])))


def differences(before: View, after: View, call: Call) -> Iterator[str]:
    """Yield what an interrupted call has lost, in comparison with the keys before it."""
    rows = {str(row[0]): row for row in map(tuple, call.rows)}
    for item_id, data in before.items.items():
        now = after.items.get(item_id)
        row = rows.get(item_id, ())
        replaced = now is not None and now == f"new {item_id}" and now in row[1:3]
        removed = now is None and (_cancels(call, row, data) or _is_late(before, item_id, call))
        if now == data or replaced or removed:
            continue
        # A snapshot has values of hashes without spaces at their end.
        dead = call.script == "fail_many" and after.dead.get(item_id, {}).get("data") == data.rstrip()
        completed = call.script in {"complete_many", "run_finish", "set_complete"} and row
        if completed and ":" in str(row[2]) and f"result:{item_id}" not in after.keys:
            yield f"item {item_id!r} was completed without its result"
        elif not (dead or completed or (now is None and call.script in REMOVE)):
            yield f"the data of item {item_id!r} was {data!r}, and is {now!r}"
    for item_id, letter in before.dead.items():
        requeued = call.script == "requeue_many" and after.items.get(item_id, "").rstrip() == letter["data"]
        dropped = call.script in {"drop_many", "drop_old", "run_forget"}
        deleted = call.script == "delete_queue"
        if item_id not in after.dead and not (requeued or dropped or deleted):
            yield f"the dead letter {item_id!r} is gone"
    if call.script == "tick":
        for name, row in rows.items():
            moved = after.zset("ticks").get(name) != before.zset("ticks").get(name)
            if moved and row[3] and row[3] not in after.items:
                yield f"the schedule {name!r} has moved on, and item {row[3]!r} was not added"


def _cancels(call: Call, row: tuple[object, ...], data: str) -> bool:
    """Return whether a call cancels an item that has this data, and this row of the call."""
    by_data = call.script == "cancel_data" and data == call.arguments["payload"]
    return by_data or (call.script == "cancel_many" and bool(row))


class Recovery:
    """Recovers a queue by leases and light cleans while the clock moves.

    Args:
        space: The keys of the queue.
        url: The server.
    """

    def __init__(self, space: Space, url: str) -> None:
        self.space = space
        self.now = 0
        self._queues = {
            front: AsyncWorkQueue.from_url(
                url, space.prefix, return_to="front" if front else "end", clock=lambda: self.now / 1000
            )
            for front in (False, True)
        }

    async def close(self) -> None:
        """Close the queues."""
        for queue in self._queues.values():
            await queue.close()

    async def problems(self, drawn: Drawn, before: View, after: View, call: Call | None) -> list[str]:
        """Recover the queue, and return what is wrong then."""
        try:
            return await self._problems(drawn, before, after, call)
        except LeasequeueError as error:
            return [f"a call of the recovery raised {error!r}"]

    async def _problems(self, drawn: Drawn, before: View, after: View, call: Call | None) -> list[str]:
        queue = self._queues[drawn.return_front]
        self.now = drawn.now + ROUND_MS
        if "closed" in after.hash("control"):  # its deletion was interrupted: the next one finishes it
            await queue.admin.delete()
            after = View(await self.space.snapshot())
            if after.items:
                return [f"these items are not deleted: {after.items}"]
        await self._lift_limits()
        leases = await self._lease_all(queue, ROUNDS)
        found = [*_wrong_leases(after, leases), *await self._wrong_counts(queue, leases)]
        found += await self._accepted_late(drawn, before, after, call)
        for expected in (True, False):
            answers = await queue.complete_many(leases) if leases else []
            found += [
                f"completing {lease.id!r} once more said {answer}"
                if not expected
                else f"not completed: {lease}"
                for lease, answer in zip(leases, answers, strict=True)
                if answer != expected
            ]
        return [*found, *await self._left_over(queue, call)]

    async def _lease_all(self, queue: AsyncWorkQueue, rounds: int) -> list[Lease]:
        leases: list[Lease] = []
        for _ in range(rounds):
            await self.space.send("EVAL", EXPIRE, 0, f"{self.space.prefix}:lease*:*")
            await queue.light_clean()
            while some := await queue.lease_many(200, LONG, block=False):
                leases += some
            if await self.space.send("EXISTS", *map(self.space.key, ("workers", "heartbeats"))):
                await self._fail_workers(queue)
            self.now += ROUND_MS
        return leases

    async def _fail_workers(self, queue: AsyncWorkQueue) -> None:
        """Fail the workers that are gone, as another worker does; those that are permanent, by hand."""
        workers = engine_of(queue).registry
        beat = await workers.beat({}, alive_ms=1000, first=True)
        permanent = [one.session for one in await workers.workers() if one.until_ms is None]
        for worker in (*beat.expired, *permanent):
            await workers.fail(worker)
        await workers.leave()

    async def _lift_limits(self) -> None:
        """Remove all limits and pauses, as an operator does after the test."""
        view = View(await self.space.snapshot())
        await self._run(
            "set_limits", [(one, "") for one in view.hash("control") if not one.startswith("paused")]
        )
        for group in ("", "g"):
            await self._run("pause_queue", of_group=group, until_ms="", reason="")

    async def _wrong_counts(self, queue: AsyncWorkQueue, leases: list[Lease]) -> list[str]:
        counts = await queue.counts()
        view = View(await self.space.snapshot())
        # A dead letter that was interrupted may be listed before it exists.
        right = (0, len(leases), 0, counts.dead) if counts.dead >= len(view.dead) else None
        leased = {lease.id for lease in leases}
        lost = sorted(view.items.keys() - leased)
        return [
            *(f"item {item_id!r} has data and was not leased" for item_id in lost),
            *([] if counts == right else [f"{counts} with {len(leases)} leased and {len(view.dead)} dead"]),
        ]

    async def _accepted_late(self, drawn: Drawn, before: View, after: View, call: Call | None) -> list[str]:
        """Complete items that the call has added with the tokens of their earlier incarnations."""
        # An item whose data is replaced under its lease is still the same.
        if call is None or call.script in {"complete_many", "set_complete", "replace_data"}:
            return []
        fresh = {item_id for item_id, data in after.items.items() if before.items.get(item_id) != data}
        rows = [(item_id, token, 0) for item_id, token in drawn.held if item_id in fresh]
        rows += [
            (item_id, before.last_token(item_id), 0)
            for item_id in sorted(fresh)
            if before.last_token(item_id)
        ]
        answers = await self._run("complete_many", rows) if rows else []
        return [
            f"the token {row[1]} of an earlier incarnation has completed {row[0]!r}"
            for row, answer in zip(rows, answers, strict=True)
            if answer == 1
        ]

    async def _left_over(self, queue: AsyncWorkQueue, call: Call | None) -> list[str]:
        """Empty the queue, and return the keys that are left without a time to live."""
        await queue.dead_letters.requeue_all()
        for lease in await self._lease_all(queue, 1):
            await queue.complete(lease)
        await queue.light_clean()
        await self._run("events_keep", count=0, age_ms=0, publish=0, rollup=0)
        view = View(await self.space.snapshot())
        names = sorted({*view.hash("schedules"), *view.zset("ticks")})
        if names:
            await self._run("schedule_drop", [(name,) for name in names])
        if "holds" in (await self.space.snapshot()):
            await self._run("hold_limits", [(name, "") for name in (await self.space.snapshot())["holds"]])
        left = (await self.space.snapshot()).items()
        own = (
            ("set:", "stream:", "once:", "idle", "probe", "run:", "watchers", "cancelled", "hold")
            if call and call.script in GIVE_TIME_TO_LIVE
            else ()
        )
        return [
            f"the key {key} is left: {contents!r}"
            for key, contents in left
            if not isinstance(contents, Expiring) and key != "fence" and not key.startswith(own)
        ]

    async def _run(self, script: str, rows: Iterable[tuple[object, ...]] = (), **arguments: object) -> Any:
        return await self.space.run(script, rows, now_ms=self.now, **arguments)


def _wrong_leases(after: View, leases: list[Lease]) -> Iterator[str]:
    for item_id, count in Counter(lease.id for lease in leases).items():
        if count > 1:
            yield f"item {item_id!r} was leased {count} times, and no lease has ended"
    highest = after.highest_token()
    tokens = [highest, *(lease.token for lease in leases)]
    for token, lease in zip(itertools.accumulate(tokens, max), leases, strict=False):
        if lease.token <= token:
            yield f"item {lease.id!r} was leased with token {lease.token}, after {token}"
    for lease in leases:
        if after.items.get(lease.id) != lease.data.decode(errors="backslashreplace"):
            yield f"item {lease.id!r} was leased with {lease.data!r}, but has {after.items.get(lease.id)!r}"
