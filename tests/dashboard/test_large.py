"""Large queues: what a page reads and sends does not grow with what there is."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pytest

from leasequeue import AsyncWorkQueue
from leasequeue.dashboard.pages import search
from leasequeue.dashboard.sampler import QueueHistory
from leasequeue.queue.plans import flow_runs
from tests.dashboard import masses
from tests.dashboard.boards import open_board

if TYPE_CHECKING:
    import httpx
    from redis.asyncio import Redis
    from starlette.applications import Starlette

#: Each page, also with what it searches and from the middle of its list.
PAGES = (
    *("/", "/?sort=waiting&find=queue", "/?after=queue-00500", "/queues/large"),
    *("/dead", "/dead?queue=large", "/dead?queue=large&error=none", "/dead?before={died}.copy-{middle}"),
    *("/workers", "/workers?find=0900", "/workers?after=00000000000000000000000000000500", "/workers/first"),
    *("/flows", "/flows/large", "/flows/large?flow=none", "/flows/large?flow=access&find=size%3D1"),
    *("/flows/large?after={started}+copy-{middle}", "/flows/large/first", "/queues/large/jobs/first~2Fcheck"),
    *("/jobs?q=none", "/jobs?q=task:none", "/schedules", "/autoscaler"),
)
#: How many more entries are read to find a cursor's place among ten times as many: a binary search.
SEARCH = 5


class Read(NamedTuple):
    """What a page has cost."""

    #: How often the server ran each command, also inside of scripts.
    commands: Counter[str]
    #: How many bytes it replied, and how many the page has.
    replied: int
    size: int


async def fill(redis: Redis, url: str, count: int) -> None:
    """Have so many of each in a queue, and so many queues."""
    async with AsyncWorkQueue.from_url(url, "large") as queue:
        await masses.add_dead_letters(redis, queue, count, "ValueError: bad")
        await masses.add_flow_runs(redis, queue, count)
        await masses.add_workers(redis, url, queue, count)
    await masses.add_queues(redis, count)


async def read(redis: Redis, app: Starlette, board: httpx.AsyncClient, path: str) -> Read:
    """Open a page, and return what that costs."""
    app.state.board.reads.forget()
    await redis.config_resetstat()
    answer = await board.get(path)
    assert answer.status_code == 200, (path, answer.text)
    replied = (await redis.info("stats"))["total_net_output_bytes"]
    commands = {
        name.removeprefix("cmdstat_"): value["calls"]
        for name, value in (await redis.info("commandstats")).items()
        if not name.startswith(("cmdstat_config", "cmdstat_info", "cmdstat_client", "cmdstat_ping"))
    }
    return Read(Counter(commands), replied, len(answer.content))


async def reads(redis: Redis, url: str, count: int) -> dict[str, Read]:
    """Return what each page costs with so many of each."""
    await redis.flushall()
    await fill(redis, url, count)
    middle = count // 2
    died = round(await redis.zscore("large:dead", f"copy-{middle}") or 0)
    started = round(await redis.zscore("large:runs:active", f"copy-{middle}") or 0)
    found = {}
    async with open_board(url) as (app, board):
        sampler = app.state.board.sampler
        sampler._every = 3600  # it does not begin a second turn
        await sampler.look()
        sampler.histories |= {  # as if it had had turns for all queues
            name: QueueHistory(name) for name in sampler.queues.by_name() if name not in sampler.histories
        }
        for page in PAGES:
            path = page.format(died=died, started=started, middle=middle)
            await board.get(path)  # connections and scripts are there, and queues have been sampled
            found[page] = await read(redis, app, board, path)
    return found


@pytest.mark.slow
async def test_a_page_costs_the_same_with_ten_times_as_much(
    redis_url: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that 1,000 of each are more than a page looks at.
    monkeypatch.setattr(flow_runs, "_PAGE_STEPS", 3)
    monkeypatch.setattr(search, "BY_ID", 50)
    few, many = [await reads(redis, redis_url, count) for count in (1_000, 10_000)]
    # Of the four states only one has runs: the others are asked once.
    assert few["/flows/large?flow=none"].commands["evalsha"] == 3 + 3
    for page, before in few.items():
        after = many[page]
        places = SEARCH if "copy-" in page or "flow=none" in page else 0
        assert (after.commands - before.commands).total() <= 8 * places, page
        assert after.commands["evalsha"] <= before.commands["evalsha"] + places, page
        assert after.replied <= before.replied * 1.05 + 1_000, page
        assert after.size <= before.size * 1.05 + 1_000, page
