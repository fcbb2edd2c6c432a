"""Draw the states of a queue: those of the rule machine, with what foreign clients leave behind.

The rule machine draws the states that our own calls make. `furnish` adds what it has no rules for (schedules,
sets of a stream, runs of bulk jobs, inboxes, kept events) and the steps of foreign clients that may be their
last: an id without data, an id that is listed twice, an id that was taken and not yet leased, a lease of
theirs, a completion that stopped midway.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from tests.lua.space import Call, batched, leased
from tests.stateful.test_machine import QueueMachine

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lua.space import Space

#: The ids that states have; the empty one only a foreign client adds.
IDS = ["a", "b:c", "*", "{d}", "ü\n\x00", "[e]", "f", "g", ""]
#: The session of a process that has died.
DEAD = "lh:dead"
#: Leased items that make `processing` too long to be searched.
MANY = 140
DEFINITION = "1 once every 1000 -"


@dataclass
class Drawn:
    """A state of a queue.

    Attributes:
        now: The time of the test's clock, in ms.
        return_front: Whether the queue returns expired items to its front.
        keys: What follows the queue's name in each key: its serialized value, and whether it expires.
        held: Ids and tokens of all leases that were granted; some have ended.
        steps: What was added to the state of the rule machine.
    """

    now: int
    return_front: bool
    keys: dict[bytes, tuple[bytes, bool]]
    held: list[tuple[str, int]]
    steps: list[str] = field(default_factory=list)


def draw(url: str, number: int) -> Drawn:
    """Return the state that the rule machine has after some 40 of its rules, drawn by a number."""
    random = Random(number)
    QueueMachine.url = url
    machine = QueueMachine()
    machine.begin(front=random.choice([False, True]))
    times = [0, 10, 100, 700]
    if number % 6 == 5:
        times = [0, 10]  # they stay leased: the model does not know that a script reclaims 100 at most
        machine.add_many([f"x{n}" for n in range(MANY)])
        machine.lease(MANY, 600)
    for _ in range(random.randint(10, 40)):
        _apply_a_rule(machine, random, times)
    start = f"{machine.name}:".encode()
    keys = sorted(key for key in machine.redis.scan_iter(count=1000) if key.startswith(start))
    values = {key.removeprefix(start): (machine.redis.dump(key), machine.redis.pttl(key) > 0) for key in keys}
    held = [(lease.id, lease.token) for lease in machine.held]
    machine.run(machine.queue.close())
    machine.redis.delete(*keys, "none")
    machine.live.close()
    return Drawn(machine.now, machine.model.return_front, values, held)


def _apply_a_rule(machine: QueueMachine, random: Random, times: list[int]) -> None:
    item_id, delay, lease_time = (
        random.choice(IDS[:-1]),
        random.choice([0, 0, 60, 300]),
        random.choice([60, 600]),
    )
    anything: list[Callable[[], None]] = [
        lambda: machine.add(item_id, random.randbytes(random.randint(0, 9)), delay),
        lambda: machine.add_many(random.choices(IDS[:-1], k=3)),
        lambda: machine.lease(random.randint(1, 4), lease_time),
        lambda: machine.lease(random.randint(1, 4), lease_time),
        lambda: machine.requeue([item_id]),
        lambda: machine.drop(item_id),
        lambda: machine.move_the_clock(random.choice(times)),
        lambda: machine.another_client_pushes_an_id(item_id),
    ]
    pick, chance = random.randrange(1000), random.choice([False, True])
    of_leases: list[Callable[[], None]] = [
        lambda: machine.complete(pick, fenced=chance),
        lambda: machine.renew(pick, lease_time),
        lambda: machine.release(pick, delay, front=chance),
        lambda: machine.fail(pick, random.choice([None, None, 0, 100]), "an error"),
    ]
    random.choice([*anything, *(of_leases if machine.held else ())])()


#: Removes the keys that match a pattern, and writes others: name, serialized value, 1 if it expires.
RESTORE = """
local cursor = '0'
repeat
  local page = redis.call('SCAN', cursor, 'MATCH', ARGV[1], 'COUNT', 1000)
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    redis.call('UNLINK', key)
  end
