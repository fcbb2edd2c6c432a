"""The whole autoscaler: a server, a loop and workers as processes, items under load, and kills."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Fleet, Item
from leasequeue.autoscale import Autoscaler, load_config
from leasequeue.autoscale.leader import Leadership, State
from leasequeue.errors import ConnectionLost, ServerBusy
from tests.autoscale.backend_bench import ProcessBench
from tests.eventually import eventually
from tests.faults.test_killed_server import kill, start
from tests.queue.asking import until

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator
    from pathlib import Path

    from leasequeue.autoscale import PassReport
    from leasequeue.embedded import EmbeddedServer
    from leasequeue.testing import Proxy
    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue

#: How long an item takes, and how long it may wait (s).
SERVICE_TIME, AGE_TARGET = 0.18, 4.0
#: How many items are added per second: work for 1.8 workers.
RATE = 10.0
#: So many items in a row, all added after a fault, show that the target holds again.
ROW = 12
#: Far longer than any step takes, also on a slow machine (s).
WITHIN = 90.0

CONFIG = """
name = "scale-{queue}"
url = "{url}"
every = "250ms"
clean_every = "never"
deep_clean_every = "never"

[jobs.{queue}]
age_target = "{target}s"
service_time = "{service}s"
# As the next pass counts as 10 s away, units are kept for what arrives by a smaller chance than the rest. By
# default that is 0.01: one item that the rate remembers would keep a unit for 10 minutes.
confidence = 0.5

[deployments.work]
jobs = ["{queue}"]
backend = "processes"

[deployments.work.processes]
command = {command}
env = {{ PYTHONPATH = "{path}", QUEUE = "{queue}", RECORD = "{record}" }}
on_exit = "leave"

