"""Explore what workers can do with one flow run: all interleavings of a few steps, each stopped at any write.

A state is what the server holds and which leases the workers have. From each state, each step is tried, and
stopped after each of its writes, by a worker that may repeat it later or never. After each step the run is
compared with its plan; and from each state that a stopped step has left, the live system must recover.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.queue.plan import ChildPlan
from leasequeue.queue.runs.stages import StageRow, settle
from tests.stateful.flows.world import ROUND_MS, Known, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasequeue import Lease
    from leasequeue.queue.plan import Plan

RUN = "run"
#: More writes than one step makes on the small runs here.
MOST_WRITES = 40

_SAVE = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  found[#found + 1] = { key, redis.call('PTTL', key), redis.call('DUMP', key) }
end
return found
"""
_LOAD = """
redis.call('FLUSHDB')
for i = 1, #ARGV, 3 do
  redis.call('RESTORE', ARGV[i], math.max(ARGV[i + 1], 0), ARGV[i + 2])
end
"""
_READ = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  local contents = kind == 'hash' and redis.call('HGETALL', key)
    or kind == 'zset' and redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    or kind == 'list' and redis.call('LRANGE', key, 0, -1)
    or kind == 'string' and redis.call('GET', key) or ''
  found[#found + 1] = { key, kind, contents }
end
return found
"""


@dataclass(frozen=True)
class Bound:
    """What is explored.

    Attributes:
        plan: The plan of the run, for the names of the two queues.
        kinds: How a stage may end: `done`, `failed`, `fan`.
        calls: What other clients do: `cancel`, `retry`.
        workers: How many leases may be held at the same time.
        stops: Whether steps are stopped.
        states: How many states are explored.
    """

    plan: Plan
    kinds: tuple[str, ...] = ("done", "failed")
    calls: tuple[str, ...] = ()
    workers: int = 2
    stops: bool = True
    states: int = 60


class Node(NamedTuple):
    """A state: what the server holds, what the workers hold, and how it was reached."""

    saved: tuple[bytes, ...]
    now: int
    known: Known
    leases: tuple[tuple[int, Lease] | None, ...]
    open_ends: bool
    path: tuple[str, ...]


class Step(NamedTuple):
    """A step: what, by which worker, and how."""

    name: str
    worker: int = 0
    how: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.how} (worker {self.worker})"


class _Wrong(Exception):
    """A step or a recovery is wrong; the text says how the state was reached."""


@dataclass
class Result:
    """What was found: how many states and steps, and the path to the first that is wrong."""

    states: int = 0
    steps: int = 0
    recoveries: int = 0
    wrong: str = ""


@dataclass
class Explorer:
    """Explores one bound on a server of its own."""

    world: World
    bound: Bound
    leases: list[tuple[int, Lease] | None] = field(default_factory=list)

    def explore(self) -> Result:
        """Go through the states, those near the start first; stop at the first that is wrong."""
        result = Result()
        try:
            self._explore(result)
        except _Wrong as error:
            result.wrong = str(error)
        return result

    def _explore(self, result: Result) -> None:
        self.world.server.flushdb()
        self.world.runs = {RUN: Known(self.bound.plan)}
        self.leases = [None] * self.bound.workers
        seen, waiting = {self._digest()}, deque([self._save(())])
        while waiting and result.states < self.bound.states:
            node = waiting.popleft()
            result.states += 1
            for step in self._steps(node):
                for stop in range(MOST_WRITES) if self.bound.stops else [None]:
                    self._load(node)
                    result.steps += 1
                    path = (*node.path, f"{step}" if stop is None else f"{step}, at most {stop} writes")
                    stopped = self._try(path, step, stop)
                    digest = self._digest()
                    if digest not in seen:
                        seen.add(digest)
                        waiting.append(self._save(path))
                        if stopped:
                            result.recoveries += 1
                            self._recover(path)
                    if not stopped:
                        break

    def _try(self, path: tuple[str, ...], step: Step, stop: int | None) -> bool:
        """Take a step; return whether it was stopped."""
        try:
            return self._take(step, stop)
        except AssertionError as error:
            raise _Wrong("\n".join([*path, str(error)])) from error

    def _recover(self, path: tuple[str, ...]) -> None:
        """Let the live system recover."""
        try:
            self.world.recover()
            run = self.world.state(RUN)
            assert run.state != "active", "the run has not ended"
            if not any(word in step for step in path for word in ("failed", "cancel", "retry")):
                assert run.state in {"completed", ""}, (
                    f"nothing has failed, and the run is {run.state}: {run}"
                )
        except AssertionError as error:
            raise _Wrong("\n".join([*path, "recovery", str(error)])) from error

    def _steps(self, node: Node) -> Iterator[Step]:
        if not node.known.before.state:
            yield Step("start")
            return
        for worker, held in enumerate(node.leases):
            if held is None or held[1].deadline <= node.now / 1000:
                yield from (Step("lease", worker, str(queue)) for queue in (0, 1))
            if held is not None:
                yield from (Step("finish", worker, kind) for kind in self.bound.kinds)
        yield from (Step(call) for call in (*self.bound.calls, "clock", "maintain"))

    def _take(self, step: Step, stop: int | None) -> bool:
        """Take a step; return whether it was stopped."""
        world = self.world
        if step.name == "start":
            return world.start(self.bound.plan, RUN, stop=stop) is None
        if step.name == "cancel":
            return world.cancel(RUN, stop=stop) is None
        if step.name == "finish":
            return self._finish(step, stop)
        if step.name == "lease":
            found = world.lease(int(step.how))
            if found:
                self.leases[step.worker] = (int(step.how), found[0])
        elif step.name == "clock":
            world.now += ROUND_MS
        elif step.name == "maintain":
            for queue in world.queues:
                world.call(partial(settle, queue))
            world.cancel_rests()
        else:
            world.retry(RUN)
        return False

    def _finish(self, step: Step, stop: int | None) -> bool:
        held = self.leases[step.worker]
        assert held is not None
        done = self.world.finish(held[0], self._row(held[1], step.how), stop=stop)
        if done is not None:
            self.leases[step.worker] = None
        return done is None

    def _row(self, lease: Lease, how: str) -> StageRow:
        if how == "fan":
            children = [ChildPlan(queue, b'"child"').json() for queue in self.world.names]
            return StageRow(lease, "fan", b"[" + b",".join(children) + b"]", b"all")
        return StageRow(lease, "failed" if how == "failed" else "done", b'"value"')

    # ----------------------------------------------------------------------------------- states

    def _save(self, path: tuple[str, ...]) -> Node:
        world = self.world
        rows = world.server.eval(_SAVE, 0)
        saved = tuple(value if isinstance(value, bytes) else b"%d" % value for row in rows for value in row)
        known = world.runs[RUN]
        known = replace(known, chosen=dict(known.chosen))
        return Node(saved, world.now, known, tuple(self.leases), world.open_ends, path)

    def _load(self, node: Node) -> None:
        world = self.world
        world.server.eval(_LOAD, 0, *node.saved)
        world.now, world.open_ends = node.now, node.open_ends
        world.runs = {RUN: replace(node.known, chosen=dict(node.known.chosen))}
        self.leases = [*node.leases]

    def _digest(self) -> str:
        """Return the same text for all states that differ only in times and in the numbers of tokens."""
        world = self.world
        held = [(lease.id, lease.token, queue) for queue, lease in filter(None, self.leases)]
        found: list[Any] = []
        for key, kind, contents in world.server.eval(_READ, 0):
            name = key.decode(errors="replace")
            entry = _normal(name, kind.decode(), contents, world.now)
            if entry is not None:
                found.append((name, entry))
        tokens = _tokens(world, held)
        leases = sorted((one, tokens.index((one, token)), queue) for one, token, queue in held)
        return json.dumps([sorted(found), leases, world.open_ends])


def _tokens(world: World, held: list[tuple[str, int, int]]) -> list[tuple[str, int]]:
    known = {(one, token) for one, token, _ in held}
    for name in world.names:
        for one, record in world.server.hgetall(f"{name}:ledger").items():
            known.update((one.decode(), int(token)) for token in record.split()[:2])
    return sorted(known)


def _normal(name: str, kind: str, contents: Any, now: int) -> Any:
    """Return the contents of a key without what depends on the time; None: the key does not matter."""
    last = name.rpartition(":")[2]
    if last in {"fence", "sessions", "idle"} or ":lease" in name or ":leased_by_session" in name:
        return None
    if kind == "string":
        return contents.decode(errors="replace")
    texts = [one.decode(errors="replace") if isinstance(one, bytes) else one for one in contents]
    if kind == "list":
        return texts
    pairs = sorted(zip(texts[::2], texts[1::2], strict=True))
    if kind == "zset":
        return [(member, float(score) <= now) for member, score in pairs]
    if last == "ledger":
        return [(one, record.split()[2]) for one, record in pairs]
    return [
        (one, value) for one, value in pairs if one not in {"created", "ended"} and not one.startswith("t:")
    ]
