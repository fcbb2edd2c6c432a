"""Worker processes are killed: their items run elsewhere at once, although the leases would last for an hour.

Nor are workers dead for lack of heartbeats within that time: only connections, or the supervisor, can tell.
"""

from __future__ import annotations

import asyncio
import json
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Item
from leasequeue.testing import Proxy
from tests.cli.worker_bench import Bench
from tests.faults.test_killed_server import kill, start
from tests.queue.asking import until

if TYPE_CHECKING:
    from pathlib import Path

    from leasequeue.embedded import EmbeddedServer
    from tests.conftest import MakeServer

pytestmark = [pytest.mark.slow]

#: Leases of an hour, heartbeats that may be missed for an hour, and peers that conclude soon.
SOON = {"LEASE": "3600", "DEAD_AFTER": "3600", "PEERS": "soon"}
#: The same, with peers nearly as they are, and as they are.
SOONER, REAL = SOON | {"PEERS": "sooner"}, SOON | {"PEERS": "as they are"}


async def workers(redis: Redis, name: str) -> list[dict[str, Any]]:
    """Return what the workers say of themselves."""
    values = await redis.hvals(f"{name}:workers")
    return [about for about in map(json.loads, values) if isinstance(about, dict)]


async def checkable(redis: Redis, name: str, count: int) -> None:
    """Wait until so many workers have registered connections to the server that runs now."""

    async def registered() -> bool:
        run_id = (await redis.info("server"))["run_id"]
        known = [one for one in await workers(redis, name) if one["connections"] and one["server"] == run_id]
        return len(known) == count

    await until(f"{count} workers have registered their connections", registered)


# ------------------------------------------------------------------------------------------ false alarms


@pytest.mark.seed("WRQ-O11", "WRQ-O16", "WRQ-G9")
async def test_the_item_of_a_killed_worker_runs_in_another_and_that_of_a_frozen_one_does_not(
    bench: Bench, queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    """The frozen one has been looked at, as has the one that died meanwhile."""
    async with bench.working("--concurrency", "1", **SOON) as frozen:
        await queue.add_item(Item(b"hold", id="frozen"))
        await bench.began()
        async with bench.working("--concurrency", "1", **SOON) as dead:
            await queue.add_item(Item(b"hold", id="dead"))
            await bench.began(2)
            async with bench.working("--concurrency", "2", **SOON) as other:
                await checkable(redis, name, 3)
                frozen.signal(signal.SIGSTOP)
                dead.signal(signal.SIGKILL)
                await bench.began(3)
                frozen.signal(signal.SIGCONT)
                bench.release()
                ended = await bench.ended(2)
                assert dict(ended) == {"frozen": frozen.process.pid, "dead": other.process.pid}
                assert await frozen.stop() == await other.stop() == 0
    assert len(bench.recorded("began")) == 3
    assert (await queue.counts()).total == 0
    assert not await redis.exists(f"{name}:workers", f"{name}:heartbeats")


@pytest.fixture
async def restarted(make_server: MakeServer, tmp_path: Path) -> Restarted:
    """Return a server that keeps its data over restarts."""
    return await Restarted(make_server, tmp_path / "server").start()


class Restarted:
    """A server that keeps its data when it is killed."""

    def __init__(self, make: MakeServer, folder: Path) -> None:
        self._make, self._folder = make, folder
        self._server: EmbeddedServer | None = None
        folder.mkdir()

    @property
    def server(self) -> EmbeddedServer:
        """The server that runs now."""
        assert self._server is not None
        return self._server

    async def start(self, port: int = 0) -> Restarted:
        """Start it."""
        self._server = await start(self._make, self._folder, port)
        return self

    async def restart(self, *, away: float = 0.0) -> None:
        """Kill it, and start it again."""
        await kill(self.server)
        await asyncio.sleep(away)
        await self.start(self.server.port)


async def no_false_alarm(
    restarted: Restarted, folder: Path, name: str, *, seconds: float, away: float, environment: dict[str, str]
) -> None:
    """Restart the server under workers that run items, then kill one: only its item runs again."""
    bench = Bench(folder, restarted.server.url, name)
    alone = ("--concurrency", "1")
    async with (
        AsyncWorkQueue.from_url(restarted.server.url, name) as queue,
        bench.working(*alone, **environment) as first,
        bench.working(*alone, **environment) as second,
        bench.working("--concurrency", "2", **environment) as spare,
    ):
        await queue.add_items([Item(b"hold", id=f"{n}") for n in range(4)])
        await bench.began(4)
        until_time = asyncio.get_running_loop().time() + seconds
        async with Redis.from_url(restarted.server.url) as redis:
            while True:
                await checkable(redis, name, 3)
                if asyncio.get_running_loop().time() >= until_time:
                    break
                await restarted.restart(away=away)
                await redis.connection_pool.disconnect()
            assert len(bench.recorded("began")) == 4
            [(lost, _)] = [one for one in bench.recorded("began") if one[1] == first.process.pid]
            first.signal(signal.SIGKILL)
            bench.release()
            await bench.ended(4)
        assert [item for item, _ in bench.recorded("began")[4:]] == [lost]
        for running in (second, spare):
            assert await running.stop() == 0


async def test_no_worker_is_failed_when_the_server_restarts(
    restarted: Restarted, tmp_path: Path, name: str
) -> None:
    await no_false_alarm(restarted, tmp_path, name, seconds=0.01, away=0.5, environment=SOONER)


@pytest.mark.long
async def test_no_worker_is_failed_through_a_minute_of_restarts(
    restarted: Restarted, tmp_path: Path, name: str
) -> None:
    await no_false_alarm(restarted, tmp_path, name, seconds=60.0, away=0.0, environment=REAL)


async def test_behind_a_proxy_that_cuts_connections_it_switches_itself_off(
    tmp_path: Path, redis: Redis, redis_url: str, name: str
) -> None:
    async with Proxy(redis_url) as proxy, AsyncWorkQueue.from_url(redis_url, name) as queue:
        bench = Bench(tmp_path, proxy.url, name)
        async with bench.working("--concurrency", "1", **SOON) as behind:
            await queue.add_item(Item(b"hold", id="x"))
            await bench.began()
            seen: set[int] = set()
            for _ in range(3):
                await checkable(redis, name, 1)
                [about] = await workers(redis, name)
                assert not seen & {*about["connections"]}
                seen.update(about["connections"])
                await proxy.cut()
                await until("it has registered again", partial(_others, redis, name, seen))
            await behind.logged(
                "other workers cannot see whether this process lives: its connections were cut 3"
            )
            async with Bench(tmp_path, redis_url, name).working("--concurrency", "1", **SOON) as dead:
                await queue.add_item(Item(b"hold", id="y"))
                await bench.began(2)
                async with Bench(tmp_path, redis_url, name).working(**SOON):
                    await checkable(redis, name, 2)
                    await proxy.fail()
                    dead.signal(signal.SIGKILL)
                    await bench.began(3)
                    await proxy.heal()
                    bench.release()
                    await bench.ended(2)
    assert [item for item, _ in bench.recorded("began")] == ["x", "y", "y"]


async def _others(redis: Redis, name: str, seen: set[int]) -> bool:
    """Return whether the worker has registered none of these connections."""
    return all(not seen & {*about["connections"]} for about in await workers(redis, name))