[[deployments.work.tiers]]
name = "t1"
max_units = 4
spin_up = "2s"
slow_down = "1s"
"""

log = logging.getLogger(__name__)


@dataclass
class Stage:
    """A server, a loop, and what was added and run."""

    bench: ProcessBench
    server: EmbeddedServer
    config: Path
    queue: AsyncWorkQueue
    loading: asyncio.Task[None] | None = None
    loop: Process | None = None
    #: The copies of the loop, by their process ids.
    copies: dict[int, Process] = field(default_factory=dict)
    added: set[str] = field(default_factory=set)
    #: Those of which it is not known whether they were added.
    unsure: set[str] = field(default_factory=set)
    killed: set[int] = field(default_factory=set)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def add(self, what: float | str = SERVICE_TIME) -> None:
        """Add an item that takes so many seconds, or that holds."""
        item = Item(f"{what} {time.time()}".encode(), id=f"i{next(self.numbers)}")
        self.unsure.add(item.id)  # also if this is cancelled, as the load ends
        with contextlib.suppress(ConnectionLost, ServerBusy):
            await self.queue.add_item(item)
            self.unsure.remove(item.id)
            self.added.add(item.id)

    def start_load(self) -> None:
        """Add items until `end_load`."""
        self.loading = asyncio.create_task(self._load())

    async def end_load(self) -> None:
        """Add no more items."""
        assert self.loading is not None
        self.loading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.loading

    async def _load(self) -> None:
        due = time.monotonic()
        while True:
            await self.add()
            due = max(due + 1 / RATE, time.monotonic() - 1)
            await asyncio.sleep(due - time.monotonic())

    async def start_loop(self) -> None:
        """Start a copy of the autoscaler."""
        self.loop = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "leasequeue.cli", "autoscale", str(self.config)),
            env={**os.environ, "COLUMNS": "200"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        self.copies[self.loop.pid] = self.loop

    async def kill_loop(self) -> None:
        """Kill the autoscaler between two of its passes: another one would wait for the lease of a pass."""
        assert self.loop is not None
        async with AsyncWorkQueue.from_url(self.server.url, f"scale-{self.bench.queue}") as own:

            async def is_between() -> bool:
                assert self.loop is not None
                self.loop.send_signal(signal.SIGSTOP)
                counts = await own.counts()
                if counts.waiting == 1:
                    return True
                self.loop.send_signal(signal.SIGCONT)
                return False

            await until("it is between two passes", is_between, within=WITHIN)
            self.loop.kill()
            await self.loop.wait()

    async def kill_unit(self) -> None:
        """Kill a worker that runs an item."""
        found: list[int] = []

        def is_busy() -> bool:
            found.extend(self._busy())
            return bool(found)

        await eventually("a worker runs an item", is_busy)
        pid = found[0]
        self.killed.add(pid)
        os.kill(pid, signal.SIGKILL)

    def _busy(self) -> list[int]:
        """Return the processes of workers that run an item."""
        runs = Counter(self.runs("began"))
        runs.subtract(self.runs("ended"))
        pids = self.bench.pids()
        return [pid for (_, pid), count in runs.items() if count > 0 and pid in pids]

    def runs(self, event: str) -> list[tuple[str, int]]:
        """Return the items and processes of the runs with this event in the record."""
        return [(id_, int(pid)) for _, id_, pid, *_ in self._lines(event)]

    def _lines(self, event: str) -> list[list[str]]:
        record = self.bench.record
        lines = record.read_text().splitlines() if record.exists() else []
        return [line.split() for line in lines if line.startswith(event)]

    async def holds_again(self, what: str) -> None:
        """Wait until the age target holds again, and log how long that took."""
        began = time.time()

        def holds() -> bool:
            if self.loading is not None and self.loading.done():
                self.loading.result()
            waits = [
                float(waited)
                for _, _, _, waited, at in self._lines("began")
                if float(at) - float(waited) > began
            ]
            return len(waits) >= ROW and max(waits[-ROW:]) <= AGE_TARGET

        await eventually(f"the age target holds again after: {what}", holds, within=WITHIN)
        log.info("%s: the age target holds again after %.1f s", what, time.time() - began)


@pytest.fixture
async def stage(tmp_path: Path, make_server: MakeServer, name: str) -> AsyncIterator[Stage]:
    """Start a server, and write a configuration."""
    server = await start(make_server, tmp_path / "server")
    bench = ProcessBench(tmp_path, server.url, name)
    config = tmp_path / "autoscale.toml"
    config.write_text(
        CONFIG.format(
            queue=name,
            url=server.url,
            target=AGE_TARGET,
            service=SERVICE_TIME,
            command=bench.command,
            path=os.pathsep.join(path for path in sys.path if path),
            record=bench.record,
        )
    )
    queue = AsyncWorkQueue.from_url(server.url, name, reply_timeout=5)
    stage = Stage(bench, server, config, queue)
    try:
        yield stage
    finally:
        if stage.loading is not None and not stage.loading.done():
            await stage.end_load()
        for one in stage.copies.values():
            if one.returncode is None:
                one.kill()
                await one.wait()
        await queue.close()
        await bench.end()


@pytest.mark.slow
@pytest.mark.seed("RWQ-O22", "RWQ-O24", "RWQ-K6")
async def test_the_age_target_holds_again_after_kills_and_nothing_is_lost_or_run_twice_by_scaling_in(
    stage: Stage, make_server: MakeServer, tmp_path: Path
) -> None:
    await stage.start_loop()
    stage.start_load()
    await stage.holds_again("start")

    await stage.kill_unit()
    await stage.holds_again("a worker was killed")

    await stage.kill_loop()
    await stage.kill_unit()
    left = set(stage.bench.pids())
    killed = stage.loop
    await stage.start_loop()
    assert killed is not None
    await another_leads(stage, killed.pid)
    await stage.holds_again("the loop and a worker were killed")
    assert left & set(stage.bench.pids()), "those that lived were adopted"

    await kill(stage.server)
    stage.server = await start(make_server, tmp_path / "server", stage.server.port)
    await stage.holds_again("the server was killed and restarted")
    # What was leased as it was killed, and what no worker has received, waits for the end of its lease.
    before = {*stage.added}
    await eventually("its leases have ended", lambda: before <= {id_ for id_, _ in stage.runs("ended")})

    await scaled_in(stage)
    await finished(stage)


async def finished(stage: Stage) -> None:
    """Check that all items are done, and which ran more than once; end the loop."""
    assert await stage.queue.dead_letters.count() == 0
    ended = Counter(id_ for id_, _ in stage.runs("ended"))
    assert stage.added <= ended.keys() <= stage.added | stage.unsure
    cut = Counter(stage.runs("began")) - Counter(stage.runs("ended"))
    assert {pid for _, pid in cut} <= stage.killed, "only a kill has interrupted runs"
    # A worker may be killed when a run has ended and the item is not completed yet.
    by_killed = {id_ for id_, pid in stage.runs("began") if pid in stage.killed}
    again = [id_ for id_, count in Counter(id_ for id_, _ in stage.runs("began")).items() if count > 1]
    assert set(again) <= by_killed
    assert {id_ for id_, count in ended.items() if count > 1} <= by_killed
    log.info("%d items, of which %d ran again after a kill", len(ended), len(again))
    for one in stage.copies.values():
        if one.returncode is None:
            one.terminate()
            async with asyncio.timeout(WITHIN):
                assert await one.wait() == 0


async def scaled_in(stage: Stage) -> None:
    """End the load, and let two units leave while they run."""
    for _ in range(2):
        await stage.add("hold")
    await stage.end_load()

    async def leave_while_they_run() -> bool:
        return sum(one.quiet for one in await Fleet(stage.queue).workers() if one.running) == 2

    await until("two units leave while they run", leave_while_they_run, within=WITHIN)
    stage.bench.release()

    async def all_is_done() -> bool:
        return (await stage.queue.counts()).total == 0 and not stage.bench.pids()

    await until("all is done, and all units have stopped", all_is_done, within=WITHIN)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_standby_leads_on_whenever_the_leader_is_killed(
    stage: Stage, make_server: MakeServer, tmp_path: Path
) -> None:
    """Wherever in a pass it is killed. Workers and the server are killed, too."""
    for _ in range(2):
        await stage.start_loop()
    stage.start_load()
    await stage.holds_again("start")
    for number in range(4):
        leader = await leading(stage)
        leader.kill()
        await leader.wait()
        await stage.kill_unit()
        if number % 2:
            await kill(stage.server)
            stage.server = await start(make_server, tmp_path / "server", stage.server.port)
        await another_leads(stage, leader.pid)
        await stage.holds_again(f"the leader was killed ({number})")
        if number < 3:  # one that is still starting at the end would not end by itself
            await stage.start_loop()
    await scaled_in(stage)
    await finished(stage)


async def leading(stage: Stage) -> Process:
    """Return the copy that has made the last pass."""
    async with Autoscaler(load_config(stage.config)) as observer:
        reports: list[PassReport] = []

        async def is_known() -> bool:  # it is not while the server is away, or takes long
            reports.extend(one for one in [await observer.last_report()] if one)
            return bool(reports)

        await until("the report of the last pass is known", is_known, within=WITHIN)
    return stage.copies[int(reports[0].copy.split("/")[1])]


async def another_leads(stage: Stage, before: int) -> None:
    """Wait until another copy leads than one that was killed."""

    async def another() -> bool:
        with contextlib.suppress(ConnectionLost, ServerBusy):
            return (await leading(stage)).pid != before
        return False

    await until("another copy leads", another, within=WITHIN)


async def test_a_copy_leads_on_after_the_server_was_away_at_the_end_of_its_pass(
    make_queue: MakeQueue, proxy: Proxy
) -> None:
    """It still has the lease, which would last for half a minute."""
    queue = make_queue(url=proxy.url, reply_timeout=2)
    leadership = Leadership(queue, copy="one", every=0.1)
    async with leadership.turn() as turn:
        assert turn is not None
        assert await turn.keep(State(number=1, leader="one"))
        leadership.lead(turn.state)
        await proxy.fail()
    await proxy.heal()
    async with leadership.turn() as turn:
        assert turn is not None
        assert turn.state.number == 1
    assert leadership.leads
