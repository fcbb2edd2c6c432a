"""The report of a pass, as JSON, log lines, an event and metrics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue
from leasequeue.autoscale import (
    Autoscaler,
    JobReport,
    PassError,
    PassReport,
    Signals,
    TierReport,
    metric_values,
)
from leasequeue.autoscale.model import Answer
from leasequeue.autoscale.report import read_report
from tests.autoscale.scaling import Platform, add_items, make_config

if TYPE_CHECKING:
    from collections.abc import Iterator

REPORT = PassReport(
    number=7,
    at=1_900_000_000.0,
    duration=0.25,
    copy="host/1",
    jobs=(
        JobReport(
            job="resize",
            signals=Signals(waiting=20, oldest_age=3.5),
            answer=Answer(workers=11, why="20 items wait"),
            share=4,
        ),
    ),
    tiers=(
        TierReport(
            deployment="media", tier="steady", ready=4, requested=4, wanted=10, why="more", asked=True
        ),
        TierReport(deployment="media", tier="spot", ready=None, requested=None, wanted=2, why="as before"),
        TierReport(deployment="mail", tier="main", ready=1, requested=1, wanted=1, asked=True),
    ),
    errors=(PassError(part="tier media/spot", problem="is away"),),
)


@pytest.mark.seed("RWQ-O25")
def test_a_report_survives_json() -> None:
    line = REPORT.to_json()
    assert b"\n" not in line
    assert read_report(json.loads(line), age=2.0) == PassReport(**{**vars(REPORT), "age": 2.0})


@pytest.mark.parametrize("stored", [None, [], {}, {"number": "x"}, {"jobs": [{}]}, "text"])
def test_what_is_no_report_is_none(stored: object) -> None:
    assert read_report(stored, age=0.0) is None


def test_each_change_is_a_line_and_the_pass_is_one() -> None:
    assert [*REPORT.lines()] == [
        "asked media/steady for 10 units, before 4: more",
        "pass 7: 1 job, 20 items waiting; 13 units wanted, 5 ready; 1 error; 0.25 s",
    ]


def many_tiers(count: int) -> Iterator[TierReport]:
    for number in range(count):
        yield TierReport(
            deployment=f"deployment-{number}", tier="ü" * 20, ready=0, requested=number % 2, wanted=1
        )


@pytest.mark.parametrize("count", [0, 1, 10, 30, 1000])
def test_an_event_is_never_too_long(count: int) -> None:
    errors = (PassError(part="server", problem="é" * 5000),)
    event = PassReport(number=1, tiers=tuple(many_tiers(count)), errors=errors).event()
    assert len(json.dumps(event, ensure_ascii=False).encode()) <= 1000
    assert (event["pass"], event["errors"]) == (1, 1)


async def test_each_pass_is_an_event_of_the_queue(redis_url: str, name: str) -> None:
    await add_items(redis_url, f"{name}-work", 20)
    async with AsyncWorkQueue.from_url(redis_url, f"{name}-autoscaler") as queue:
        await queue.events.keep(count=100)
        async with Autoscaler(make_config(name, redis_url), open_backend=Platform()) as autoscaler:
            report = await autoscaler.once()
        events = [event async for event in queue.events(follow=False, kinds=["progress"])]
    assert [json.loads(event.progress or "") for event in events] == [report.event()]
    assert report.event()["wanted"] == {"work/main": report.tiers[0].wanted}


def test_metrics_have_what_is_known() -> None:
    values = {
        (one.name.removeprefix("leasequeue.autoscale."), *one.attributes.values()): one.value
        for one in metric_values(REPORT)
    }
    assert values == {
        ("wanted", "media", "steady"): 10,
        ("requested", "media", "steady"): 4,
        ("ready", "media", "steady"): 4,
        ("wanted", "media", "spot"): 2,
        ("wanted", "mail", "main"): 1,
        ("requested", "mail", "main"): 1,
        ("ready", "mail", "main"): 1,
        ("workers", "resize"): 11,
        ("waiting", "resize"): 20,
        ("oldest_age", "resize"): 3.5,
        ("pass.duration",): 0.25,
        ("errors",): 1,
    }
