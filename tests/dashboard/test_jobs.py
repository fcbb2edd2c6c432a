"""The page of an item or job, and the search for one."""

from __future__ import annotations

import json

import pytest

from leasequeue import AsyncWorkQueue, Item
from leasequeue.codecs import AesGcm
from leasequeue.dashboard import Rights
from leasequeue.dashboard.pages import search
from leasequeue.dashboard.pages.search import qualifiers
from leasequeue.dashboard.view import segment
from leasequeue.tasks.wire import data_of
from tests.dashboard.boards import open_board
from tests.queue.asking import take

BIG = 2**53 + 1
HOSTILE_IDS = [
    "../..",
    "x" * 300 + "/y",
    "/y",
    "<script>alert(1)</script>",
    "a\nb",
    "\u202eabc",
    "~2F",
    "'\"",
    "x" * 512,
]


def call(task: str, **arguments: object) -> bytes:
    return data_of(task, json.dumps(arguments).encode(), None)


async def test_a_job_is_found_by_its_id_without_its_queue(redis_url: str) -> None:
    first, second = (AsyncWorkQueue.from_url(redis_url, name) for name in ("a/b", "other"))
    await second.add_item(Item(call("send"), id="j/1 ü"))
    async with first, second, open_board(first, second) as (_, client):
        answer = await client.get("/jobs", params={"q": " j/1 ü "}, follow_redirects=True)
        assert answer.url.path == f"/queues/other/jobs/{segment('j/1 ü')}"
        assert "waiting" in answer.text
        assert "Not found" in (await client.get("/jobs?q=nowhere")).text


async def test_a_job_in_two_queues_is_listed_twice(redis_url: str) -> None:
    queues = [AsyncWorkQueue.from_url(redis_url, name) for name in ("a/b", "other")]
    for queue in queues:
        await queue.add_item(Item(b"data", id="twin"))
    async with queues[0], queues[1], open_board(*queues) as (_, client):
        both = await client.get("/jobs?q=twin")
        assert both.status_code == 200
        assert both.text.count("/jobs/twin") == 2


async def test_a_search_looks_in_a_part_of_many_queues_and_says_so(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "BY_ID", 2)
    queues = [AsyncWorkQueue.from_url(redis_url, f"q{number}") for number in range(3)]
    await queues[2].add_item(Item(b"data", id="last"))
    async with queues[0], queues[1], queues[2], open_board(*queues) as (_, client):
        part = await client.get("/jobs?q=last")
        assert "Looked in 2 of 3 queues" in part.text
        following = part.text.split("after=")[1].split('"')[0]
        found = await client.get(f"/jobs?q=last&after={following}")
        assert "/queues/q2/jobs/last" in found.text


async def test_of_a_job_that_is_gone_the_events_tell_how_it_ended(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "events")
    async with queue, open_board(queue) as (app, client):
        unknown = await client.get("/queues/events/jobs/one")
        assert "completed, or never existed" in unknown.text
        assert "keeps no events" in unknown.text
        await queue.events.keep(count=1000)
        await queue.add_item(Item(b"data", id="one"))
        await queue.add_item(Item(b"data", id="two"))
        lease = await queue.lease(60, timeout=10)
        assert lease is not None
        await queue.fail(lease, "ValueError: <b>bad</b>", retry_in=0)
        async for found in queue.events(follow=False, kinds={"failed"}):
            assert found.id == "one"
        for _ in range(2):
            taken = await queue.lease(60, timeout=10)
            assert taken is not None
            await queue.complete(taken)
        app.state.board.reads.forget()
        page = await client.get("/jobs?q=one", follow_redirects=True)
        assert "completed, or never existed" not in page.text
        for one in ("added", "leased", "failed", "completed", "ValueError: &lt;b&gt;bad&lt;/b&gt;"):
            assert one in page.text, one
        assert page.text.count('<tr id="e-') == 5  # none of the other item


async def test_the_history_continues_where_older_events_were_dropped(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "drops")
    async with queue, open_board(queue) as (_, client):
        await queue.events.keep(count=1)
        await queue.add_items([Item(b"data", id=f"{number}") for number in range(600)])
        page = await client.get("/queues/drops/jobs/599")
        assert page.text.count('<tr id="e-') == 1


