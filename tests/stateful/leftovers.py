"""Draw the states of a queue: those of the rule machine, with what foreign clients leave behind.

The rule machine draws the states that our own calls make. `furnish` adds what it has no rules for (schedules,
sets of a stream, runs of bulk jobs, inboxes, kept events) and the steps of foreign clients that may be their
last: an id without data, an id that is listed twice, an id that was taken and not yet leased, a lease of
theirs, a completion that stopped midway.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from tests.lua.space import Call, batched
from tests.stateful.test_machine import QueueMachine

if TYPE_CHECKING:
    from random import Random

    from tests.lua.space import Space

#: The ids that states are made of; the empty one only a foreign client adds.
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


class DrawingMachine(QueueMachine):
    """Keeps the last state of each example, and compares nothing after each call."""

    drawn: ClassVar[list[Drawn]] = []

    @initialize(front=st.booleans(), many=st.sampled_from([False, False, False, True]))
    def begin(self, front: bool, many: bool = False) -> None:  # noqa: FBT001, FBT002 - Hypothesis fills it in
        super().begin(front)
        self.front = front
        if many:
            self.add_many([f"x{n}" for n in range(MANY)])
            self.lease(MANY, 600)

    @rule()
    def light_clean(self) -> None:
        """Clean; of a long list, entries of finished items are dropped."""
        self.run(self.queue.light_clean())
        self.model.reclaim(self.now)

    @rule()
    def deep_clean(self) -> None:
        """Clean as well."""
        self.run(self.queue.deep_clean())
        self.model.reclaim(self.now)

    def the_server_holds_what_the_model_holds(self) -> None:
        """Compare nothing: it would take most of the time."""

    def the_dead_are_those_of_the_model(self) -> None:
        """Compare nothing."""

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        start = f"{self.name}:".encode()
        keys = [key for key in self.redis.scan_iter(count=1000) if key.startswith(start)]
        values = {
            key.removeprefix(start): (self.redis.dump(key), self.redis.pttl(key) > 0) for key in sorted(keys)
        }
        held = [(lease.id, lease.token) for lease in self.held]
        self.drawn.append(Drawn(self.now, self.front, values, held))
        self.run(self.queue.close())
        self.runner.close()
        if keys:
            self.redis.delete(*keys)
        self.redis.close()


def draw(url: str, examples: int) -> list[Drawn]:
    """Return states of the rule machine, the same ones in each run."""
    DrawingMachine.url = url
    DrawingMachine.drawn.clear()
    run_state_machine_as_test(
        DrawingMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=[*HealthCheck],
        ),
    )
    return [drawn for drawn in DrawingMachine.drawn if drawn.keys]


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
    for step in random.choices([*steps.ours, *steps.foreign, *steps.foreign], k=random.randint(5, 12)):
        await step()
    keys = await space.send("EVAL", "return redis.call('KEYS', KEYS[1])", 1, pattern)
    start = f"{space.prefix}:".encode()
    for key in sorted(keys):
        expires = await space.send("PTTL", key) > 0
        furnished.keys[key.removeprefix(start)] = (await space.send("DUMP", key), expires)
    return furnished


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
        call = Call(script, rows, {"now_ms": self.drawn.now, "prefix": self.space.prefix, **arguments})
        return (await self.space.run_all([call]))[0]

    def _id(self) -> str:
        return self.random.choice(IDS)

    async def dead_letter(self) -> None:
        _, _, _, *leased = await self._call("lease_many", (2, 60_000))
        rows = [(item_id, token, -1, "an error") for item_id, _, token, _ in batched(leased, 4)]
        if rows:
            await self._call("fail_many", *rows[:1])

    async def schedule(self) -> None:
        for name in ("hourly", "daily"):
            due_ms = self.drawn.now + self.random.choice([-1, 60_000])
            data = self.random.choice(["", "data"])
            await self._call("schedule_put", schedule=name, definition=DEFINITION, due_ms=due_ms, data=data)

    async def set_of_a_stream(self) -> None:
        stream = {"stream": "s", "reader": "r", "keep_ms": 600_000}
        await self._call("stream_hold", take=1, **stream)
        await self._call("lease_set", set="s:1", known=0, count=3, hold_ms=60_000, **stream)

    async def run_of_a_job(self) -> None:
        await self._call("once_run", job="job", run="run", keep_ms=600_000)
        row = (self.random.choice(IDS[:-1]), "bulk", 0, 0)
        await self._call("add_once", row, run="run", keep_ms=600_000)

    async def inbox(self) -> None:
        for session, lives in ((DEAD, -1), ("lh:me", 600_000)):
            await self._call("register", session=session, keep_ms=lives)
            await self.space.send(
                "LMOVE", self.space.key("queue"), self.space.key(f"inbox:{session}"), "RIGHT", "LEFT"
            )
            self.drawn.steps.append(f"LMOVE queue inbox:{session}")

    async def events(self) -> None:
        await self._call("events_keep", count=100, age_ms=self.random.choice([0, 600_000]))

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