until cursor == '0'
for row = 3, #ARGV, 3 do
  redis.call('RESTORE', KEYS[1] .. ARGV[row], ARGV[row + 2] == '1' and ARGV[2] or 0, ARGV[row + 1])
end
"""


async def restore(space: Space, pattern: bytes, drawn: Drawn) -> None:
    """Give a queue the keys of a state, and no others."""
    rows: list[Any] = [
        value for name, (dump, expires) in drawn.keys.items() for value in (name, dump, int(expires))
    ]
    await space.send("EVAL", RESTORE, 1, f"{space.prefix}:", pattern, 600_000, *rows)


async def furnish(space: Space, pattern: bytes, drawn: Drawn, random: Random) -> Drawn:
    """Return the state with steps of other clients and of other calls added, as drawn."""
    await restore(space, pattern, drawn)
    furnished = Drawn(drawn.now, drawn.return_front, {}, drawn.held)
    steps = Steps(space, furnished, random)
    drawn_steps = [*random.sample(steps.ours, 3), *random.choices(steps.foreign, k=random.randint(2, 6))]
    for step in random.sample(drawn_steps, len(drawn_steps)):
        await step()
    furnished.keys = await dumped(space, pattern)
    return furnished


async def dumped(space: Space, pattern: bytes) -> dict[bytes, tuple[bytes, bool]]:
    """Return the keys of a queue, as a state has them."""
    keys: list[bytes] = sorted(await space.send("KEYS", pattern))
    commands = [(name, key) for key in keys for name in ("DUMP", "PTTL")]
    replies = batched(await space.run_all(commands), 2)
    start = f"{space.prefix}:".encode()
    return {key.removeprefix(start): (dump, ttl > 0) for key, (dump, ttl) in zip(keys, replies, strict=True)}


class Steps:
    """The steps that `furnish` adds. A step does nothing if it does not fit the state.

    Args:
        space: The keys of the queue.
        drawn: The state; the steps are noted in it.
        random: Draws the ids.
    """

    def __init__(self, space: Space, drawn: Drawn, random: Random) -> None:
        self.space = space
        self.drawn = drawn
        self.random = random
        self.ours = [
            self.dead_letter,
            self.schedule,
            self.set_of_a_stream,
            self.run_of_a_job,
            self.inbox,
            self.events,
            self.workers,
            self.options,
        ]
        self.foreign = [
            self.ghost,
            self.double,
            self.foreign_add,
            self.foreign_lease,
            self.foreign_take,
            self.foreign_complete,
            self.foreign_remove,
            self.foreign_reclaim,
            self.lease_of_a_scheduled_item,
        ]

    async def _send(self, *command: str | int) -> Any:
        name, key, *rest = command
        self.drawn.steps.append(f"{name} {key} {' '.join(map(repr, rest))}")
        return await self.space.send(str(name), self.space.key(str(key)), *rest)

    async def _call(self, script: str, *rows: tuple[object, ...], **arguments: object) -> Any:
        self.drawn.steps.append(f"{script} {rows} {arguments}")
        call = Call(script, rows, {"now_ms": self.drawn.now, **arguments})
        return (await self.space.run_all([call]))[0]

    def _id(self) -> str:
        return self.random.choice(IDS)

    async def dead_letter(self) -> None:
        reply = await self._call("lease_many", (2, 60_000))
        rows = [(item_id, token, -1, "an error") for item_id, _, token, _ in leased(reply)]
        if rows:
            await self._call("fail_many", *rows[:1])

    async def schedule(self) -> None:
        for name in ("hourly", "daily"):
            due_ms = self.drawn.now + self.random.choice([-1, 60_000])
            data = self.random.choice(["", "data"])
            await self._call(
                "schedule_put",
                schedule=name,
                definition=DEFINITION,
                due_ms=due_ms,
                data=data,
                forget_ms=self.random.choice(["", 60_000]),
            )

    async def set_of_a_stream(self) -> None:
        stream = {"stream": "s", "reader": "r", "keep_ms": 600_000}
        await self._call("stream_hold", take=1, **stream)
        await self._call("lease_set", set="s:1", known=0, count=3, hold_ms=60_000, **stream)
        if self.random.random() < 0.5:  # its leases have expired, and its items wait
            await self._call("light_clean", now_ms=self.drawn.now + 60_000)

    async def run_of_a_job(self) -> None:
        await self._call("once_run", job="job", run="run", keep_ms=600_000)
        row = (self.random.choice(IDS[:-1]), "bulk", 0, 0)
        await self._call("add_once", row, run="run", keep_ms=600_000)

    async def inbox(self) -> None:
        for session, lives in ((DEAD, -1), ("lh:me", 600_000)):
            await self._call("register", session=session, keep_ms=lives, lease_ms=9_000)
            await self.space.send(
                "LMOVE", self.space.key("queue"), self.space.key(f"inbox:{session}"), "RIGHT", "LEFT"
            )
            self.drawn.steps.append(f"LMOVE queue inbox:{session}")

    async def events(self) -> None:
        choose = self.random.choice
        await self._call(
            "events_keep", count=choose([0, 100]), age_ms=choose([0, 600_000]), publish=choose([0, 1])
        )

    async def workers(self) -> None:
        for session in (DEAD, "lh:me"):
            alive_ms = self.random.choice([-1, 600_000, ""])
            about = '{"connections":[7]}'
            await self._call("worker_beat", session=session, alive_ms=alive_ms, first=1, about=about)
            await self._call("worker_tell", worker=session, what="quiet")

    async def options(self) -> None:
        how = self.random.choice(
            ['{"level":1}', '{"group":"g","dedupe":9000}', '{"expires_in":5}', '{"trace":"00-1a-2b-01"}']
        )
        rows = [(one, "with options", 0, f"0:{how}") for one in self.random.sample(IDS[:-1], 3)]
        await self._call("add_items", *rows)

    async def ghost(self) -> None:
        await self._send("LPUSH", self.random.choice(["queue", "processing"]), f"ghost{self._id()}")

    async def double(self) -> None:
        await self._send(self.random.choice(["LPUSH", "RPUSH"]), "queue", self._id())

    async def foreign_add(self) -> None:
        item_id = self._id()
        if await self._send("SETNX", f"item:{item_id}", f"foreign {item_id}"):
            await self._send("LPUSH", "queue", item_id)

    async def foreign_take(self) -> None:
        await self._taken()

    async def foreign_lease(self) -> None:
        taken = await self._taken()
        if taken is not None:
            await self._foreign_key(taken)

    async def foreign_complete(self) -> None:
        """Complete an item that we hold or held, up to the first or the last command."""
        item_id = self._id()
        await self._send("DEL", f"item:{item_id}")
        if self.random.random() < 0.7:
            await self._send("LREM", "processing", 0, item_id)
            await self._send("DEL", f"lease:{item_id}")

    async def foreign_remove(self) -> None:
        """Remove our entry of an item from `processing`."""
        await self._send("LREM", "processing", 0, self._id())

    async def foreign_reclaim(self) -> None:
        """Put an item whose lease key has expired back into the queue, up to any command of a cleaner."""
        item_id = self._id()
        for kind in ("lease", "leased_by_session"):
            await self._send("DEL", f"{kind}:{item_id}")
        if await self._send("LPOS", "processing", item_id) is not None:
            await self._send("LPUSH", "queue", item_id)
            if self.random.random() < 0.7:
                await self._send("LREM", "processing", 0, item_id)

    async def lease_of_a_scheduled_item(self) -> None:
        """Lease an item that waits for its time, after its lease key has expired."""
        item_id = self._id()
        if await self._send("ZSCORE", "scheduled", item_id) is not None:
            await self._foreign_key(item_id)

    async def _taken(self) -> str | None:
        taken = await self.space.send(
            "LMOVE", self.space.key("queue"), self.space.key("processing"), "RIGHT", "LEFT"
        )
        self.drawn.steps.append(f"RPOPLPUSH queue processing: {taken!r}")
        return None if taken is None else taken.decode()

    async def _foreign_key(self, item_id: str) -> None:
        kind = self.random.choice(["lease", "leased_by_session"])
        await self._send("SET", f"{kind}:{item_id}", "another session", "PX", 600_000)
