"""Explores what workers can do with one flow run: all orders of a few steps, each stopped at any write.

From each state, each step is tried, and stopped after each of its writes, by a worker that may repeat it
later or never. After each step the run is compared with its plan; and from each state that a stopped step has
left, the live system must recover.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.queue.plans.plan import CHAIN, ChildPlan, sub_run_id
from leasequeue.queue.plans.stages import FinishRow
from tests.stateful.explorer.engine import Broken, Found, Server, checked
from tests.stateful.flows.world import ROUND_MS, Known, World, settle_queue
from tests.stateful.live import NOW_MS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leasequeue import Lease
    from leasequeue.queue.plans.plan import FlowPlan

RUN = "run"
#: More writes than one step makes on the small runs here.
MOST_WRITES = 40
#: The ends of keys are rounded to so many ms.
UNIT_MS = 10_000


@dataclass(frozen=True)
class Bound:
    """What is explored.

    Attributes:
        plan: The plan of the run, for the names of the two queues.
        inner: The plan of the runs for which its stages wait that are flows.
        kinds: How a stage may end: `done`, `failed`, `fan`; `chain`: it fans out to a chain.
        calls: What other clients do: `cancel`, `retry`; `signal`: give the stage `b` its signal.
        workers: How many leases may be held at the same time.
        stops: Whether steps are stopped.
        states: From how many states steps are taken.
    """

    plan: FlowPlan
    inner: FlowPlan | None = None
    kinds: tuple[str, ...] = ("done", "failed")
    calls: tuple[str, ...] = ()
    workers: int = 2
    stops: bool = True
    states: int = 60
    depth: int = 1000

    def start(self) -> tuple[bytes, Node]:
        """Return the first state and its digest."""
        node = Node(b"[]", NOW_MS, {RUN: Known(self.plan)}, (None,) * self.workers)
        return digest(node), node

    def explorer(self, url: str) -> FlowExplorer:
        """Return what explores it on a server."""
        return FlowExplorer(url, self)


class Node(NamedTuple):
    """A state: what the server holds, what the workers hold, and whether anything may have failed."""

    text: bytes
    now: int
    known: dict[str, Known]
    leases: tuple[tuple[int, Lease] | None, ...]
    open_ends: bool = False
    is_harmed: bool = False


class Step(NamedTuple):
    """A step: what, by which worker, and how; after how many writes it is stopped."""

    name: str
    worker: int = 0
    how: str = ""
    stop: int | None = None

    def __str__(self) -> str:
        stop = "" if self.stop is None else f", at most {self.stop} writes"
        return f"{self.name} {self.how} (worker {self.worker}){stop}"


class FlowExplorer:
    """Takes all steps from states, on a separate server."""

    def __init__(self, url: str, bound: Bound) -> None:
        self.server = Server(url, UNIT_MS)
        self.world = World(url, "q")
        self.bound = bound
        if bound.inner is not None:
            self.world.inner = {
                sub_run_id(RUN, one.name): bound.inner for one in bound.plan.stages if one.flow
            }
        self.steps = self.recoveries = 0
        self.leases: list[tuple[int, Lease] | None] = []
        self._digests: set[bytes] = set()

    def close(self) -> None:
        """Close the queues and the connection."""
        self.world.close()
        self.server.close()

    def expand(self, states: Sequence[tuple[int, Node]], *, last: bool) -> Iterator[Found | Broken]:
        """See `engine.Explorer`. Stop at the first violation."""
        for number, node in states if not last else ():
            for step in self._steps(node):
                for found in self._expand(number, node, step):
                    yield found
                    if isinstance(found, Broken):
                        return

    def _expand(self, number: int, node: Node, step: Step) -> Iterator[Found | Broken]:
        """Take a step, stopped after each of its writes, and to its end."""
        for stop in range(MOST_WRITES) if self.bound.stops else [None]:
            taken = step._replace(stop=stop)
            self._load(node)
            self.steps += 1
            try:
                stopped = self._take(step, stop)
                then = self._save(node, step)
                name = digest(then)
                if name not in self._digests:
                    self._digests.add(name)
                    yield Found(name, number, taken, then)
                    if stopped:
                        self.recoveries += 1
                        self._recover(then)
            except AssertionError as error:
                yield Broken(number, taken, str(error))
                return
            if not stopped:
                return

    def _recover(self, node: Node) -> None:
        """Let the live system recover."""
        self.world.recover()
        run = self.world.state(RUN)
        assert run.state != "active", "the run has not ended"
        assert node.is_harmed or run.state in {"completed", ""}, (
            f"nothing has failed, and the run is {run.state}: {run}"
        )

    def _steps(self, node: Node) -> Iterator[Step]:
        if not node.known[RUN].before.state:
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
        if step.name == "signal":
            world.signal(RUN, "b", 1, stop=stop)
            return world.was_stopped
        if step.name == "finish":
            return self._finish(step, stop)
        if step.name == "lease":
            found = world.lease(int(step.how))
            if found:
                self.leases[step.worker] = (int(step.how), found[0])
        elif step.name == "clock":
            pass  # see `_save`
        elif step.name == "maintain":
            for queue in world.queues:
                world.call(partial(settle_queue, queue))
            world.cancel_rests()
        else:
            world.retry(RUN)
        return False

    def _finish(self, step: Step, stop: int | None) -> bool:
        held = self.leases[step.worker]
        assert held is not None
        if self.world.is_flow(held[1]):
            self.world.begin_inner(*held, stop=stop)
        else:
            self.world.finish(held[0], self._row(held[1], step.how), stop=stop)
        if not self.world.was_stopped:
            self.leases[step.worker] = None
        return self.world.was_stopped

    def _row(self, lease: Lease, how: str) -> FinishRow:
        if how in {"fan", "chain"}:
            children = [ChildPlan(queue, b'"child"') for queue in self.world.names]
            if how == "chain":
                children = [ChildPlan("", b"", parts=(*children,), policy=CHAIN)]
            return FinishRow(lease, "fan", b"[" + b",".join(one.json() for one in children) + b"]", b"all")
        return FinishRow(lease, "failed" if how == "failed" else "done", b'"value"')

    def _save(self, before: Node, step: Step) -> Node:
        world, text, now = self.world, before.text, before.now
        if step.name == "clock":
            world.now = now = now + ROUND_MS  # the keys that end until then are left out when they are loaded
        else:
            self.server.send(self.server.dump(now))
            text = checked(self.server.reply())
        known = {run: one.copy() for run, one in world.runs.items()}
        harmed = before.is_harmed or step.name in {"cancel", "retry"} or step.how == "failed"
        return Node(text, now, known, tuple(self.leases), world.open_ends, harmed)

    def _load(self, node: Node) -> None:
        world = self.world
        self.server.send(self.server.load(node.text, node.now))
        checked(self.server.reply())
        world.now, world.open_ends = node.now, node.open_ends
        world.runs = {run: one.copy() for run, one in node.known.items()}
        self.leases = [*node.leases]


def digest(node: Node) -> bytes:
    """Return the same text for all states that differ only in times and in the numbers of tokens."""
    keys = json.loads(node.text.decode("latin-1"))
    held = [(lease.id, lease.token, queue) for queue, lease in filter(None, node.leases)]
    known = {(one, token) for one, token, _ in held}
    for name, _, contents, _ in keys:
        if name.endswith(":ledger"):
            known.update(
                (one, int(token))
                for one, record in zip(contents[::2], contents[1::2], strict=True)
                for token in record.split()[:2]
            )
    tokens = sorted(known)
    leases = sorted((one, tokens.index((one, token)), queue) for one, token, queue in held)
    entries = [(name, _normal(name, kind, contents, node.now)) for name, kind, contents, _ in keys]
    found = sorted(entry for entry in entries if entry[1] is not None)
    return json.dumps([found, leases, node.open_ends]).encode()


def _normal(name: str, kind: str, contents: Any, now: int) -> Any:
    """Return the contents of a key without what depends on the time; None: the key does not matter."""
    last = name.rpartition(":")[2]
    if last in {"fence", "sessions", "idle"} or ":lease" in name or ":leased_by_session" in name:
        return None
    if kind in {"string", "list"}:
        return contents
    pairs = sorted(zip(contents[::2], contents[1::2], strict=True))
    if kind == "zset":
        return [(member, float(score) <= now) for member, score in pairs]
    if last == "ledger":
        return [(one, record.split()[2]) for one, record in pairs]
    return [
        (one, value) for one, value in pairs if one not in {"created", "ended"} and not one.startswith("t:")
    ]
