"""Every route with every right, the check of cross-site requests, and the headers of all answers."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from starlette.datastructures import Headers
from starlette.routing import Route

from leasequeue import AsyncWorkQueue, Fleet, Item
from leasequeue.dashboard import Rights
from leasequeue.dashboard.guard import POLICY, is_cross_site
from leasequeue.dashboard.pages import ACTIONS, PAGES
from leasequeue.dashboard.rights import ACTIONS as RIGHTS
from leasequeue.dashboard.view import read_segment, segment
from leasequeue.errors import InvalidArgument
from leasequeue.queue.plans.plan import StagePlan
from tests.dashboard.boards import open_board
from tests.dashboard.fleets import fill
from tests.plans.run_hashes import chain

if TYPE_CHECKING:
    from starlette.requests import Request

#: What stands for the parts of the paths in the walk; a new part is given a value here.
PARTS = {"queue": "walk", "worker": "walk", "id": "one", "run": "walk", "file": "none", "rest": "none"}
#: The fields without which an action does nothing.
FIELDS = {"to": "other", "queue": "walk", "item": "one", "schedule": "walk", "signal": "signal"}


def path_of(path: str) -> str:
    return path.replace(":path", "").format(**PARTS)


async def state_of(queue: AsyncWorkQueue) -> object:
    limits, schedules = await queue.limits.get(), await queue.schedules.list()
    workers = [(one.id, one.quiet, one.stopping) for one in await Fleet(queue).workers()]
    kept = (await queue.history(count=1)).kept
    runs = [one and one.state for one in await queue.flow_runs.list()]
    return await queue.counts(), limits.paused is not None, len(schedules), workers, kept, runs


@pytest.mark.parametrize(
    "rights",
    [Rights.nothing, Rights.read_only, *(Rights.only(one) for one in RIGHTS), Rights.all],
    ids=lambda one: ",".join(sorted(one.actions)) or ("look" if one.look else "nothing"),
)
async def test_every_route_obeys_every_right(redis_url: str, rights: Rights) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "walk")
    other = AsyncWorkQueue.from_url(redis_url, "other")
    await fill(queue, redis_url)
    waits = StagePlan("signal", queue.name, b"{}", signal=True)
    plan = chain(queue.name, "stage")
    await queue.flow_runs.start(replace(plan, stages=(*plan.stages, waits)), "walk")
    async with queue, other, open_board(queue, other, rights=rights) as (app, client):
        paths = {route.path: route.methods or set() for route in app.routes if isinstance(route, Route)}
        assert {page.path for page in PAGES} | {action.path for action in ACTIONS} < {*paths}
        for page in PAGES:
            answer = await client.get(path_of(page.path))
            assert answer.status_code == (200 if rights.look else 403), page.path
            for action in ACTIONS:  # what is not permitted is not offered
                offered = f'/{action.path.rpartition("/")[2]}"' in answer.text
                assert action.name in rights.actions or not offered, action.name
        writes = {path for path, methods in paths.items() if methods - {"GET", "HEAD"}}
        assert writes == {one.path for one in ACTIONS}
        for action in ACTIONS:
            await fill(queue, redis_url)
            before = await state_of(queue)
            answer = await client.post(path_of(action.path), data={"sure": "yes", **FIELDS})
            may = action.name in rights.actions
            assert answer.status_code == (303 if may else 403), action.name
            assert may or await state_of(queue) == before
            await fill(queue, redis_url)
            got = await client.get(path_of(action.path), params=FIELDS)
            assert got.status_code in ({200, 303} if may else {403})


async def test_a_write_is_logged_with_who_and_what(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "walk")
    await queue.add_item(Item(b"data", id="one"))
    async with queue, open_board(queue, rights=Rights.all.of("ann\nforged")) as (_, client):
        with caplog.at_level(logging.INFO, logger="leasequeue.dashboard"):
            await client.post("/queues/walk/pause", data={"reason": "moving"})
        assert "ann\\nforged did pause on {'queue': 'walk'}: done" in caplog.text
        pause = (await queue.stats()).paused
        assert pause is not None
        assert pause.reason == "moving by ann\nforged"


async def test_what_destroys_asks_first_and_names_the_count(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "walk")
    await queue.add_items([Item(b"data", id=f"{number}") for number in range(3)])
    await queue.add_item(Item(b"data", id="later"), delay=3600)
    async with queue, open_board(queue, rights=Rights.all) as (_, client):
        for asked in (
            await client.get("/queues/walk/purge?scheduled=1"),
            await client.post("/queues/walk/purge", data={"scheduled": "1"}),
        ):
            assert "3 waiting items, 1 scheduled items" in asked.text
            assert "Remove 4" in asked.text
            assert 'name="scheduled" value="1"' in asked.text
        assert (await queue.counts()).total == 4
        done = await client.post(
            "/queues/walk/purge", data={"scheduled": "1", "sure": "yes"}, follow_redirects=True
        )
        assert "4 items were removed." in done.text
        assert (await queue.counts()).total == 0


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({}, False),
        ({"sec-fetch-site": "same-origin"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"sec-fetch-site": "same-site"}, True),
        ({"sec-fetch-site": "cross-site"}, True),
        ({"sec-fetch-site": ""}, True),
        ({"sec-fetch-site": "cross-site", "origin": "http://shop:80", "host": "shop:80"}, True),
        ({"sec-fetch-site": "same-origin", "origin": "http://proxy", "host": "inner"}, False),
        ({"origin": "http://shop:8080", "host": "shop:8080"}, False),
        ({"origin": "http://SHOP", "host": "shop"}, False),
        ({"origin": "http://evil", "host": "shop"}, True),
        ({"origin": "null", "host": "shop"}, True),
        ({"origin": "http://[shop", "host": "shop"}, True),
        ({"origin": "", "host": "shop"}, True),
    ],
)
def test_who_counts_as_cross_site(headers: dict[str, str], *, refused: bool) -> None:
    assert is_cross_site(Headers(headers)) is refused


async def test_a_cross_site_write_changes_nothing_and_reading_is_free(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "walk")
    evil = {"sec-fetch-site": "cross-site"}
    other = AsyncWorkQueue.from_url(redis_url, "other")
    await fill(queue, redis_url)
    await queue.flow_runs.start(chain(queue.name, "stage"), "walk")
    async with queue, other, open_board(queue, other, rights=Rights.all) as (_, client):
        before = await state_of(queue)
        for action in ACTIONS:
            fields = {"sure": "yes", **FIELDS}
            answer = await client.post(path_of(action.path), data=fields, headers=evil)
            assert answer.status_code == 403, action.name
            got = await client.get(path_of(action.path), params=fields, headers=evil)
            assert got.status_code in {200, 303}, action.name
        assert await state_of(queue) == before
        assert (await client.get("/", headers=evil)).status_code == 200


async def test_every_answer_has_the_headers_and_nothing_is_inline(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "walk")
    await queue.add_item(Item(b"data", id="one"))
    async with queue, open_board(queue, rights=Rights.all) as (_, client):
        pages = ["/", "/queues/walk", "/queues/walk/purge", "/queues/none", "/none", "/queues/walk/pause"]
        for path in pages:
            answer = await client.get(path)
            assert answer.headers["content-security-policy"] == POLICY, path
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
            assert not [one for one in ("<style", " style=", " onclick", "javascript:") if one in answer.text]
            assert answer.text.count("<script") == answer.text.count("<script defer src=")
            assert "://" not in answer.text.replace("http://www.w3.org/2000/svg", "")


async def test_assets_are_kept_for_ever_under_the_names_of_their_digests(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "walk")
    async with queue, open_board(queue) as (_, client):
        page = (await client.get("/")).text
        names = [part.split('"')[0] for part in page.split('"./assets/')[1:]]
        assert len(names) == 5
        for name in names:
            answer = await client.get(f"/assets/{name}")
            assert answer.status_code == 200
            assert "immutable" in answer.headers["cache-control"]
        assert (await client.get("/assets/dashboard.css")).status_code == 404


async def test_a_page_that_has_not_changed_has_no_body(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "walk")
    async with queue, open_board(queue) as (_, client):
        first = await client.get("/none")
        assert first.status_code == 404
        first = await client.get("/?find=nothing")
        again = await client.get("/?find=nothing", headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        other = await client.get("/?find=other", headers={"if-none-match": first.headers["etag"]})
        assert other.status_code == 200


HOSTILE = [
    "a/b",
    "..",
    ".",
    "a//b",
    "ü n ï",
    "~7E",
    "100%",
    "<script>alert(1)</script>",
    "\"'><b>",
    "a?b#c&d",
    "\u202eabc",
]


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_queue_of_any_name_has_a_page_and_is_acted_on(redis_url: str, name: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, name)
    await queue.add_item(Item(b"data", id=name))
    async with queue, open_board(queue, rights=Rights.all) as (_, client):
        overview = await client.get("/")
        assert f'href="./queues/{segment(name)}"' in overview.text
        assert "<script>" not in overview.text
        page = await client.get(f"/queues/{segment(name)}")
        assert page.status_code == 200
        assert "<script>" not in page.text
        assert "\u202e" not in page.text
        done = await client.post(f"/queues/{segment(name)}/pause", follow_redirects=True)
        assert done.status_code == 200
        assert (await queue.stats()).paused is not None


@pytest.mark.parametrize("text", [*HOSTILE, "\udcff", "", "~", "~2", "%2F", "é~é"])
def test_any_text_is_a_part_of_a_path(text: str) -> None:
    part = segment(text)
    assert read_segment(part) == text
    assert not {*part} & {*"/%.?#&;\\ "}
    assert part.isascii()


@pytest.mark.parametrize("body", [b"\xff\xfe", b"a=1&" * 3000, b"a=" + b"x" * (1 << 20), b"%zz=%00"])
async def test_a_form_that_cannot_be_read_does_nothing_bad(redis_url: str, body: bytes) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "walk")
    await queue.add_item(Item(b"data", id="one"))
    async with queue, open_board(queue, rights=Rights.all) as (_, client):
        answer = await client.post("/queues/walk/purge", content=body)
        assert answer.status_code in {200, 400}
        assert (await queue.counts()).waiting == 1


async def test_rights_are_found_for_each_request_and_wrong_ones_are_refused(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "walk")
    await queue.add_item(Item(b"data", id="one"))

    async def rights(request: Request) -> Rights:
        return Rights.only("pause") if request.headers.get("x-user") == "ann" else Rights.nothing

    async with queue, open_board(queue, rights=rights) as (_, client):
        assert (await client.get("/")).status_code == 403
        assert (await client.get("/", headers={"x-user": "ann"})).status_code == 200
    with pytest.raises(InvalidArgument, match="one of pause, resume"):
        Rights.only("pasue")
