"""Nothing that others may write or send breaks a page: every link, button, parameter and body."""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urljoin

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from leasequeue import AsyncWorkQueue, Item
from leasequeue.autoscale.leader import PASS_ID, State, encode_state
from leasequeue.autoscale.report import PassError, PassReport
from leasequeue.dashboard import Rights, dashboard
from leasequeue.dashboard.action import FORM, MAX_FORM_BYTES, Action
from leasequeue.dashboard.pages import ACTIONS, PAGES
from leasequeue.dashboard.view import Page, read_segment, segment
from leasequeue.errors import InvalidArgument
from leasequeue.errors.describing import plain
from tests.dashboard.boards import client_of, open_board, parameters_of
from tests.dashboard.fleets import fill, register
from tests.dashboard.shown_pages import INJECTED, SECRET, ShownForm, ShownPage, problems_of
from tests.dashboard.test_routes import PARTS
from tests.hostile import TEXT, raw
from tests.hostile import fill as fill_with_text
from tests.plans.run_hashes import chain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx
    from redis.asyncio import Redis
    from starlette.types import Receive, Scope, Send

pytestmark = pytest.mark.slow

HTML = f"\"'><{INJECTED} {INJECTED}=1>"
#: Names of queues, items, tasks, errors, schedules and flow runs.
NAMES = [
    *("a/b", "..", "../../x", "%2F", "//evil.example", "~7E", "~ff", "100%", "a?b#c&d;e", "a\\b", "a  b"),
    *("javascript:alert(1)", "{{7*7}}", "ü n ï", "\u202eabc", "\u2028", "a\nb", "a\r\nb", "nul\0nul"),
    *(HTML, f"' {INJECTED}='", f'" {INJECTED}="', "x" * 200, "9" * 200),
]
#: Values of parameters: names, bytes that are no text, numbers, and a long one.
VALUES = [HTML, TEXT, "//a/../%2F\\", "", "\udcff", "~ED~A0~80", "-1", "9" * 19, "9" * 5000, "<" * 9_000]
#: The ends of the paths of actions.
ACTS = {action.path.rpartition("/")[2] for action in ACTIONS}
PREFIX = "http://test/x/board/"


def long(*cases: object) -> list[Any]:
    return [pytest.param(one, marks=pytest.mark.long) for one in cases]


async def fill_all(redis: Redis, url: str) -> None:
    """Fill a server, as far as that goes by the API, else as other programs may."""
    async with AsyncWorkQueue.from_url(url, f"{{h}} {TEXT}") as queue:
        await fill_with_text(redis, queue)
    for key in (b"<" * 10_000 + b":queue", b"\xff:queue"):
        await raw(redis, "LPUSH", key, "x")
    for at in range(55):  # a page more, which begins at an id that is too long for a link
        item_id = f"{at} {'<' * 30_000}".encode()
        await raw(redis, "ZADD", "long:dead", 1_700_000_000_000, item_id)
        await raw(redis, "HSET", b"long:dead:" + item_id, "data", "", "error", "bad")
    await register(url, "long", "half of a pair: \ud800")
    error = PassError(part=TEXT, problem=TEXT)
    for name, count in (("scaler", 2), ("large scaler", 9_000)):
        report = asdict(PassReport(number=1, copy=TEXT, errors=(error,) * count))
        async with AsyncWorkQueue.from_url(url, name) as one:
            await one.add_item(Item(encode_state(State(report=report)), id=PASS_ID))
    for name in NAMES:
        async with AsyncWorkQueue.from_url(url, name) as one:
            await one.schedules.every(60, name, SECRET.encode())
            try:
                plan = chain(name, name, flow=name, user=json.dumps(SECRET).encode())
                await one.flow_runs.start(plan, name)
            except InvalidArgument:  # no id of a flow run
                await fill(one, url)
        key = name.encode()
        item_id = key + b"\xff"
        data = json.dumps({"task": name, "args": SECRET})
        for what in (b":queue", b":processing"):
            await raw(redis, "LPUSH", key + what, item_id)
        await raw(redis, "SET", key + b":item:" + item_id, data)
        await raw(redis, "SET", key + b":result:" + item_id, SECRET)
        await raw(redis, "ZADD", key + b":dead", 1_700_000_000_000, item_id)
        await raw(redis, "HSET", key + b":dead:" + item_id, "data", data, "error", f"{name}: {name}")


