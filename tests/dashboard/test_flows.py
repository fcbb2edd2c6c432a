"""The pages of flow runs: lists, and a run drawn and followed to its end over HTTP."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from leasequeue import AsyncWorkQueue, FanOut, Item, Next, TaskQueue, fan_out
from leasequeue.dashboard import Rights
from leasequeue.dashboard.layout import MAX_BENDS, MAX_EDGES, WIDE, Layers
from leasequeue.dashboard.pages import flows as page
from leasequeue.dashboard.view import segment
from leasequeue.flow import Flow
from leasequeue.queue.plans.plan import FlowPlan, StagePlan
from leasequeue.queue.plans.reading import StageView
from leasequeue.queue.queue import engine_of
from tests.dashboard.boards import open_board
from tests.dashboard.fleets import register
from tests.plans.run_hashes import chain
from tests.plans.sub_flow import Nested
from tests.queue.asking import until
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    import httpx
    from starlette.applications import Starlette

_SVG = re.compile(r'<svg class="flow (?:wide|narrow).*?</svg>', re.DOTALL)


def drawn(text: str) -> dict[str, str]:
    """Return the stages of the first drawing, each with its class and its texts."""
    svg = ET.fromstring(_SVG.findall(text)[0])  # noqa: S314 - of our own
    found = {}
    for one in svg.findall("g"):
        title = one.findtext("title")
        if title is not None:
            texts = " | ".join(part.text or "" for part in one.findall("text"))
            found[title.partition(":")[0]] = f"{one.get('class', '').removeprefix('stage s-')}: {texts}"
    return found


async def shown(client: httpx.AsyncClient, path: str) -> str:
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


async def is_drawn(app: Starlette, client: httpx.AsyncClient, stage: str, wanted: str) -> None:
    """Wait until a stage of the run `r` is drawn with a text."""

    async def has() -> bool:
        app.state.board.reads.forget()
        return wanted in drawn(await shown(client, "/flows/shop/r"))[stage]

    await until(f"{stage} is {wanted}", has)


@pytest.mark.parametrize("shards", [None, 4])
async def test_a_run_is_followed_to_its_end(redis_url: str, shards: int | None) -> None:
    tasks = TaskQueue.from_url(redis_url, "shop", shards=shards)
    flow = Flow("publish", tasks, attributes={"size": int}, lookup=["size"])
    goes, ends = asyncio.Event(), asyncio.Event()

    @tasks.task
    async def check(size: int) -> Next[int]:
        return Next(size, "thumbnails")

    @tasks.task
    async def review() -> None: ...

    @tasks.task
    async def thumb(number: int) -> int:
        await goes.wait()
        if number:
            await ends.wait()
        return number

    @tasks.task
    async def thumbnails(size: int) -> FanOut[int]:
        return fan_out([thumb.call(number) for number in range(size)])

    @tasks.task
    async def finish() -> str:
        return "the-secret"

    first = flow.stage(check)
    flow.stage(review, after=first)
    flow.stage(finish, after=[flow.stage(thumbnails, after=first), "review"], join="settled")
    await flow.start(id="r", size=1_000)
    async with tasks, open_board(tasks) as (app, client):
        now = partial(is_drawn, app, client)
        before = drawn(await shown(client, "/flows/shop/r"))
        assert before["check"] == "waiting: check | waiting | chooses what follows"
        assert before["finish"].startswith("not-entered: settled | finish")
        async with working(new_worker(flow, concurrency=4)):
            await now("thumbnails", "running: thumbnails | 0 of 1,000")
            text = await shown(client, "/flows/shop/r")
            assert len(text) < 40_000
            assert 'class="edge choice off"' in text  # to what was not chosen
            assert 'class="edge choice past"' in text
            assert drawn(text)["review"] == "skipped: review | skipped"
            goes.set()
            await now("thumbnails", "1 of 1,000")
            ends.set()
            await now("finish", "done")
        text = await shown(client, "/flows/shop/r")
        assert drawn(text)["thumbnails"] == "done: thumbnails | 1,000 of 1,000"
        assert "1,000 done" in text
        assert "completed" in text
        assert "the-secret" not in text
        assert ">hidden</dd>" in text
        listed = await shown(client, "/flows")
        assert 'href="./flows/shop/r"' in listed
        assert "1,004 of 1,004" in listed


async def test_if_there_are_too_many_workers_to_ask_the_holder_of_a_stage_is_still_named(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "WORKERS", 1)
    await register(redis_url, "shop", "idle")
    async with (
        AsyncWorkQueue.from_url(redis_url, "shop") as queue,
        AsyncWorkQueue.from_url(redis_url, "shop") as theirs,
        open_board(queue) as (_, client),
    ):
        await queue.flow_runs.start(chain(queue.name, "check"), "r")
        assert await theirs.lease(60, block=False) is not None
        running = [["r/check", "check", time.time() * 1000]]
        about = {"name": "the holder", "running": running}
        await engine_of(theirs).registry.beat(about, alive_ms=3_600_000, first=True)
        text = await shown(client, "/flows/shop/r")
    assert "the holder" in text
    assert drawn(text)["check"].startswith("running: check")


def test_children_are_said_to_run_only_if_that_is_known() -> None:
    stage = StagePlan("thumbs", "shop", b"")
    view = StageView(state="fanned out", children={"total": 9, "unfinished": 5, "done": 4})
    some = partial(
        page.DrawnStage, plan=stage, view=view, state="running", item=None, worker=None, since=None, join=""
    )
    assert some(running=2).counts == [(4, "done"), (2, "running"), (3, "waiting")]
    assert some(running=None).counts == [(4, "done"), (5, "unfinished")]


async def test_a_stage_leads_to_the_run_that_it_waits_for_and_back(redis_url: str) -> None:
    tasks = TaskQueue.from_url(redis_url, "shop")
    nested = Nested(tasks)
    nested.waits = True
    await nested.orders.start(item="shirt", id="r")
    async with tasks, open_board(tasks) as (app, client), working(new_worker(nested.orders)):
        await is_drawn(app, client, "payment", "running: payment | running | flow payment")
        inner = f"flows/shop/{segment('r~~payment')}"
        assert f'<small>flow <a href="../../{inner}">payment</a></small>' in await shown(
            client, "/flows/shop/r"
        )
        assert 'part of <a href="../../flows/shop/r">r</a>' in await shown(client, f"/{inner}")
        await tasks.queue.flow_runs.cancel("r")


async def test_the_page_of_a_stage_leads_to_its_run_and_back(redis_url: str) -> None:
    async with (
        AsyncWorkQueue.from_url(redis_url, "shop") as home,
        AsyncWorkQueue.from_url(redis_url, "other") as other,
        open_board(home, other) as (app, client),
    ):
        await home.flow_runs.start(chain(other.name, "away"), "r")
        await home.flow_runs.start(chain(home.name, "here"), "ü r")
        await home.add_item(Item(b"no stage", id="ü r/there"))
        link = 'href="../../../flows/shop/{}"'.format
        away, here = (f"/queues/other/jobs/{segment('r/away')}", f"/queues/shop/jobs/{segment('ü r/here')}")
        assert link("r") in await shown(client, away)
        assert f'href="../../{away[1:]}"' in await shown(client, "/flows/shop/r")
        assert link(segment("ü r")) in await shown(client, here)
        assert "flow run" not in await shown(client, f"/queues/shop/jobs/{segment('ü r/there')}")
        await home.flow_runs.report("ü r", "here", None)
        app.state.board.reads.forget()
        ended = await shown(client, here)
        assert "completed, or never existed" in ended
        assert link(segment("ü r")) in ended


async def test_results_and_inputs_are_what_the_application_shows(redis_url: str) -> None:
    async with AsyncWorkQueue.from_url(redis_url, "data") as queue:
        await queue.flow_runs.start(chain(queue.name, "stage", user_id=b"12345678901234567890"), "r")
        await queue.flow_runs.report("r", "stage", {"card": 4})
        async with open_board(queue, show_data=lambda name, data: f"{name} {len(data)}") as (_, client):
            text = await shown(client, "/flows/data/r")
    assert ">data 20</dd>" in text
    assert ">data 10</td>" in text


async def test_the_page_of_all_queues_names_those_with_runs_that_it_does_not_show(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "ROWS", 3)
    monkeypatch.setattr(page, "ROWS_EACH", 2)
    async with AsyncExitStack() as stack:
        queues = [
            await stack.enter_async_context(AsyncWorkQueue.from_url(redis_url, name))
            for name in ("old", "new", "done")
        ]
        for queue in queues[:2]:
            for number in range(2):
                await queue.flow_runs.start(chain(queue.name, "stage"), f"run-{number}")
        for number in range(9):
            await queues[2].flow_runs.start(chain("done", "stage", user_id=b"1"), f"run-{number}")
            await queues[2].flow_runs.cancel(f"run-{number}")
        _, client = await stack.enter_async_context(open_board(*queues))

        async def hinted(path: str) -> list[str]:
            [hint] = re.findall(r"There may be more runs of (.*)</p>", await shown(client, path))
            return re.findall(r">([a-z]+)</a>", hint)

        assert await hinted("/flows") == ["done", "new", "old"]
        assert await hinted("/flows?state=cancelled") == ["done"]
        none_yet = "/flows?flow=access&state=active&find=user_id%3D1"
        assert "None among those looked at so far" in await shown(client, none_yet)
        assert await hinted(none_yet) == ["done"]


@pytest.mark.parametrize("shards", [None, 4])
async def test_runs_are_listed_page_by_page_and_found_by_state_attribute_and_id(
    redis_url: str, shards: int | None
) -> None:
    async with (
        AsyncWorkQueue.from_url(redis_url, "many", shards=shards) as queue,
        AsyncWorkQueue.from_url(redis_url, "other") as other,
    ):
        for number in range(page.ROWS + 7):
            plan = chain(queue.name, "stage", user_id=b"%d" % number)
            await queue.flow_runs.start(plan, f"run-{number:03}")
        await queue.flow_runs.cancel("run-003")
        await other.flow_runs.start(chain(other.name, "stage"), "elsewhere")
        async with open_board(queue, other) as (_, client):

            async def ids(path: str) -> list[str]:
                return re.findall(r'<tr id="r-[^/]*/([^"]*)"', await shown(client, path))

            seen, path = await ids("/flows/many"), "/flows/many"
            assert len(seen) == page.ROWS
            [following] = re.findall(r'href="([^"]*after=[^"]*)">Next<', await shown(client, path))
            seen += await ids("/flows/" + following.replace("&amp;", "&").removeprefix("../flows/"))
            assert sorted(seen) == sorted(segment(f"run-{number:03}") for number in range(page.ROWS + 7))
            everywhere = await ids("/flows")
            assert "elsewhere" in everywhere
            assert len(everywhere) == page.ROWS_EACH + 1
            assert await ids("/flows?state=cancelled") == ["run-003"]
            assert await ids("/flows?flow=access&find=user_id%3D5") == ["run-005"]
            assert await ids("/flows?flow=access&state=active&find=user_id%3D3") == []
            assert await ids("/flows?find=run-004") == ["run-004"]
            assert await ids("/flows/many?flow=none") == []
            for wrong in ("/flows/many?after=7", "/flows?find=run%2F4"):
                assert (await client.get(wrong)).status_code == 400
            assert (await client.get("/flows/many/none")).status_code == 404


@pytest.mark.parametrize("shards", [None, 4])
async def test_a_failed_run_is_retried_and_one_is_cancelled_and_replayed_after_a_question(
    redis_url: str, shards: int | None
) -> None:
    async with AsyncWorkQueue.from_url(redis_url, "acts", shards=shards) as queue:
        await queue.flow_runs.start(chain(queue.name, "first", "second"), "r")
        await queue.flow_runs.report("r", "first", 1)
        error = "Traceback\n  <script>x</script>\nValueError: the card was declined"
        await queue.flow_runs.report_failed("r", "second", error)
        async with open_board(queue, rights=Rights.all) as (_, client):

            async def does(action: str, asked: str) -> str:
                path = f"/flows/acts/r/{action}"
                assert f'href="../../flows/acts/r/{action}"' in await shown(client, "/flows/acts/r")
                question = await client.post(path)
                assert asked in question.text
                answer = await client.post(path, data={"sure": "yes"}, follow_redirects=True)
                assert answer.status_code == 200
                return answer.text

            text = await shown(client, "/flows/acts/r")
            assert drawn(text)["second"] == "failed: second | failed | ValueError: the card wa…"
            assert "<script>x" not in text
            assert "cancel_flow" not in text  # it has ended
            text = await does("retry_flow", "failed, 1 of its stages")
            assert "Flow runs that go on: 1." in text
            assert drawn(text)["second"] == "waiting: second | waiting"
            assert drawn(text)["first"] == "done: first | done"
            assert "retry_flow" not in text
            text = await does("cancel_flow", "Of its 2 stages and children, 1 have ended")
            assert "Cancelled flow runs: 1." in text
            assert drawn(text)["second"].startswith("cancelled")
            await does("replay_flow", "Its 2 stages")
            runs = await queue.flow_runs.list()
            assert sorted(run.state for run in runs if run) == ["active", "cancelled"]
        async with open_board(queue) as (_, client):
            text = await shown(client, "/flows/acts/r")
            assert not [one.name for one in page.ACTIONS if one.name in text]
            answer = await client.post("/flows/acts/r/replay_flow", data={"sure": "yes"})
            assert answer.status_code == 403


@pytest.mark.parametrize("shards", [None, 4])
async def test_a_run_shows_the_signal_that_it_waits_for_and_takes_it(
    redis_url: str, shards: int | None
) -> None:
    signal, path = "a\nb<b>", "/flows/signals/r/signal_flow"
    async with AsyncWorkQueue.from_url(redis_url, "signals", shards=shards) as queue:
        waits = StagePlan(signal, queue.name, b"{}", delay_ms=7_200_000, signal=True)
        await queue.flow_runs.start(FlowPlan((waits, StagePlan("open", queue.name, b"{}", signal=True))), "r")
        async with open_board(queue, rights=Rights.all) as (_, client):
            text = await shown(client, "/flows/signals/r")
            assert drawn(text)["open"].startswith("scheduled: open | waits for its signal")
            assert re.search(r"waits for its signal, [12] h left", text)
            found = re.findall(r'name="signal" value="([^"]*)"', text)
            assert found == [segment(signal), "open"]
            form = {"signal": found[0], "value": '{"by": "ann"}'}
            for given in (1, 0):
                answer = await client.post(path, data=form, follow_redirects=True)
                assert f"Signals given: {given}." in answer.text
            answer = await client.post(path, data={"signal": "open", "value": "{"})
            assert answer.status_code == 400
            assert "JSON" in answer.text
        assert (await queue.flow_runs.get("r")).results == {signal: {"by": "ann"}}
        async with open_board(queue) as (_, client):
            assert "signal_flow" not in await shown(client, "/flows/signals/r")
            assert (await client.post(path, data={"signal": "open"})).status_code == 403


HOSTILE = ["<script>alert(1)", "\"'><b>", "a\u202eb", "x" * 100, "&amp;", "]]>", "a\nb", "{{ 7 }}"]


async def test_stages_of_any_name_are_drawn_as_text(redis_url: str) -> None:
    stages = [
        StagePlan(one, "names", b"1", after=(HOSTILE[at - 1],) if at else ())
        for at, one in enumerate(HOSTILE)
    ]
    async with AsyncWorkQueue.from_url(redis_url, "names") as queue:
        await queue.flow_runs.start(FlowPlan((*stages,), attributes={"<b>": b"1"}), "<script>")
        async with open_board(queue, show_data=True) as (_, client):
            text = await shown(client, f"/flows/names/{segment('<script>')}")
            assert '<script>"' not in await shown(client, "/flows")
    assert len(drawn(text)) == len(HOSTILE)
    assert not [one for one in ("<script>", "<b>", "\u202e", " style=", "x" * 30 + "</text>") if one in text]


async def test_a_run_of_many_stages_is_drawn_in_parts(redis_url: str) -> None:
    count = page.STAGES + 30
    async with AsyncWorkQueue.from_url(redis_url, "large") as queue:
        await queue.flow_runs.start(chain(queue.name, *(f"s{at}" for at in range(count))), "r")
        async with open_board(queue) as (_, client):
            text = await shown(client, "/flows/large/r")
            assert [*drawn(text)] == [f"s{at}" for at in range(page.STAGES)]
            assert f'?stage={page.STAGES}">Next stages' in text
            text = await shown(client, f"/flows/large/r?stage={page.STAGES}")
            assert [*drawn(text)] == [f"s{at}" for at in range(page.STAGES, count)]
            assert await shown(client, "/flows/large/r?stage=99999")
            assert await shown(client, "/flows/large/r?stage=-1")


def test_stages_are_in_layers_after_what_they_follow_and_edges_cross_no_box() -> None:
    after = {"e": ["a", "d"], "a": [], "b": ["a"], "c": ["a"], "d": ["c", "b"], "loose": []}
    drawing = Layers(after).draw(WIDE)
    column = {
        one: round((x - WIDE.border) / (WIDE.width + WIDE.between)) for one, (x, _) in drawing.boxes.items()
    }
    assert column == {"a": 0, "loose": 0, "b": 1, "c": 1, "d": 2, "e": 3}
    assert len({*drawing.boxes.values()}) == 6
    [around] = [line for start, end, line, *_ in drawing.edges if (start, end) == ("a", "e")]
    assert around.count("C") == 3  # around what is between
    for place in re.findall(r"L(\S+) (\S+?)C", around):
        at = [float(one) for one in place]
        assert not [
            one
            for one, (x, y) in drawing.boxes.items()
            if x <= at[0] <= x + WIDE.width and y <= at[1] <= y + WIDE.height
        ]


def test_a_dense_graph_with_long_edges_has_a_bounded_drawing() -> None:
    names = [f"s{at}" for at in range(100)]
    after = {one: [*{*names[: min(at, 10)], *names[max(0, at - 1) : at]}] for at, one in enumerate(names)}
    layers = Layers(after)
    assert layers.left_out == sum(map(len, after.values())) - MAX_EDGES
    drawing = layers.draw(WIDE)
    assert len(drawing.edges) == MAX_EDGES
    assert sum(edge[2].count("C") for edge in drawing.edges) <= MAX_EDGES + MAX_BENDS
