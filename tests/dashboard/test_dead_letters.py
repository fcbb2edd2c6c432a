"""The page of dead letters: groups, filters, the cursor, and actions on one, some and all."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item
from leasequeue.dashboard import Rights, sampler
from leasequeue.dashboard.pages import dead
from leasequeue.dashboard.pages.dead import Place
from leasequeue.dashboard.view import segment
from leasequeue.tasks.wire import data_of
from tests.dashboard.boards import open_board

if TYPE_CHECKING:
    from typing import Any

    import httpx

    from leasequeue.queue import DeadLetter


async def die(
    queue: AsyncWorkQueue, *ids: str, task: str = "send", error: str = "ValueError: bad", priority: int = 0
) -> None:
    """Add items that die at once; with a priority also if others wait."""
    await queue.add_items([Item(data_of(task, b"{}", None), id=one) for one in ids], priority=priority)
    for lease in await queue.lease_many(len(ids), 60, timeout=10):
        await queue.fail(lease, f"{error} {lease.id}")


def ids_in(page: httpx.Response, name: str) -> list[str]:
    return [part.split('"')[0] for part in page.text.split(f"/{name}/jobs/")[1:]]


def fields_of(page: httpx.Response) -> dict[str, str]:
    """Return the fields of the form that a page sends next."""
    form = page.text.split('<form method="post"')[1].split("</form>")[0]
    parts = [part.split('"') for part in form.split('type="hidden" name="')[1:]]
    return {part[0]: part[2] for part in parts}


async def test_dead_letters_are_grouped_and_filtered_by_task_and_error(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "dead/one")
    async with queue, open_board(queue) as (_, client):
        await die(queue, "a", "b", "c")
        await die(queue, "d", task="pay", error="<b>KeyError</b>: gone")
        page = await client.get("/dead")
        assert ids_in(page, segment("dead/one")) == ["d", "c", "b", "a"]
        assert "of the newest 4" in page.text
        assert '">ValueError</a><small>ValueError: bad c</small></td><td class="n">3<' in page.text
        assert "<b>KeyError" not in page.text
        some = await client.get("/dead?task=send&error=bad+b&queue=dead~2Fone")
        assert ids_in(some, segment("dead/one")) == ["b"]
        assert "None matches" in (await client.get("/dead?task=none")).text
        assert (await client.get("/dead?queue=none")).status_code == 404
        assert (await client.get("/dead?before=x")).status_code == 400


async def test_spaces_around_the_name_of_a_task_are_part_of_it(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "spaces")
    async with queue, open_board(queue) as (_, client):
        await die(queue, "a", task=" send ")
        await die(queue, "b", task="send")
        assert ids_in(await client.get("/dead?task=+send+"), "spaces") == ["a"]
        assert ids_in(await client.get("/dead?task=send"), "spaces") == ["b"]


async def test_each_dead_letter_is_on_one_page_though_others_come_and_go(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead, "ROWS", 4)
    queue = AsyncWorkQueue.from_url(redis_url, "pages")
    async with queue, open_board(queue) as (app, client):
        await die(queue, *(f"{number:02}" for number in range(10)))
        seen: list[str] = []
        path, turn = "/dead?queue=pages", 0
        while path:
            assert len(seen) < 30
            page = await client.get(path)
            rows = ids_in(page, "pages")
            seen += rows
            await die(queue, f"new{turn}")
            if turn == 0:
                await queue.dead_letters.drop(rows[1])
            turn += 1
            app.state.board.reads.forget()
            older = page.text.split('">Older</a>')[0].rpartition('href="./')[2]
            path = "/" + older.replace("&amp;", "&") if '">Older</a>' in page.text else ""
        assert seen == [f"{number:02}" for number in range(9, -1, -1)]


async def test_the_dead_letters_of_all_queues_are_in_one_order_and_none_is_skipped(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead, "LOOKED_AT", 4)
    queues = [AsyncWorkQueue.from_url(redis_url, name) for name in ("left", "right")]
    async with queues[0], queues[1], open_board(*queues) as (_, client):
        await die(queues[0], *(f"l{number}" for number in range(5)))
        await die(queues[1], "r0", "r1")
        seen: list[str] = []
        path = "/dead"
        while path:
            assert len(seen) < 30
            page = await client.get(path)
            seen += ids_in(page, "left") + ids_in(page, "right")
            older = page.text.split('">Older</a>')[0].rpartition('href="./')[2]
            path = "/" + older.replace("&amp;", "&") if '">Older</a>' in page.text else ""
        assert sorted(seen) == ["l0", "l1", "l2", "l3", "l4", "r0", "r1"]


async def test_a_selection_is_requeued_and_dropped_and_logged(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("x/y", "z")
    queues = [AsyncWorkQueue.from_url(redis_url, name) for name in names]
    hostile = "i<d>/\n1"
    async with queues[0], queues[1], open_board(*queues, rights=Rights.all.of("ann")) as (_, client):
        for queue in queues:
            await die(queue, hostile, "two")
        page = await client.get("/dead")
        values = [part.split('"')[0] for part in page.text.split('name="letter" value="')[1:]]
        assert sorted(values) == sorted(
            f"{segment(name)}/{segment(one)}" for name in names for one in (hostile, "two")
        )
        chosen = [one for one in values if one.endswith(segment(hostile))]
        asked = await client.post("/dead/drop", data={"letter": chosen})
        assert "Drop 2" in asked.text
        assert asked.text.count('name="letter"') == 2
        assert (await queues[0].counts()).dead == 2
        with caplog.at_level(logging.INFO, logger="leasequeue.dashboard"):
            done = await client.post(
                "/dead/drop", data={"letter": chosen, "task": "send", "sure": "yes"}, follow_redirects=True
            )
        assert "Dead letters removed: 2." in done.text
        assert 'name="task" value="send"' in done.text  # back to the filter
        assert "ann did drop on" in caplog.text
        assert segment(hostile) in caplog.text
        done = await client.post(
            "/dead/requeue", data={"letter": f"{segment('x/y')}/two"}, follow_redirects=True
        )
        assert "Dead letters requeued: 1." in done.text
        assert [(await queue.counts())[:4] for queue in queues] == [(1, 0, 0, 0), (0, 0, 0, 1)]


@pytest.mark.parametrize("action", ["requeue", "drop"])
async def test_all_that_match_are_acted_on_in_steps_the_oldest_first(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr(dead, "STEP", 4)
    monkeypatch.setattr(dead, "AT_ONCE", 2)
    queue = AsyncWorkQueue.from_url(redis_url, "steps")
    async with queue, open_board(queue, rights=Rights.all) as (_, client):
        await die(queue, *(f"{number}" for number in range(6)))
        await die(queue, "other", task="pay")
        await queue.add_item(Item(b"", id="1"))  # an item of this id is there again: the dead letter stays
        query = {"queue": "steps", "task": "send"}
        asked = await client.get(f"/dead/{action}-all", params=query)
        assert "6 of the newest 7 match" in asked.text
        assert ">Requeue 6<" in asked.text or ">Drop 6<" in asked.text
        step = await client.post(f"/dead/{action}-all", data=fields_of(asked))
        done = 4 if action == "drop" else 3
        assert step.status_code == 200
        assert "data-continue" in step.text
        assert f"{done}. 4 of 7 were looked at." in step.text
        # This shifts the list, and they are not meant.
        await die(queue, *(f"new{number}" for number in range(5)), priority=9)
        for _ in range(20):
            if step.status_code != 200:
                break
            step = await client.post(f"/dead/{action}-all", data=fields_of(step))
        assert f"count={6 if action == 'drop' else 5}" in step.headers["location"]
        left = {one.id for one in await queue.dead_letters.list()}
        assert {"other", "new0", "new4"} <= left
        assert ("1" in left) is (action == "requeue")
        assert not left & {"0", "2", "3", "4", "5"}
        if action == "requeue":
            waiting = [one.id for one in await queue.inspect()]
            assert [one for one in waiting if one in "02345"] == ["0", "2", "3", "4", "5"]


async def test_all_of_all_queues_are_acted_on_and_the_count_is_named(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead, "STEP", 2)
    queues = [AsyncWorkQueue.from_url(redis_url, name) for name in ("one", "two", "none")]
    async with queues[0], queues[1], queues[2], open_board(*queues, rights=Rights.all) as (_, client):
        for queue in queues[:2]:
            await die(queue, "a", "b", "c")
        step = await client.get("/dead/drop-all")
        assert "Drop all 6 dead letters of all queues?" in step.text
        for _ in range(20):
            if step.status_code != 200:
                break
            step = await client.post("/dead/drop-all", data=fields_of(step))
        assert "count=6" in step.headers["location"]
        assert [(await queue.counts()).dead for queue in queues] == [0, 0, 0]


async def test_all_are_acted_on_though_not_all_queues_had_their_turn(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "SLICE", 1)
    queues = [AsyncWorkQueue.from_url(redis_url, f"turn-{number}") for number in range(3)]
    async with queues[0], queues[1], queues[2], open_board(*queues, rights=Rights.all) as (_, client):
        for queue in queues:
            await die(queue, "a")
        asked = await client.get("/dead/drop-all")
        done = await client.post("/dead/drop-all", data=fields_of(asked))
        assert "count=3" in done.headers["location"]
        assert [(await queue.counts()).dead for queue in queues] == [0, 0, 0]


async def test_who_may_only_look_is_offered_nothing_and_refused(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "looks")
    async with queue, open_board(queue) as (_, client):
        await die(queue, "a")
        page = await client.get("/dead")
        assert "checkbox" not in page.text
        assert "requeue" not in page.text.lower()
        for path in ("/dead/drop", "/dead/drop-all", "/dead/requeue", "/queues/looks/jobs/a/drop"):
            answer = await client.post(path, data={"letter": "looks/a", "sure": "yes"})
            assert answer.status_code == 403, path
        assert (await queue.counts()).dead == 1


async def test_a_form_that_was_tampered_with_is_refused(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "forms")
    async with queue, open_board(queue, rights=Rights.all) as (_, client):
        for field in ({"until": "x"}, {"done": "-1"}, {"after": "é.1"}, {"queue": "none"}):
            answer = await client.post("/dead/drop-all", data={"sure": "yes", **field})
            assert answer.status_code in {400, 404}, field
        answer = await client.post("/dead/drop", data={"sure": "yes", "letter": "none/x"})
        assert answer.status_code == 404


async def test_a_page_of_many_dead_letters_reads_few(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "many")
    async with queue, open_board(queue) as (app, client):
        for start in range(0, 1200, 200):
            await die(queue, *(f"{number:04}" for number in range(start, start + 200)), error="E" * 2000)
        first = await client.get("/dead?queue=many")
        assert "of the newest 300" in first.text
        assert len(ids_in(first, "many")) == 50
        letter = await queue.dead_letters.get("0600")
        assert letter is not None
        calls = []
        listed = queue.dead_letters.list

        async def counted(**options: Any) -> list[DeadLetter]:
            calls.append(options.get("count", 1))
            return await listed(**options)

        app.state.board.reads.forget()
        queue.dead_letters.list = counted  # type: ignore[method-assign]
        deep = await client.get("/dead", params={"queue": "many", "before": str(Place.of(letter))})
        assert ids_in(deep, "many")[0] == "0599"
        assert sum(calls) <= 2 * 300 + 11  # the page, and a binary search of 1,200


def test_a_place_is_read_as_it_was_written() -> None:
    for item_id in ("a", "a.b/c", "\udcff", ""):
        place = Place(5, item_id.encode(errors="surrogateescape"))
        assert Place.read(str(place)) == place