@asynccontextmanager
async def open_full(redis: Redis, url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a dashboard of a full server, which is mounted in an application."""
    await fill_all(redis, url)
    board = dashboard(url, rights=Rights.all.of(HTML), environment=HTML)
    app = Starlette(routes=[Mount("/x/board", board)])
    async with board.router.lifespan_context(board), client_of(app) as client:
        yield client


def is_shown(url: str, page: ShownPage) -> bool:
    """Return whether a page is that of the queue, the item, the worker or the flow run in its path."""
    path = url.removeprefix(PREFIX).partition("?")[0]
    parts = [one for one in path.split("/")[1:] if one not in {"jobs", *ACTS} and "/walk/" not in path]
    return (
        all(plain(read_segment(one)) in page.text for one in parts)
        and ("jobs/" not in path or "It is not there" not in page.text)
        and ("dead?task=" not in url or "None matches" not in page.text)
    )


async def test_every_link_leads_to_what_it_names_and_no_text_becomes_html(
    redis: Redis, redis_url: str
) -> None:
    async with open_full(redis, redis_url) as client:
        todo, visited, problems = [PREFIX], Counter[tuple[str, str]](), list[str]()
        while todo:
            url = todo.pop()
            kind = url.partition("?")[0], re.sub("=[^&]*", "", url.partition("?")[2])
            if visited[kind] >= 2:  # the same page, filtered or sorted by something else
                continue
            visited[kind] += 1
            answer = await client.get(url)
            page = ShownPage(answer.text)
            wrong = problems_of(answer)
            if answer.status_code != 200 or not is_shown(url, page):
                wrong.append("it is not the page of what its address names")
            forms = [one for one in page.forms if one.method == "get" and not one.asks]
            found = [*page.links, *(f"{one.action}?{urlencode(one.fields)}" for one in forms)]
            found = [urljoin(url, href) for href in found]
            wrong += [f"{href} leads away" for href in found if not href.startswith(PREFIX)]
            problems += [f"{url[:300]}: {one}" for one in wrong]
            todo += dict.fromkeys(found)
        assert not problems
        assert len(visited) > 200


async def submit(client: httpx.AsyncClient, url: str, form: ShownForm, *more: tuple[str, str]) -> str:
    """Send a form as a browser does, and the one that asks for confirmation; return the page after that."""
    fields = {name: re.sub("\r\n|\r|\n", "\r\n", value) for name, value in [*form.fields, *more]}
    if form.method == "get":
        asked = await client.get(f"{urljoin(url, form.action)}?{urlencode(fields)}")
        (sure,) = [one for one in ShownPage(asked.text).forms if ("sure", "yes") in one.fields]
        return await submit(client, f"{asked.url}", sure)
    answer = await client.post(urljoin(url, form.action), data=fields, follow_redirects=True)
    assert (answer.status_code, problems_of(answer)) == (200, [])
    return answer.text


async def test_links_stay_in_the_dashboard_behind_an_encoded_slash(redis: Redis, redis_url: str) -> None:
    async with open_full(redis, redis_url) as client:
        for path in ("queues%2Fscaler", "none%2F%2Fnone", "flows%2F..%2Fscaler"):
            page = ShownPage((await client.get(f"{PREFIX}{path}")).text)
            links = [*page.links, *(one.action for one in page.forms)]
            assert [one for one in links if not urljoin(f"{PREFIX}{path}", one).startswith(PREFIX)] == []
        url = f"{PREFIX}queues/a%3Fb%23c&d;e/"
        assert " items were removed" in await submit(client, url, ShownForm("purge", "get"))


@pytest.mark.parametrize("name", [HTML, TEXT, *long(*NAMES)], ids=ascii)
async def test_buttons_act_on_what_they_stand_beside(redis: Redis, redis_url: str, name: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "walk")
    item_id = f"{name}\udcff"
    key = item_id.encode(errors="surrogateescape")
    for what in ("queue", "processing"):
        await raw(redis, "LPUSH", f"walk:{what}", key)
    await raw(redis, "SET", b"walk:item:" + key, "data")
    await raw(redis, "ZADD", "walk:dead", 1_700_000_000_000, key)
    await raw(redis, "HSET", b"walk:dead:" + key, "data", "data", "error", name)
    await register(redis_url, "walk", "one", running=[[item_id, name, 1]])
    async with queue, open_board(queue, rights=Rights.all) as (_, client):

        async def press(path: str, end: str, *more: tuple[str, str]) -> str:
            page = ShownPage((await client.get(path)).text)
            (form,) = [one for one in page.forms if one.action.endswith(end)]
            return await submit(client, path, form, *more, *(("letter", one) for one in page.boxes if one))

        await queue.schedules.every(60, name, b"data")
        assert "1 item was added" in await press("/schedules", "/run-schedule")
        assert "1 schedules were removed" in await press("/schedules", "/remove-schedule")
        assert "Items cancelled: 1" in await press("/workers/one", "/cancel")
        assert "Dead letters requeued: 1" in await press("/dead", "dead/requeue")


@pytest.mark.parametrize("values", [VALUES, *long(NAMES)], ids=["values", "names"])
@pytest.mark.parametrize("page", [*PAGES, *ACTIONS], ids=lambda one: one.path)
async def test_no_value_breaks_a_page(redis_url: str, page: Page | Action, values: list[str]) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "walk")
    await fill(queue, redis_url)
    await queue.flow_runs.start(chain("walk", "stage"), "walk")
    right = {"queue": "walk", "item": "one", "to": "walk", "schedule": "walk", "sure": "yes", "did": "pause"}
    problems = list[str]()
    async with queue, open_board(queue, rights=Rights.all) as (_, client):

        async def ask(what: str, fields: dict[str, str], **parts: str) -> None:
            path, query = page.path.format(**{**PARTS, **parts}), urlencode(fields, errors="surrogateescape")
            answers = [await client.get(f"{path}?{query}")]
            if isinstance(page, Action):
                answers.append(await client.post(path, content=query, headers={"content-type": FORM}))
            problems.extend(f"{what}: {one}" for answer in answers for one in problems_of(answer))

        for value in values:
            for part in re.findall(r"{(\w+)}", page.path):
                for text in (segment(value), quote(value, safe="", errors="surrogateescape")):
                    await ask(f"{part} is {text[:80]}", right, **{part: text})
            for name in parameters_of(page):
                await ask(f"{name}={value[:80]!r}", {**right, name: value})
    assert not problems


async def test_a_query_of_bytes_that_are_no_text_is_refused(redis_url: str) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "walk")

    async def send_bytes(scope: Scope, receive: Receive, send: Send) -> None:
        await board({**scope, "query_string": b"\xff=\xff&queue=\xff&sure=yes"}, receive, send)

    async with queue, open_board(queue, rights=Rights.all) as (board, _), client_of(send_bytes) as client:
        await fill(queue, redis_url)
        for path in [*(one.path for one in PAGES), *(one.path for one in ACTIONS)]:
            assert problems_of(await client.get(path.format(**PARTS))) == []


@pytest.mark.parametrize("action", ["purge", "pause"])
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b'{"sure": "yes"}'),
        ("multipart/form-data; boundary=b", b'--b\r\nContent-Disposition: form-data; name="sure"\r\n\r\nyes'),
        (FORM, b"a=1&" * 250_000),
        (FORM, b"sure=\xff"),
        ("", b"sure=" + b"y" * (1 << 21)),
    ],
    ids=["JSON", "multipart", "250,000 fields", "no ASCII", "2 MiB"],
)
async def test_a_body_that_is_no_small_form_is_refused_and_not_read_to_its_end(
    redis_url: str, kind: str, body: bytes, action: str
) -> None:
    queue, read = AsyncWorkQueue.from_url(redis_url, "walk"), 0

    async def send() -> AsyncIterator[bytes]:
        nonlocal read
        for at in range(0, len(body), 1 << 16):
            read += 1
            yield body[at : at + (1 << 16)]

    async with queue, open_board(queue, rights=Rights.all) as (_, client):
        await fill(queue, redis_url)
        headers = {"content-type": kind} if kind else {}
        answer = await client.post(f"/queues/walk/{action}", content=send(), headers=headers)
        stats = await queue.stats()
    assert (answer.status_code, problems_of(answer)) == (400, [])
    assert (stats.counts.waiting, stats.paused) == (1, None)
    assert read <= 2
    assert len(answer.content) < 10_000


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_form_that_is_repeated_for_confirmation_makes_no_large_page(
    redis_url: str, method: str
) -> None:
    queue = AsyncWorkQueue.from_url(redis_url, "walk")

    async def send_form(scope: Scope, receive: Receive, send: Send) -> None:  # httpx would quote the quotes
        await board({**scope, "query_string": form if method == "GET" else b""}, receive, send)

    async with queue, open_board(queue, rights=Rights.all) as (board, _), client_of(send_form) as client:
        await fill(queue, redis_url)
        for size, status in ((MAX_FORM_BYTES, 200), (MAX_FORM_BYTES + 1, 400)):
            form = b"a=" + b'"' * (size - 2)
            sent: dict[str, Any] = {"content": form, "headers": {"content-type": FORM}}
            answer = await client.request(method, "/queues/walk/purge", **(sent if method == "POST" else {}))
            assert (answer.status_code, problems_of(answer)) == (status, [])
            assert len(answer.content) < 6 * MAX_FORM_BYTES
