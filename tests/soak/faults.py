"""Inject faults at random into the processes of the soak, and replace those that end."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from collections import Counter
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from leasequeue import ServerError
from leasequeue.queue.shards.naming import shard_names
from leasequeue.testing.proxy import Proxy
from tests.soak.jobs import QUEUES, SHARDS, open_queue
from tests.soak.nodes import Nodes
from tests.soak.processes import Child, Server
from tests.soak.worker_program import GRACE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from pathlib import Path

    from tests.soak.run import Setting

#: How long a process may take to end after SIGTERM and its grace time, with or without a server (s).
END_SECONDS = 45.0
#: How often memory is sampled (s).
SAMPLE_SECONDS = 0.5


class FaultInjector:
    """Runs the processes of a soak and injects faults.

    Attributes:
        counts: How often each fault was injected, and how processes ended.
        wrong: What went wrong with processes, one sentence each.
        kind: The kind of the soak.
        memory: For the server and one worker: samples of (seconds, bytes).
        steps: When the clock was stepped and stepped back, by `time.monotonic_ns()`.
    """

    def __init__(self, folder: Path, seed: str, setting: Setting) -> None:
        self.folder = folder
        self.server: Server | Nodes
        if setting.kind == "sharded":
            self.server = Nodes(
                one for name, (count, *_) in SHARDS.items() for one in shard_names(name, count)
            )
        else:
            self.server = Server(folder / "server", setting.server)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.memory: dict[str, list[tuple[float, float]]] = {"server": [], "worker": []}
        self.steps: list[tuple[int, int]] = []
        self.kind = setting.kind
        self._seed = seed
        self._chance = random.Random(seed)
        self._sizes = {"worker": setting.workers, "producer": 0}
        self._setting = setting
        self._proxies: dict[str, Proxy] = {}
        self._round = 0
        self._numbers = itertools.count()
        self._processes: dict[str, list[Child]] = {"worker": [], "producer": []}
        self._all: list[Child] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._away = asyncio.Lock()
        self._cut_off: set[str] = set()
        self._stepping = False

    async def open(self) -> None:
        """Start all processes. The first worker gets no faults, so that its memory can be measured."""
        await self.server.start()
        for kind, size in self._sizes.items():
            for number in range(size):
                await self._start(kind, gentle=kind == "worker" and number == 0)
        self._watching = asyncio.create_task(self._watch_memory())

    async def inject(self, seconds: float) -> None:
        """Inject faults for so many seconds."""
        acts: dict[Callable[[], Awaitable[None]], float] = {
            partial(self._kill, "worker"): 4,
            self._stop_worker: 5,
            self._end_worker: 5,
            partial(self._kill, "producer"): 1,
            self._stop_producer: 1,
            self._cut_connections: 3,
            self._clean: 2,
        }
        server = self.server
        if isinstance(server, Nodes):
            acts |= {partial(act, server): 4 for act in (self._kill_master, self._hand_over, self._move_slot)}
        else:
            acts |= {
                partial(self._restart_server, server): 1.5,
                partial(self._freeze_server, server): 1,
                self._cut_off_worker: 2,
                partial(self._step_clock, server): 1,
            }
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            await asyncio.sleep(min(self._chance.uniform(0.1, 1.0), max(0.0, ends - time.monotonic())))
            # The draws do not depend on durations, so that a seed gives the same faults again.
            await self._chance.choices(list(acts), list(acts.values()))[0]()
            await self.replace()

    async def heal(self) -> None:
        """Wait until all faults are over, and replace the processes that have ended."""
        while self._under_way:
            await asyncio.wait(self._under_way)
        await self.replace()

    async def start_producers(self) -> None:
        """Start producers, whose ids are new."""
        self._round += 1
        self._sizes["worker"] = self._setting.workers
        self._sizes["producer"] = self._setting.producers
        await self.replace()

    async def forget_all(self) -> None:
        """Remove all keys while the workers continue: by FLUSHALL, or by a restart without data.

        A cluster keeps them.
        """
        if isinstance(self.server, Nodes):
            return
        restarts = self._chance.random() < 0.5
        async with self._away:
            self.counts["restarts without data" if restarts else "FLUSHALL"] += 1
            if restarts:
                await self.server.kill()
                self.server.forget()
                await self.server.start()
            else:
                async with Redis.from_url(self.server.url) as admin:
                    await admin.flushall()

    async def stop(self, kind: str, *, spare: str = "all others") -> None:
        """Stop the processes of a kind with SIGTERM, but those with `spare` in their names."""
        kept = [child for child in self._processes[kind] if spare in child.name]
        self._sizes[kind] = len(kept)
        leaving, self._processes[kind] = [one for one in self._processes[kind] if one not in kept], kept
        for child in leaving:
            # Before its log exists, a process has no handler for SIGTERM.
            child.send(signal.SIGTERM if child.working else signal.SIGKILL)
            child.ending = True
        await asyncio.gather(*(self._await_end(child) for child in leaving))

    async def replace(self) -> None:
        """Replace processes that have ended, and record those that should not have."""
        for kind, size in self._sizes.items():
            for child in self._processes[kind]:
                code = child.process.returncode
                if code is None or child.ending:
                    continue
                if kind == "worker" and code == -signal.SIGKILL:
                    self.counts["workers died of their work"] += 1
                else:
                    self.wrong.append(f"{child.name} ended by itself with code {code}; see its log")
            self._processes[kind] = [
                child for child in self._processes[kind] if child.alive and not child.ending
            ]
            while len(self._processes[kind]) < size:
                await self._start(kind)

    async def close(self) -> None:
        """Kill all processes and stop the server."""
        tasks = [*self._under_way, *([self._watching] if self._watching else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for child in self._all:
            child.send(signal.SIGKILL)
            await child.process.wait()
        for proxy in self._proxies.values():
            await proxy.fail()
        await self.server.stop()

    # ------------------------------------------------------------------------ faults

    async def _kill(self, kind: str) -> None:
        child = self._target(kind)
        if child is not None:
            self.counts[f"{kind}s killed"] += 1
            child.ending = True
            child.send(signal.SIGKILL)
            await child.process.wait()

    async def _stop_worker(self) -> None:
        await self._suspend("worker", self._chance.choice([0.1, 0.5, 1.5, 2.5, 5.0]))

    async def _stop_producer(self) -> None:
        await self._suspend("producer", self._chance.uniform(0.1, 3.0))

    async def _suspend(self, kind: str, seconds: float) -> None:
        child = self._target(kind)
        if child is not None:
            self.counts[f"{kind}s stopped"] += 1
            child.send(signal.SIGSTOP)
            self._spawn(self._resume(child, seconds))

    async def _resume(self, child: Child, seconds: float) -> None:
        await asyncio.sleep(seconds)
        child.send(signal.SIGCONT)

    async def _end_worker(self) -> None:
        child = self._target("worker")
        if child is not None:
            self.counts["workers ended"] += 1
            child.ending = True
            child.send(signal.SIGTERM)
            self._spawn(self._await_end(child))

    async def _await_end(self, child: Child) -> None:
        """Wait until a process has ended after SIGTERM, at most as long as it may take."""
        await child.running.wait()
        code = await child.wait(GRACE_SECONDS + END_SECONDS)
        if code is None:
            self.wrong.append(f"{child.name} did not end; its log shows its stacks")
        elif code not in (0, 3, -signal.SIGKILL):
            self.wrong.append(f"{child.name} ended with code {code}; see its log")
        self.counts[f"ends with code {code}"] += 1

    async def _kill_master(self, nodes: Nodes) -> None:
        self._change("masters killed", nodes.replace(self._chance.random(), self._chance.uniform(0.0, 3.0)))

    async def _hand_over(self, nodes: Nodes) -> None:
        self._change("masters replaced", nodes.hand_over(self._chance.random()))

    async def _move_slot(self, nodes: Nodes) -> None:
        name, chance = self._chance.choice(QUEUES), random.Random(self._chance.random())
        shard = chance.choice(shard_names(name, SHARDS[name][0]))
        self._change("slots moved", nodes.move(shard, chance))

    def _change(self, what: str, change: Coroutine[Any, Any, None]) -> None:
        if self._away.locked():
            change.close()
            return
        self.counts[what] += 1
        self._spawn(self._noted(what, self._while_away(change)))

    async def _noted(self, what: str, change: Coroutine[Any, Any, None]) -> None:
        """Note in a file when a change began and ended, to compare with the logs of the processes."""
        began = datetime.now()  # noqa: DTZ005 - local time, as in the logs
        await change
        with (self.folder / "changes.log").open("a") as file:
            file.write(f"{began:%H:%M:%S.%f} to {datetime.now():%H:%M:%S.%f}: {what}\n")  # noqa: DTZ005 - as above

    async def _restart_server(self, server: Server) -> None:
        kills, pause = self._chance.random() < 0.6, self._chance.uniform(0.0, 3.0)
        if not self._away.locked():
            self.counts["servers killed" if kills else "servers stopped"] += 1
            self._spawn(self._while_away(self._leave_and_return(server, kills, pause)))

    async def _leave_and_return(self, server: Server, kills: bool, pause: float) -> None:  # noqa: FBT001 - internal
        await (server.kill() if kills else server.stop())
        await asyncio.sleep(pause)
        await server.start()

    async def _freeze_server(self, server: Server) -> None:
        pause = self._chance.uniform(0.1, 4.0)
        if not self._away.locked():
            self.counts["servers frozen"] += 1
            self._spawn(self._while_away(self._freeze(server, pause)))

    async def _freeze(self, server: Server, pause: float) -> None:
        server.send(signal.SIGSTOP)
        await asyncio.sleep(pause)
        server.send(signal.SIGCONT)

    async def _cut_off_worker(self) -> None:
        child, seconds = self._target("worker"), self._chance.uniform(0.2, 8.0)
        if child is not None and child.name not in self._cut_off:
            self.counts["workers cut off"] += 1
            self._spawn(self._cut_off_for(child.name, seconds))

    async def _cut_off_for(self, name: str, seconds: float) -> None:
        self._cut_off.add(name)
        await self._proxies[name].fail()
        await asyncio.sleep(seconds)
        await self._proxies[name].heal()
        self._cut_off.discard(name)

    async def _step_clock(self, server: Server) -> None:
        seconds, pause = self._chance.choice([-7200, -20, 20, 7200]), self._chance.uniform(0.05, 1.5)
        if not self._stepping:
            self.counts[f"steps of the clock by {seconds} s"] += 1
            self._spawn(self._step_and_return(server, seconds, pause))

    async def _step_and_return(self, server: Server, seconds: int, pause: float) -> None:
        self._stepping = True
        began = time.monotonic_ns()
        server.set_clock(seconds)
        await asyncio.sleep(pause)
        server.set_clock(0)
        self.steps.append((began, time.monotonic_ns()))
        self._stepping = False

    async def _clean(self) -> None:
        name, fscks = self._chance.choice(QUEUES), self._chance.random() < 0.5
        self._spawn(self._clean_queue(name, fscks=fscks))

    async def _clean_queue(self, name: str, *, fscks: bool) -> None:
        async with open_queue(self.server.url, name, self.kind) as queue:
            try:
                report = await (queue.admin.fsck() if fscks else queue.deep_clean())
            except ServerError:
                self.counts["cleans interrupted"] += 1
                return
        self.counts["fscks" if fscks else "deep cleans"] += 1
        for finding in report.findings:
            self.counts[f"found: {finding.problem}"] += finding.count

    async def _while_away(self, how: Coroutine[Any, Any, None]) -> None:
        async with self._away:
            await how

    async def _cut_connections(self) -> None:
        share, drawn = self._chance.uniform(0.1, 1.0), [self._chance.random() for _ in range(100)]
        if not self._away.locked():
            async with self._away:
                self.counts["connections cut"] += await self.server.cut(share, drawn)

    # --------------------------------------------------------------------- processes

    def _target(self, kind: str) -> Child | None:
        """Draw a process that runs, is not ending and may get faults."""
        drawn = self._chance.random()
        able = [child for child in self._processes[kind] if child.working and "gentle" not in child.name]
        return able[int(drawn * len(able))] if able else None

    async def _start(self, kind: str, *, gentle: bool = False) -> None:
        number = next(self._numbers)
        name = f"{kind}-{number}{'-gentle' if gentle else ''}"
        arguments = [f"{self._seed}-{number}"]
        url = self.server.url
        if kind == "producer":
            rate = self._setting.rate / self._setting.producers
            arguments += [str(rate), self.kind, str(self._round)]
        else:
            arguments += [self.kind, *(["gentle"] if gentle else [])]
        if kind == "worker" and not gentle and isinstance(self.server, Server):
            proxy = self._proxies[name] = Proxy(url)
            await proxy.accept()
            url = proxy.url
        child = await Child.start(f"{kind}_program", name, url, self.folder, *arguments)
        self._processes[kind].append(child)
        self._all = [*(one for one in self._all if one.alive), child]
        self.counts[f"{kind}s started"] += 1

    async def _watch_memory(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            now = time.monotonic()
            spared = next((child for child in self._processes["worker"] if "gentle" in child.name), None)
            if spared is not None and (resident := spared.resident()) is not None:
                self.memory["worker"].append((now, resident))
            if not self._away.locked():
                async with self._away:
                    try:
                        self.memory["server"].append((now, await self.server.memory()))
                    except RedisError:
                        self.counts["samples missed"] += 1

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.wrong.append(f"the injection of faults failed: {error!r}")