async def test_data_is_shown_only_as_the_application_says_and_numbers_are_exact(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "shown")
    await queue.add_item(Item(call("pay", amount=BIG, note="<script>"), id="one"))
    await queue.add_item(Item(b"\xff\x00" * (1 << 19), id="huge"))

    def redact(name: str, data: bytes) -> str:
        return f"{name}: {data.decode(errors='replace').replace(str(BIG), '***')}"

    async with queue:
        for show, has in ((False, "Hidden, "), (True, f"{BIG}"), (redact, "shown: {&#34;amount&#34;: ***")):
            async with open_board(queue, show_data=show) as (_, client):
                page = await client.get("/queues/shown/jobs/one")
                assert has in page.text
                assert (str(BIG) in page.text) is (show is True)
                assert "<script>" not in page.text
                huge = await client.get("/queues/shown/jobs/huge")
                assert "1,048,576 bytes are too many" in huge.text
                assert len(huge.content) < 20_000


async def test_encoded_payloads_are_shown_decoded_or_named(redis_url: str) -> None:
    codec = AesGcm({"new": b"n" * 32})
    queue = AsyncWorkQueue.from_url(redis_url, "encoded", codec=codec)
    keyless = AsyncWorkQueue.from_url(redis_url, "encoded")
    await queue.add_item(Item(call("pay", amount=BIG), id="one"))
    await queue.add_item(Item(b"{}", id="two"), priority=1)
    await queue.complete(await take(queue), result=b"%d" % BIG)
    async with queue, keyless:
        for opened, has in ((queue, f"{BIG}"), (keyless, "(encoded by aes.new)")):
            async with open_board(opened, show_data=lambda _, data: data.decode()) as (_, client):
                for item_id in ("one", "two"):
                    page = await client.get(f"/queues/encoded/jobs/{item_id}")
                    assert page.status_code == 200
                    assert has in page.text
                found = await client.get("/jobs?q=two")
                assert found.headers["location"].endswith("/encoded/jobs/two")


async def test_jobs_are_found_by_task_and_argument_among_the_newest(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "calls")
    await queue.add_items([Item(call("send", user=number), id=f"{number}") for number in range(120)])
    await queue.add_item(Item(call("send", user=BIG, on=True, to={"city": "Bonn"}), id="big"))
    await queue.add_item(Item(call("other", user=62), id="later"), delay=3600)
    async with queue, open_board(queue, show_data=True) as (_, client):

        async def found(text: str) -> set[str]:
            page = await client.get("/jobs", params={"q": text})
            assert page.status_code == 200
            assert "the newest 100 waiting" in page.text
            return {part.split('"')[0] for part in page.text.split("/calls/jobs/")[1:]}

        assert await found("task:send args.user:62") == {"62"}
        assert await found("args.user:62") == {"62", "later"}
        assert await found("args.user:2") == set()  # older than the newest hundred
        assert await found(f"args.user:{BIG}") == {"big"}
        assert await found(f"args.user:{BIG - 1}") == set()
        assert await found("args.on:true args.to.city:Bonn queue:calls") == {"big"}
        assert await found("task:send queue:none") == set()


async def test_hidden_arguments_cannot_be_found_out_by_searching(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "secret")
    await queue.add_item(Item(call("send", user="ann"), id="one"))
    async with queue:
        for show, hits in ((False, 0), (lambda _, data: data.decode().replace("ann", "***"), 0), (True, 1)):
            async with open_board(queue, show_data=show) as (_, client):
                page = await client.get("/jobs?q=args.user:ann")
                assert page.text.count("/secret/jobs/one") == hits
                assert (await client.get("/jobs?q=task:send")).text.count("/secret/jobs/one") == 1


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("task:a", {"task": "a"}),
        ("args.a.b:1 task:x", {"args.a.b": "1", "task": "x"}),
        ("args.at:12:30", {"args.at": "12:30"}),
        ("order:62", None),
        ("plain id", None),
        ("task:", None),
        ("", None),
    ],
)
def test_what_a_query_means(text: str, means: dict[str, str] | None) -> None:
    assert qualifiers(text) == means


