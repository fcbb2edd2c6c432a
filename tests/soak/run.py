"""Run a soak: start processes, inject faults, let the work end and check the history."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from redis.asyncio import Redis

from leasequeue import InvalidArgument
from leasequeue.queue.shards.naming import shard_names
from tests.history.events import FinalState, History, HistoryLog
from tests.history.recording import record_calls
from tests.history.rules import Violation, check, check_limits
from tests.queue.keyspace import audit, left_over
from tests.soak.faults import FaultInjector
from tests.soak.jobs import GROUPS, QUEUES, SHARDS, Job, group_of, item, open_queue
from tests.soak.memory import Growth, check_memory
from tests.soak.nodes import Nodes, as_kept
from tests.soak.processes import Server
from tests.soak.worker_program import LEASE_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from leasequeue import AsyncWorkQueue

#: How long the rest of the work may take after the last fault (s).
DRAIN_SECONDS = 240.0
#: How long a round lasts, and how long faults are injected after keys were lost under load (s).
ROUND_SECONDS, LOSS_SECONDS = 75.0, 10.0
#: How far the clock goes to where an item is due that was scheduled while it was ahead (s).
MOST_AHEAD = 7_300
#: What is left of an empty queue that no process uses any more, and goes in time.
KEPT = ("sessions", "idle", "cleaner", "deep_cleaner")
#: The same of the last workers that were killed, which no other worker has seen.
KEPT_OF_WORKERS = ("workers", "heartbeats")
#: Memory is checked if it was sampled for at least so long (s).
JUDGED_SECONDS = 150.0


@dataclass
class Verdict:
    """The result of a soak."""

    seed: str
    #: How often each fault was injected, and each event is in the history.
    counts: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    #: Other problems, one sentence each.
    wrong: list[str] = field(default_factory=list)
    memory: dict[str, Growth] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        return not self.violations and not self.wrong


@dataclass(frozen=True)
class Setting:
    """What a soak runs on."""

    #: The server program: a name of tests/servers.py.
    server: str = "embedded"
    #: `plain`; `controlled`: with groups, priorities and limits; `sharded`: also with shards, on a cluster.
    kind: str = "plain"
    workers: int = 5
    producers: int = 2
    #: How many items all producers add per second.
    rate: float = 60.0
    #: How long each round lasts (s).
    round: float = ROUND_SECONDS


class _Round(NamedTuple):
    """What the server remembers at once: the time between two losses of all keys."""

    began: int
    ended: int
    #: What was left in each queue; none: it ended under load.
    finals: list[FinalState]


async def soak(seconds: float, seed: str, folder: Path, setting: Setting) -> Verdict:
    """Run a soak and return its verdict.

    It is a series of rounds. Each ends with the loss of all keys under living workers: by turns after all
    work is done, and under load. The history of a round is checked by itself, because with the keys, the
    server forgets what it has promised. What follows a loss under load must only end, with the right counts.

    A cluster loses no keys. There a round ends with an item for each shard, which the worker that has been
    spared all faults must do alone, and the history is checked as a whole.

    Args:
        seconds: How long faults are injected.
        seed: The same seed gives the same faults in the same order, but not at the same instants.
        folder: For the histories, the logs of the processes and the data of the server.
        setting: Which server, and how many processes.
    """
    verdict = Verdict(seed)
    faults = FaultInjector(folder, seed, setting)
    rounds: list[_Round] = []
    try:
        await faults.open()
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            loses = len(rounds) % 2 == 1 and isinstance(faults.server, Server)
            rounds.append(await _run_round(faults, verdict, min(left, setting.round), loses=loses))
        await faults.stop("worker")
        await _check_leftovers(faults, verdict)
    finally:
        await faults.close()
    history = await asyncio.to_thread(History.load, folder)
    if isinstance(faults.server, Nodes):
        rounds = [_Round(rounds[0].began, rounds[-1].ended, rounds[-1].finals)]
        history = History(as_kept(history.events, faults.server.undone))
        _judge_limits(history, verdict)
    for one in rounds:
        events = [event for event in history.events if one.began <= event.at < one.ended]
        found = await asyncio.to_thread(check, History(events), *one.finals)
        verdict.violations += [one for one in found if not _is_of_the_clock(one, faults.steps)]
    verdict.counts += faults.counts
    verdict.wrong += faults.wrong
    verdict.events = Counter(
        f"{event.kind} {event.outcome}" if event.outcome is not None else event.kind
        for event in history.events
        if event.called_at is not None or event.kind in ("begin", "end")
    )
    _judge_memory(faults, verdict)
    return verdict


def _is_of_the_clock(violation: Violation, steps: list[tuple[int, int]]) -> bool:
    """Return whether a run began late because a step of the clock had ended its lease early.

    Its worker counts the lease time by its own clock.
    """
    if violation.rule != "no run begins after completion" or violation.at is None:
        return False
    leased = violation.at - int(LEASE_SECONDS * 1e9)
    return any(began <= violation.at and ended >= leased for began, ended in steps)


async def _run_round(faults: FaultInjector, verdict: Verdict, seconds: float, *, loses: bool) -> _Round:
    """Inject faults, let the work end and remove all keys; `loses`: remove them once before it has ended."""
    began = time.monotonic_ns()
    await faults.start_producers()
    await faults.inject(seconds)
    ended = None
    if loses:
        ended = time.monotonic_ns()
        await faults.forget_all()
        await faults.inject(LOSS_SECONDS)
    await faults.heal()
    await faults.stop("producer")
    await _drain(faults, verdict)
    if isinstance(faults.server, Nodes):
        await faults.stop("worker", spare="gentle")
        await _add_to_each_shard(faults)
        await _drain(faults, verdict)
    finals = await _final_states(faults, verdict)
    now = time.monotonic_ns()
    await faults.forget_all()
    return _Round(began, ended or now, [] if ended else finals)


async def _drain(faults: FaultInjector, verdict: Verdict) -> None:
    """Wait until no work is left, and replace workers that crash.

    What was scheduled while the clock was ahead is due then: in the end, the clock goes there.
    """
    ends = time.monotonic() + DRAIN_SECONDS
    server, has_moved = faults.server, False
    async with _queues(faults) as queues:
        while True:
            counts = {one.name: await one.counts() for queue in queues for one in queue.shards}
            if not any(count.total for count in counts.values()):
                break
            if time.monotonic() > ends:
                left = {name: tuple(count) for name, count in counts.items() if count.total}
                verdict.wrong.append(f"after {DRAIN_SECONDS:.0f} s without faults, work is left: {left}")
                break
            if (
                isinstance(server, Server)
                and not has_moved
                and all(count.total == count.scheduled for count in counts.values())
            ):
                has_moved = all([await _is_scheduled_ahead(queue) for queue in queues])
                if has_moved:
                    server.set_clock(MOST_AHEAD)
            await faults.replace()
            await asyncio.sleep(0.2)
    if isinstance(server, Server):
        server.set_clock(0)


async def _is_scheduled_ahead(queue: AsyncWorkQueue) -> bool:
    """Return whether each scheduled item falls due later than any job of the soak is delayed."""
    soon = time.time() + 30
    scheduled = await queue.inspect("scheduled", count=50, data=False)
    return all(item.due is not None and item.due > soon for item in scheduled)


async def _add_to_each_shard(faults: FaultInjector) -> None:
    log = HistoryLog(faults.folder / f"each-{time.monotonic_ns()}.jsonl")
    async with _queues(faults) as queues:
        for queue in queues:
            record_calls(queue, log)
            for shard in queue.shards:
                ids = (f"each-{time.monotonic_ns()}." for _ in itertools.count())
                await queue.add_item(item(Job(), next(one for one in ids if queue.shard_of(one) is shard)))
    log.close()


async def _final_states(faults: FaultInjector, verdict: Verdict) -> list[FinalState]:
    async with _queues(faults) as queues:
        for queue in queues:
            for shard in queue.shards:
                async with _admin(faults, shard.name) as admin:
                    try:
                        await audit(admin, shard.name)
                    except AssertionError as error:
                        verdict.wrong.append(f"the keys of {shard.name} do not fit together: {error}")
            for finding in (await queue.admin.fsck()).findings:
                faults.counts[f"found at rest: {finding.problem}"] += finding.count
        return [await FinalState.read(shard) for queue in queues for shard in queue.shards]


async def _check_leftovers(faults: FaultInjector, verdict: Verdict) -> None:
    """Nothing is left of empty queues whose workers have stopped."""
    async with _queues(faults) as queues:
        names, expected = [shard.name for queue in queues for shard in queue.shards], {*KEPT}
        if isinstance(faults.server, Nodes):
            expected |= {*KEPT_OF_WORKERS}
            for queue in queues:
                await queue.admin.delete()
    for name in names:
        async with _admin(faults, name) as admin:
            if left := await left_over(admin, name) - {f"{name}:{key}".encode() for key in expected}:
                verdict.wrong.append(f"keys of {name} are left: {sorted(left)}")


@asynccontextmanager
async def _queues(faults: FaultInjector) -> AsyncIterator[list[AsyncWorkQueue]]:
    queues = [open_queue(faults.server.url, name, faults.kind, reply_timeout=10.0) for name in QUEUES]
    try:
        yield queues
    finally:
        for queue in queues:
            await queue.close()


@asynccontextmanager
async def _admin(faults: FaultInjector, shard: str) -> AsyncIterator[Redis]:
    """Connect to the server that has a queue, or a shard."""
    server = faults.server
    url = f"redis://127.0.0.1:{(await server.at(shard)).port}" if isinstance(server, Nodes) else server.url
    async with Redis.from_url(url) as admin:
        yield admin


def _judge_limits(history: History, verdict: Verdict) -> None:
    """No more was leased at once than the limits allow: of each queue, and of each of its groups."""
    queues = {shard: name for name, (count, *_) in SHARDS.items() for shard in shard_names(name, count)}
    limits: dict[str, int] = {}
    for name, (*_, whole, each) in SHARDS.items():
        limits |= {name: whole} | {f"{name}, group {group}": each for group in GROUPS}

    def limits_on(queue: str, item_id: str) -> list[str]:
        group = group_of(item_id)
        return [queues[queue], *([f"{queues[queue]}, group {group}"] if group else [])]

    peaks, found = check_limits(history, limits, limits_on, LEASE_SECONDS)
    verdict.violations += found
    verdict.counts |= {
        f"leased at once, {name} of at most {limits[name]}": peak for name, peak in peaks.items()
    }


def _judge_memory(faults: FaultInjector, verdict: Verdict) -> None:
    for what, samples in faults.memory.items():
        try:
            growth = verdict.memory[what] = check_memory(samples)
        except InvalidArgument:
            continue  # too few samples
        if what == "server" and isinstance(faults.server, Nodes):
            continue  # which masters there are changes, and each one grows after it was started again
        if growth.grows and samples[-1][0] - samples[0][0] >= JUDGED_SECONDS:
            verdict.wrong.append(f"the memory of the {what} grows: {growth}")
