"""The history of a queue, drawn; and the report of an autoscaler."""

from __future__ import annotations

import re
import time

import msgspec

from leasequeue import AsyncWorkQueue, Item
from leasequeue.autoscale.leader import PASS_ID, State, encode_state
from leasequeue.autoscale.model import TierReport
from leasequeue.autoscale.report import PassError, PassReport
from leasequeue.dashboard import Rights
from leasequeue.dashboard.charts import histogram, history_chart, share_text
from leasequeue.views import HistoryCell
from tests.dashboard.boards import open_board


def cell(start: int, *, over: bool = True, **values: int) -> HistoryCell:
    numbers = dict.fromkeys(("added", "completed", "failed", "dead", "expired", "oldest_age"), 0)
    return HistoryCell(
        start=start * 60, seconds=60, over=over, runs=(0,) * 7, waits=(0,) * 7, **{**numbers, **values}
    )


def rects(svg: str, kind: str) -> list[tuple[float, float]]:
    """Return where the bars of a kind begin, from above, and how high they are."""
    found = re.findall(rf'<rect class="{kind}" x="[\d.]+" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', svg)
    return [(float(top), float(size)) for top, size in found]


def test_bars_are_as_high_as_their_numbers_and_the_newest_is_dashed() -> None:
    svg = history_chart([cell(0, completed=50), cell(1), cell(2, completed=75, failed=25, over=False)])
    assert rects(svg, "done") == [(62, 58)]
    assert rects(svg, "done now") == [(33, 87)]
    assert rects(svg, "failing now") == [(4, 29)], "it stands on the other bar"
    assert "125 completed, 25 failed" in svg
    assert "<title>00:00: 50 completed, 0 failed</title>" in svg
    assert "polyline" not in svg, "nothing waited"


def test_the_oldest_age_is_a_line_whose_last_part_is_dashed() -> None:
    cells = [cell(0, oldest_age=60), cell(1, oldest_age=120), cell(2, oldest_age=30, over=False)]
    svg = history_chart(cells)
    assert re.findall('class="(age[^"]*)" points="([^"]*)"', svg) == [
        ("age", "120.0,62.0 360.0,6.0"),
        ("age now", "360.0,6.0 600.0,90.0"),
    ]
    assert "polyline" not in history_chart(cells, small=True)


def test_a_histogram_says_within_what_a_share_was() -> None:
    counts = [50, 0, 44, 2, 0, 0, 4]
    assert share_text(counts, 0.5) == "50% within 10 ms"
    assert share_text(counts, 0.95) == "95% within 10 s"
    assert share_text(counts, 0.99) == "99% over 10 min"
    assert share_text([0] * 7, 0.5) == ""
    svg = histogram(counts, "Ran")
    assert re.findall(r'height="([\d.]+)"', svg) == ["96.0", "0.0", "84.5", "3.8", "0.0", "0.0", "7.7"]
    assert 'aria-label="Ran: 10 ms 50' in svg


async def test_history_is_switched_on_and_drawn_on_both_pages(redis_url: str) -> None:
    async with (
        AsyncWorkQueue.from_url(redis_url, "walk") as queue,
        open_board(queue, rights=Rights.all) as (app, client),
    ):
        off = (await client.get("/queues/walk")).text
        assert "History is off" in off
        assert "Completed, 24 h" not in (await client.get("/")).text
        on = await client.post("/queues/walk/keep-history", follow_redirects=True)
        assert "keeps its history from now on" in on.text
        assert "History is off" not in on.text
        await queue.add_items([Item(b"data") for _ in range(3)])
        for _ in range(3):
            lease = await queue.lease(60, block=False)
            assert lease is not None
            assert await queue.complete(lease)
        app.state.board.reads.forget()
        for by in ("minute", "hour", "day"):
            page = (await client.get(f"/queues/walk?by={by}")).text
            assert "completed 3<" in page
            assert f'aria-current="true">by {by}</a>' in page
        app.state.board.sampler.histories["walk"].day_due = 0.0
        await app.state.board.sampler.sample("walk")
        overview = (await client.get("/")).text
        assert "Completed, 24 h" in overview
        assert "3 completed, 0 failed" in overview
        stopped = (await client.post("/queues/walk/stop-history", follow_redirects=True)).text
        assert "keeps its history no more" in stopped
        assert "History is off" in stopped
        assert "completed 3<" in stopped
        assert "Stop keeping" not in stopped


async def test_the_last_report_of_an_autoscaler_is_shown(redis_url: str) -> None:
    report = PassReport(
        number=7,
        at=time.time() - 4000,
        copy="node/1/ab",
        tiers=(TierReport(deployment="media", tier="spot", ready=2, requested=2, wanted=9, why="<many>"),),
        errors=(PassError(part="tier media/spot", problem="no quota"),),
    )
    async with (
        AsyncWorkQueue.from_url(redis_url, "scaler") as queue,
        AsyncWorkQueue.from_url(redis_url, "walk") as other,
        open_board(queue, other) as (_, client),
    ):
        await other.add_item(Item(b"no state", id=PASS_ID))
        assert "No autoscaler has made a pass" in (await client.get("/autoscaler")).text
    async with (
        AsyncWorkQueue.from_url(redis_url, "scaler") as queue,
        open_board(queue) as (_, client),
    ):
        state = State(number=7, at=report.at, report=msgspec.to_builtins(report))
        await queue.add_item(Item(encode_state(state), id=PASS_ID), delay=60)
        page = (await client.get("/autoscaler")).text
        for text in ("media/spot", "&lt;many&gt;", "no quota", "not asked", "no pass for long", "node/1/ab"):
            assert text in page, text
