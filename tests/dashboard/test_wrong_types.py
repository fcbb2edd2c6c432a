"""A queue with a key of a wrong type is named on every page, and hides no other queue."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item
from leasequeue.autoscale.leader import PASS_ID, State, encode_state
from leasequeue.autoscale.report import PassReport
from leasequeue.dashboard import Rights
from leasequeue.dashboard.pages import PAGES
from tests.dashboard.boards import open_board
from tests.dashboard.fleets import register
from tests.dashboard.shown_pages import problems_of
from tests.dashboard.test_routes import PARTS
from tests.hostile import raw
from tests.plans.run_hashes import chain

if TYPE_CHECKING:
    from redis.asyncio import Redis

pytestmark = pytest.mark.slow

#: What the pages show of each queue that they can read.
SHOWN = {
    "/": 'queues/{}"',
    "/dead": "task of {}",
    "/workers": "worker of {}",
    "/schedules": "schedule of {}",
    "/flows": "run of {}",
    "/autoscaler": "copy of {}",
    "/jobs?q=one": "queues/{}/jobs/one",
    "/jobs?q=task:task": "queues/{}/jobs/one",
    "/jobs?q=gone": "queues/{}/jobs/gone",
}
#: Keys that the pages read, which are no strings.
KEYS = [
    *("queue", "dead", "dead:one", "scheduled", "heartbeats", "workers", "schedules", "ticks", "events"),
    *("runs:active", "run:run of bad"),
]


async def fill_for_all_pages(redis: Redis, url: str, name: str) -> None:
    async with AsyncWorkQueue.from_url(url, name) as queue:
        await queue.events.keep(count=100)
        await queue.add_item(Item(b'{"task": "task", "args": {}}', id="gone"))
        await queue.cancel("gone")
        await queue.add_item(Item(b'{"task": "task", "args": {}}', id="one"))
        report = asdict(PassReport(number=1, copy=f"copy of {name}", errors=()))
        await queue.add_item(Item(encode_state(State(report=report)), id=PASS_ID))
        await queue.schedules.every(60, f"schedule of {name}")
        await queue.flow_runs.start(chain(name, "stage"), f"run of {name}")
        await raw(redis, "ZADD", f"{name}:dead", 1_700_000_000_000, "one")
        await raw(redis, "HSET", f"{name}:dead:one", "data", f'{{"task": "task of {name}", "args": {{}}}}')
    await register(url, name, f"worker of {name}")


@pytest.mark.parametrize("key", KEYS)
async def test_a_queue_with_a_key_of_a_wrong_type_is_named_and_hides_no_other(
    redis: Redis, redis_url: str, key: str
) -> None:
    for name in ("good", "bad"):
        await fill_for_all_pages(redis, redis_url, name)
    await raw(redis, "DEL", f"bad:{key}")
    await raw(redis, "SET", f"bad:{key}", "another program's")
    named = set[str]()
    async with open_board(redis_url, rights=Rights.all) as (_, client):
        for path, shown in SHOWN.items():
            answer = await client.get(path)
            assert (answer.status_code, problems_of(answer)) == (200, []), path
            assert shown.format("good") in answer.text, path
            assert "The queue good cannot be read" not in answer.text
            if "The queue bad cannot be read: WRONGTYPE" in answer.text:
                named.add(path)
            else:
                assert shown.format("bad") in answer.text, path
                assert ">cannot be read<" not in answer.text
        assert named
        for one in PAGES:
            for name, statuses in (("good", {200}), ("bad", {200, 409})):
                parts = PARTS | {"queue": name, "run": f"run of {name}", "worker": f"worker of {name}"}
                answer = await client.get(one.path.format(**parts))
                assert problems_of(answer) == []
                missing = answer.status_code == 404 and "The queue bad cannot be read" in answer.text
                assert answer.status_code in statuses or missing, answer.url
    async with AsyncWorkQueue.from_url(redis_url, "bad") as bad, open_board(bad) as (_, client):
        for path in SHOWN:  # all queues of the board are such ones, and the server is not away
            answer = await client.get(path)
            assert answer.status_code in {200, 303}, path
            assert path not in named or "The queue bad cannot be read: WRONGTYPE" in answer.text, path


async def test_an_action_on_all_queues_leaves_out_one_that_cannot_be_read(
    redis: Redis, redis_url: str
) -> None:
    for name in ("good", "bad"):
        await fill_for_all_pages(redis, redis_url, name)
    await raw(redis, "DEL", "bad:dead")
    await raw(redis, "SET", "bad:dead", "another program's")
    async with open_board(redis_url, rights=Rights.all) as (_, client):
        asked = await client.get("/dead/drop-all")
        assert "Drop all 1 dead letters of all queues?" in asked.text
        assert "The queue bad cannot be read" in asked.text
        done = await client.post("/dead/drop-all", data={"sure": "yes"}, follow_redirects=True)
        assert "The queue bad cannot be read" in done.text
        assert "There are no dead letters" in done.text
