"""The sampler: what it costs, when it sleeps, what it sees; and a server that is away."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis
from starlette.applications import Starlette

from leasequeue import AsyncWorkQueue, Item
from leasequeue.dashboard import dashboard
from leasequeue.dashboard.sampler import AWAKE_SECONDS, SLICE, STALLED_SECONDS, QueueHistory, Sampler
from leasequeue.dashboard.sharing import KEPT_SECONDS, SharedReads
from leasequeue.dashboard.sources import ShownQueues
from leasequeue.dashboard.view import ShowData, View
from leasequeue.testing import Proxy
from leasequeue.views import Counts, QueueStats
from tests.dashboard.boards import client_of, open_board
from tests.eventually import eventually


async def scripts_run(redis_url: str) -> int:
    async with Redis.from_url(redis_url) as client:
        found = await client.info("commandstats")
    return sum(found.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_fifty_viewers_cost_the_server_what_one_costs(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "shared")
    await queue.add_item(Item(b"data", id="one"))
    costs = []
    for viewers in (1, 50):
        async with open_board(queue) as (app, client):
            clock = Hand()
            app.state.board.reads._clock = clock
            app.state.board.sampler._every = 3600  # it does not begin a second turn
            await client.get("/")  # connections and scripts are there
            before = await scripts_run(redis_url)
            await asyncio.gather(*(client.get("/") for _ in range(viewers)))
            await asyncio.gather(*(client.get("/queues/shared") for _ in range(viewers)))
            costs.append(await scripts_run(redis_url) - before)
    await queue.close()
    assert costs[0] == costs[1] > 0


async def test_the_sampler_sleeps_when_nobody_looks_and_wakes_again(redis_url: str) -> None:
    clock = Hand()
    async with AsyncWorkQueue.from_url(redis_url, "sleeps") as queue:
        sampler = Sampler(ShownQueues(queue), every=0.001, clock=clock)
        await sampler.look()
        assert sampler.histories["sleeps"].stats is not None
        assert sampler.is_awake
        clock.now += AWAKE_SECONDS
        await eventually("it sleeps", lambda: not sampler.is_awake)
        before = await scripts_run(redis_url)
        await asyncio.sleep(0)
        assert await scripts_run(redis_url) == before
        await sampler.look()
        assert sampler.is_awake
        await sampler.close()
        assert not sampler.is_awake


async def test_of_many_queues_each_turn_asks_a_slice_and_first_what_is_looked_at(redis_url: str) -> None:
    queues = [AsyncWorkQueue.from_url(redis_url, f"q{number:04}") for number in range(2 * SLICE)]
    sampler = Sampler(ShownQueues(*queues), clock=Hand())
    sampler._looked_at = {"q0500": 1000.0}
    await sampler.turn()
    assert len(sampler.histories) == SLICE
    assert sampler.histories["q0500"].stats is not None
    for _ in range(2):
        await sampler.turn()
    assert all(one.stats is not None for one in sampler.histories.values())
    assert len(sampler.histories) == len(queues)
    for queue in queues:
        await queue.close()


def seen(at: float, *, waiting: int = 0, leased: int = 0, leases: int = 0) -> QueueStats:
    stats = object.__new__(QueueStats)
    values = {
        "at": at,
        "counts": Counts(waiting, leased, 0, 0),
        "leases": leases,
        "paused": None,
        "workers": (),
    }
    for name, value in values.items():
        object.__setattr__(stats, name, value)
    return stats


def test_rates_follow_from_counts_and_leases() -> None:
    one = QueueHistory("rates")
    one.add(seen(100, waiting=10, leased=2, leases=50))
    assert one.rates is None
    one.add(seen(110, waiting=30, leased=5, leases=80))
    assert one.rates == (5.0, 2.7)  # 20 more wait and 30 were leased; 30 leased less 3 more that are


def test_a_queue_is_stalled_when_items_wait_and_nothing_ends() -> None:
    one = QueueHistory("stalls")
    one.add(seen(100, waiting=10, leased=2, leases=50))
    one.add(seen(100 + STALLED_SECONDS - 1, waiting=10, leased=2, leases=50))
    first = one.stalled
    assert first is None
    assert one.is_unserved
    one.add(seen(100 + STALLED_SECONDS, waiting=12, leased=2, leases=50))
    then = one.stalled
    assert then == STALLED_SECONDS
    one.add(seen(200, waiting=12, leased=2, leases=51))
    last = one.stalled
    assert last is None


def test_a_server_that_has_lost_its_data_begins_a_new_history() -> None:
    one = QueueHistory("new")
    one.add(seen(100, waiting=10, leases=50))
    one.add(seen(110, waiting=1, leases=2))
    assert one.waited == [(110, 1)]


async def test_a_read_is_made_once_for_all_who_ask_and_an_error_is_not_kept() -> None:
    clock, calls = Hand(), 0
    reads = SharedReads(clock)

    async def read() -> int:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        if calls == 2:
            raise LookupError
        return calls

    gone = asyncio.create_task(reads.get("key", read))
    await asyncio.sleep(0)
    gone.cancel()  # a viewer who leaves does not end the call of the others
    assert await asyncio.gather(*(reads.get("key", read) for _ in range(9))) == [1] * 9
    clock.now += KEPT_SECONDS
    with pytest.raises(LookupError):
        await reads.get("key", read)
    assert await reads.get("key", read) == 3
    reads.forget()
    assert await reads.get("key", read) == 4


async def test_a_server_that_is_away_gives_a_page_that_says_why_and_comes_back(redis_url: str) -> None:
    async with Proxy(redis_url) as proxy:
        queue = AsyncWorkQueue.from_url(proxy.url, "away")
        await queue.add_item(Item(b"data", id="one"))
        async with queue, open_board(queue) as (app, client):
            sampler: Sampler = app.state.board.sampler
            sampler._every = 0.001
            assert (await client.get("/")).status_code == 200
            await proxy.fail()
            await eventually("it is away", lambda: sampler.problem is not None)
            for path in ("/", "/queues/away"):
                answer = await client.get(path)
                assert answer.status_code == 503
                assert answer.headers["retry-after"] == "5"
                assert "The server is away" in answer.text
                assert "tries again by itself" in answer.text
                assert "data-live" in answer.text
            await proxy.accept()
            await eventually("it is back", lambda: sampler.problem is None)
            assert (await client.get("/")).status_code == 200


@pytest.mark.parametrize(
    ("mounted", "options", "headers", "link"),
    [
        ("/queues", {}, {}, "./queues/named"),
        ("/ops/queues", {}, {}, "./queues/named"),
        ("", {"root_path": "/ops"}, {}, "./queues/named"),
        ("/queues", {}, {"x-forwarded-prefix": "/ops/"}, "/ops/queues/queues/named"),
        ("/queues", {}, {"x-forwarded-prefix": "//evil.example"}, "./queues/named"),
    ],
)
async def test_links_are_right_behind_any_prefix(
    redis_url: str, mounted: str, options: dict[str, str], headers: dict[str, str], link: str
) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "named")
    app: Starlette = dashboard(queue)
    if mounted:
        app = Starlette()
        app.mount(mounted, dashboard(queue))
    async with queue, client_of(app, **options) as client:
        if mounted:
            bare = await client.get(mounted)
            assert (bare.status_code, bare.headers["location"]) == (307, f"http://test{mounted}/")
        page = await client.get(f"{options.get('root_path', mounted)}/", headers=headers)
        assert page.status_code == 200
        assert f'href="{link}"' in page.text
        inner = await client.get(f"{options.get('root_path', mounted)}/queues/named", headers=headers)
        home = "/ops/queues/" if link.startswith("/ops") else "../"
        assert f'class="brand" href="{home}"' in inner.text


async def test_the_queues_of_a_url_are_found(redis_url: str, name: str) -> None:
    async with AsyncWorkQueue.from_url(redis_url, name) as queue:
        await queue.add_item(Item(b"data", id="one"))
        async with open_board(redis_url) as (_, client):
            assert f">{name}</a>" in (await client.get("/")).text
            assert (await client.get("/queues/unknown")).status_code == 404


def shown_with(show: ShowData) -> str | None:
    app = dashboard("redis://localhost", show_data=show)
    view = View(request=None, board=app.state.board, rights=None)  # type: ignore[arg-type]
    return view.shown("named", b"\xff secret\x1b " + b"x" * 10_000)


def test_payloads_are_hidden_redacted_or_cut() -> None:
    assert shown_with(False) is None
    assert shown_with(lambda queue, data: f"{queue} {len(data)}") == "named 10010"
    text = shown_with(True)
    assert text is not None
    assert len(text) < 4_200
    assert "\x1b" not in text
