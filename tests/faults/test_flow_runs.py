"""Flow runs while the server is killed and restarted: each ends once, with each stage's result."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from tests.faults.flow_runs import Flows
from tests.faults.test_killed_server import kill, start
from tests.queue.asking import until
from tests.queue.keyspace import left_over

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue


@pytest.mark.slow
@pytest.mark.seed("GLD-G5", "GLD-B2", "GLD-B3")
async def test_runs_go_on_when_the_server_is_killed_and_restarted(
    make_server: MakeServer, make_queue: MakeQueue, tmp_path: Path, name: str
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    server = await start(make_server, tmp_path)
    flows, stop = Flows(logs, name), asyncio.Event()
    queues = [make_queue(name=one, url=server.url, reply_timeout=5) for _ in range(3) for one in flows.names]
    home, other, *of_workers = queues
    workers = [flows.worker(*of_workers[at : at + 2]) for at in (0, 2)]
    async with asyncio.timeout(100), asyncio.TaskGroup() as group:
        running = [group.create_task(worker.run()) for worker in workers]
        group.create_task(flows.start_runs(home, stop))
        for _ in range(3):
            await until("more runs are started", partial(flows.has_started, 20))
            await kill(server)
            server = await start(make_server, tmp_path, server.port)
        stop.set()
        await until("all runs have ended", partial(flows.all_ended, home))
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)
    assert flows.losses
    problems = await flows.problems(home, other)
    assert not problems, "\n".join(problems[:20])
    for run_id in flows.started:
        assert await home.flow_runs.delete(run_id)
    for queue in queues:
        await queue.close()
    async with Redis.from_url(server.url) as admin:
        left = await left_over(admin, home.name) | await left_over(admin, other.name)
    # Sessions of before a restart stay registered until their time is over.
    assert {key for key in left if not key.endswith((b":idle", b":sessions"))} == set()
