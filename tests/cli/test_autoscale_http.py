"""What `leasequeue autoscale` answers over HTTP."""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from leasequeue import ConnectionLost
from leasequeue.autoscale import (
    Answer,
    Config,
    DeploymentConfig,
    DeploymentPolicy,
    JobConfig,
    JobReport,
    Signals,
    TierConfig,
    TierPolicy,
)
from leasequeue.autoscale.model import TierReport
from leasequeue.autoscale.report import PassError, PassReport
from leasequeue.cli.autoscale import http
from leasequeue.cli.autoscale.http import ReportServer
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CONFIG = Config(
    name="media",
    every=10.0,
    jobs={"resize": JobConfig(queue="resize", url="redis://localhost")},
    deployments={
        "media": DeploymentConfig(
            policy=DeploymentPolicy(name="media", jobs=("resize",), tiers=()),
            tiers={name: TierConfig(policy=TierPolicy(name=name)) for name in ("steady", "spot")},
        )
    },
    http="127.0.0.1:0",
)
REPORT = PassReport(
    number=7,
    at=1000.0,
    duration=0.25,
    jobs=(
        JobReport(
            job="resize", signals=Signals(waiting=3, oldest_age=4.5), answer=Answer(workers=2, why="it does")
        ),
    ),
    tiers=(
        TierReport(deployment="media", tier="steady", ready=1, requested=2, wanted=3),
        TierReport(deployment="media", tier="spot", ready=None, requested=None, wanted=0),
    ),
    errors=(PassError(part="job resize", problem="a problem"),),
)


class Kept:
    """What is on the server: the last report, or what reading it raises."""

    def __init__(self, report: PassReport | None = REPORT) -> None:
        self.report = report
        self.error: Exception | None = None
        self.reads = 0

    async def read(self) -> PassReport | None:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.report


@asynccontextmanager
async def serving(kept: Kept, config: Config = CONFIG) -> AsyncIterator[ReportServer]:
    """Serve what is kept, after it was read once."""
    server = ReportServer(config, kept.read)
    running = asyncio.create_task(server.run())
    server.start()
    try:
        await eventually("the report is read", lambda: kept.reads > 0)
        yield server
    finally:
        server.close()
        running.cancel()
        await asyncio.wait([running])


def get(server: ReportServer, path: str) -> tuple[int, Any]:
    """Return the status and the text of an answer, or its JSON document. Threads of the server answer."""
    answer = httpx.get(f"{server.url}{path}", timeout=120)
    is_json = answer.headers["content-type"] == "application/json"
    return answer.status_code, answer.json() if is_json else answer.text


async def test_another_scaler_reads_the_units_of_a_tier() -> None:
    async with serving(Kept()) as server:
        assert get(server, "/units/media/steady") == (200, {"wanted": 3, "requested": 2, "ready": 1})
        assert get(server, "/units/media/spot") == (
            200,
            {"wanted": 0, "requested": None, "ready": None},
        )
        status, listed = get(server, "/units/media/other")
        assert (status, "GET /units/media/spot" in listed) == (404, True)
        assert get(server, "/health") == (200, "ok\n")
        assert get(server, "/live") == (200, "ok\n")


async def test_the_last_report_is_served_with_its_age() -> None:
    async with serving(Kept(replace(REPORT, age=12.0))) as server:
        status, report = get(server, "/report")
        assert (status, report["number"], report["errors"]) == (
            200,
            7,
            [{"part": "job resize", "problem": "see the log"}],
        )
        assert 12.0 <= report["age"] < 50.0
        server.show(replace(REPORT, number=8))
        assert get(server, "/report")[1]["number"] == 8


@pytest.mark.parametrize("path", ["/units/media/steady", "/report", "/health"])
async def test_a_stale_report_does_not_count(path: str) -> None:
    kept = Kept(replace(REPORT, age=51.0))
    async with serving(kept) as server:
        status, answer = get(server, path)
        assert status == 503
        assert re.search(r"the last pass began 5\d s ago", str(answer)), "it becomes older meanwhile"
        server.show(REPORT)
        assert get(server, path)[0] == 200
    async with serving(Kept(None)) as server:
        status, answer = get(server, path)
        assert (status, "no pass has ended yet" in str(answer)) == (503, True)


async def test_a_report_that_cannot_be_read_is_served_until_it_is_stale(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http, "LONGEST_LOOK", 0.01)
    kept = Kept()
    async with serving(kept) as server:
        kept.error = ConnectionLost("gone", maybe_applied=False)
        before = kept.reads
        await eventually("it is read again", lambda: kept.reads > before + 1)
        assert get(server, "/report")[0] == 200
        server.show(replace(REPORT, age=51.0))
        status, text = get(server, "/health")
        assert (status, "the report cannot be read: ConnectionLost, see the log" in text) == (503, True)
        [logged] = caplog.messages
        assert logged.startswith("the report cannot be read: gone")
        kept.error = None
        before = kept.reads
        await eventually("it is read again", lambda: kept.reads > before + 1)
        assert get(server, "/health")[0] == 200


async def test_a_pass_that_could_not_be_finished_does_not_count() -> None:
    error = PassError(part="server", problem="it is away")
    async with serving(Kept(PassReport(errors=(error,)))) as server:
        assert get(server, "/health") == (503, "no pass has ended yet\n")
        server.show(replace(REPORT, age=10.0))
        server.show(PassReport(errors=(error,)))
        assert get(server, "/units/media/steady")[1]["wanted"] == 3
        assert get(server, "/report")[1]["age"] >= 10.0


async def test_a_tier_that_the_last_pass_did_not_know_has_no_number() -> None:
    async with serving(Kept(replace(REPORT, tiers=()))) as server:
        status, answer = get(server, "/units/media/steady")
        assert (status, "another configuration" in answer["error"]) == (503, True)


async def test_prometheus_reads_the_metrics_and_that_there_are_none() -> None:
    async with serving(Kept()) as server:
        status, text = get(server, "/metrics")
        assert status == 200
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        tier = '{leasequeue_deployment="media",leasequeue_tier="steady"}'
        assert values == {
            f"leasequeue_autoscale_wanted{tier}": "3.0",
            f"leasequeue_autoscale_requested{tier}": "2.0",
            f"leasequeue_autoscale_ready{tier}": "1.0",
            f"leasequeue_autoscale_wanted{tier}".replace("steady", "spot"): "0.0",
            'leasequeue_autoscale_workers{leasequeue_job="resize"}': "2.0",
            'leasequeue_autoscale_waiting{leasequeue_job="resize"}': "3.0",
            'leasequeue_autoscale_oldest_age_seconds{leasequeue_job="resize"}': "4.5",
            "leasequeue_autoscale_pass_duration_seconds": "0.25",
            "leasequeue_autoscale_errors": "1.0",
            "leasequeue_autoscale_up": "1.0",
        }
        server.show(replace(REPORT, age=51.0))
        status, text = get(server, "/metrics")
        assert [line for line in text.splitlines() if not line.startswith("#")] == [
            "leasequeue_autoscale_up 0.0"
        ]


async def test_without_the_extra_metrics_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    async with serving(Kept()) as server:
        status, text = get(server, "/metrics")
        assert (status, "leasequeue[prometheus]" in text) == (404, True)
        assert get(server, "/report")[0] == 200


async def test_an_event_loop_that_stands_still_is_not_live(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(Kept()) as server:
        monkeypatch.setattr(http, "STILL_SECONDS", -10.0)
        status, text = get(server, "/live")
        assert (status, "the event loop has stood still" in text) == (503, True)