@pytest.mark.parametrize("item_id", HOSTILE_IDS)
async def test_a_job_of_any_id_has_a_page_and_is_cancelled(redis_url: str, item_id: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "ids")
    await queue.add_item(Item(b"\x00<b>\xff", id=item_id))
    path = f"/queues/ids/jobs/{segment(item_id)}"
    async with queue, open_board(queue, rights=Rights.all, show_data=True) as (_, client):
        page = await client.get(path)
        assert page.status_code == 200
        for raw in ("<script>", "<b>", "\u202e"):
            assert raw not in page.text
        asked = await client.get(f"{path}/cancel")
        assert "Cancel 1 item" in asked.text
        assert "<script>" not in asked.text
        done = await client.post(f"{path}/cancel", data={"sure": "yes"}, follow_redirects=True)
        assert "Items cancelled: 1." in done.text
        assert await queue.find(item_id) is None


async def test_a_release_ends_the_lease_and_is_no_attempt(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "held")
    await queue.add_item(Item(b"data", id="one"))
    async with queue, open_board(queue, rights=Rights.all) as (_, client):
        lease = await queue.lease(60, timeout=10)
        assert lease is not None
        await queue.progress(lease, 0.5)
        page = await client.get("/queues/held/jobs/one")
        assert 'max="1" value="0.5"' in page.text
        assert queue.session in page.text
        assert "/release" in page.text
        done = await client.post("/queues/held/jobs/one/release", data={"sure": "yes"}, follow_redirects=True)
        assert "Leases ended: 1." in done.text
        assert "/release" not in done.text
        found = await queue.find("one")
        assert found is not None
        assert (found.state, found.attempt) == ("waiting", 0)
        assert not await queue.renew(lease, 60)


async def test_a_retry_that_waits_is_run_now(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "retries")
    await queue.add_item(Item(b"data", id="r/1"))
    await queue.add_item(Item(b"data", id="later"), delay=3600)
    async with queue, open_board(queue, rights=Rights.all) as (_, client):
        lease = await queue.lease(60)
        await queue.fail(lease, "no mail server", retry_in=3600)
        await queue.add_item(Item(b"data", id="other"))
        assert "Run now" in (await client.get("/queues/retries/jobs/later")).text
        page = f"/queues/retries/jobs/{segment('r/1')}"
        assert "Retry now" in (await client.get(page)).text
        done = await client.post(f"{page}/promote", follow_redirects=True)
        assert "Items that wait at the front of the queue now: 1." in done.text
        assert "Retry now" not in done.text
        again = await queue.lease(60)
        assert (again.id, again.attempt) == ("r/1", 2)


async def test_a_dead_job_shows_its_traceback_and_is_requeued(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "dies")
    await queue.add_item(Item(call("send"), id="one"))
    async with queue, open_board(queue, rights=Rights.all) as (_, client):
        lease = await queue.lease(60, timeout=10)
        assert lease is not None
        await queue.fail(lease, ValueError("no <such> place"))
        page = await client.get("/jobs?q=one", follow_redirects=True)
        assert "no &lt;such&gt; place" in page.text
        done = await client.post("/queues/dies/jobs/one/requeue", follow_redirects=True)
        assert "Dead letters requeued: 1." in done.text
        assert (await queue.counts())[:4] == (1, 0, 0, 0)


async def test_the_logs_of_a_job_are_shown_escaped_and_only_as_the_application_says(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "logs")
    await queue.add_item(Item(call("send"), id="one"))
    lease = await queue.lease(60, timeout=10)
    assert lease is not None
    record = json.dumps([1_700_000_000_000, "INFO", "<script>", "to <b>ann</b>\x1b[2J", "<i>trace</i>"])
    await queue._write_logs([(lease, f"1 1\n{record}".encode(), 4096, 60)])
    await queue.complete(lease)
    async with queue:
        for show in (True, False):
            async with open_board(queue, show_data=show) as (_, client):
                page = (await client.get("/queues/logs/jobs/one")).text
                assert "Logs of attempt 1" in page
                assert ("&lt;script&gt;: to &lt;b&gt;ann&lt;/b&gt;\\x1b[2J" in page) is show
                assert ("&lt;i&gt;trace&lt;/i&gt;" in page) is show
                assert "<b>ann" not in page
