"""A pass of the autoscaler: what it sees, asks for and keeps."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from dataclasses import replace
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
    loop,
    passes,
    planning,
)
from leasequeue.autoscale.loop import FileChanges
from leasequeue.autoscale.model import Answer
from leasequeue.autoscale.report import read_report
from leasequeue.errors import BackendError, ExtraMissing
from leasequeue.queue import cleaning
from leasequeue.worker.maintenance import Maintenance
from tests.autoscale.scaling import Platform, add_items, make_config
from tests.eventually import eventually
from tests.queue.fixtures import own, tidy
from tests.queue.keyspace import places, snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from redis.asyncio import Redis

    from leasequeue.autoscale import Config
    from leasequeue.embedded import EmbeddedServer
    from tests.conftest import MakeServer

__all__ = ["own", "tidy"]


@pytest.mark.seed("RWQ-O22", "RWQ-O24", "RWQ-O25")
async def test_a_pass_asks_for_what_the_backlog_needs(redis_url: str, name: str, platform: Platform) -> None:
    await add_items(redis_url, f"{name}-work", 20)
    async with Autoscaler(make_config(name, redis_url), open_backend=platform) as autoscaler:
        report = await autoscaler.once()
        assert report.leads
        assert report.errors == ()
        assert report.jobs[0].signals.waiting == 20
        assert platform["work", "main"].requests == [report.tiers[0].wanted]
        assert report.tiers[0].wanted >= 10  # 20 items of 30 s, within 60 s
        assert report.tiers[0].asked
        last = await autoscaler.last_report()
    assert last is not None
    assert (last.number, last.jobs, last.tiers, last.errors) == (1, report.jobs, report.tiers, ())


async def test_a_dry_run_changes_no_key_and_asks_for_nothing(
    redis_url: str, redis: Redis, name: str, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "DRY_PAUSE", 0.05)
    await add_items(redis_url, f"{name}-work", 20)
    for made in range(2):
        before = await snapshot(redis)
        async with Autoscaler(make_config(name, redis_url), open_backend=platform) as autoscaler:
            report = await autoscaler.once(dry_run=True)
        assert await snapshot(redis) == before
        assert (report.number, report.dry_run, report.errors) == (made + 1, True, ())
        assert report.tiers[0].wanted >= 10
        assert not report.tiers[0].asked
        assert len(platform["work", "main"].requests) == made
        async with Autoscaler(make_config(name, redis_url), open_backend=platform) as autoscaler:
            await autoscaler.once()


async def test_the_log_says_once_that_a_changed_file_is_not_used(
    redis_url: str, name: str, platform: Platform, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "autoscale.toml"
    path.write_text("first")
    config = replace(make_config(name, redis_url, every=0.05), path=path)
    texts = iter(["first", "second", "second", "first", "third"])

    def after_a_pass(_: PassReport) -> None:
        if (text := next(texts, None)) is None:
            autoscaler.stop()
        else:
            path.write_text(text)

    async with Autoscaler(config, open_backend=platform) as autoscaler:
        await autoscaler.run(on_report=after_a_pass)
    said = f"{path} has changed: restart the autoscaler to use it"
    assert [one for one in caplog.messages if "has changed" in one] == [said] * 2, "not for what is used"


def test_a_file_that_is_gone_or_was_none_has_not_changed(tmp_path: Path) -> None:
    assert not FileChanges(None).found()
    path = tmp_path / "autoscale.toml"
    path.write_text("first")
    changes = FileChanges(path)
    path.unlink()
    assert not changes.found()
    path.write_text("second")
    assert changes.found()
    assert not changes.found()


async def test_units_that_a_removed_tier_has_left_are_reported_once(redis_url: str, name: str) -> None:
    platform = Platform()
    await add_items(redis_url, f"{name}-b", 20)
    async with Autoscaler(make_config(name, redis_url, "a", "b"), open_backend=platform) as autoscaler:
        asked = next(one.wanted for one in (await autoscaler.once()).tiers if one.deployment == "b")
        assert asked >= 10
    problem = f"it no longer has the tier b/main: stop the {asked} units it was asked for last"
    reported = [PassError(part="configuration", problem=problem)]
    for dry_run, expected in ((True, reported), (False, reported), (False, [])):
        async with Autoscaler(make_config(name, redis_url, "a"), open_backend=platform) as autoscaler:
            assert [*(await autoscaler.once(dry_run=dry_run)).errors] == expected
    assert platform["b", "main"].requests == [asked], "they may be another client's by now"


# --------------------------------------------------------------------------- what fails in one part of a pass


def parts(report: PassReport) -> set[str]:
    return {error.part for error in report.errors}


def raising(error: BaseException) -> Callable[[str], object]:
    def fault(_: str) -> object:
        raise error

    return fault


@pytest.mark.seed("RWQ-B15")
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (BackendError("memory", "a/main", "is away"), "memory, a/main: is away"),
        (ExtraMissing("back ends", "some"), "leasequeue[some]"),
        (ValueError("no number"), "ValueError: no number"),
        (ZeroDivisionError(), "ZeroDivisionError"),
        (asyncio.CancelledError(), "was cancelled"),
        (TimeoutError(), "TimeoutError"),
        (BackendError("memory", "a/main", "\ud800" * 9999), r"a/main: \ud800"),
    ],
)
async def test_a_back_end_that_raises_is_reported_and_the_others_are_asked(
    redis_url: str, name: str, platform: Platform, error: BaseException, text: str
) -> None:
    for job in ("a", "b"):
        await add_items(redis_url, f"{name}-{job}", 20)
    async with Autoscaler(make_config(name, redis_url, "a", "b"), open_backend=platform) as autoscaler:
        assert (await autoscaler.once()).errors == ()
        before = platform["a", "main"].requests[-1]
        platform["a", "main"].fault = raising(error)
        report = await autoscaler.once()
        assert report.leads
        assert parts(report) == {"tier a/main"}
        assert text in report.errors[0].problem
        broken, other = report.tiers
        assert (broken.ready, broken.requested, broken.wanted, broken.asked) == (None, None, before, False)
        assert other.asked
        assert len(platform["b", "main"].requests) == 2
        platform["a", "main"].fault = lambda _: None
        report = await autoscaler.once()
        assert (report.number, report.errors) == (3, ())


async def test_a_request_that_fails_is_reported_and_repeated(
    redis_url: str, name: str, platform: Platform
) -> None:
    await add_items(redis_url, f"{name}-work", 20)
    faulty = BackendError("memory", "work/main", "conflict")
    units = platform["work", "main"]
    units.fault = lambda call: raising(faulty)(call) if call == "request" else None
    async with Autoscaler(make_config(name, redis_url), open_backend=platform) as autoscaler:
        report = await autoscaler.once()
        assert parts(report) == {"tier work/main"}
        assert not report.tiers[0].asked
        units.fault = lambda _: None
        again = await autoscaler.once()
        assert again.tiers[0].asked
        assert units.requests == [again.tiers[0].wanted]


async def endless(_: object = None) -> None:
    """Wait for a long time, and refuse to be cancelled at first."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(3600)
    await asyncio.sleep(0.3)


@pytest.mark.parametrize("where", ["ready", "request"])
async def test_a_back_end_that_hangs_delays_the_others_no_longer_than_its_limit(
    redis_url: str, name: str, platform: Platform, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limit(_: passes.Passes, job: str, __: str) -> float:
        return passes.CALL_SECONDS if job == "c" else 0.2

    monkeypatch.setattr(passes.Passes, "_limit_of", limit)
    for job in ("a", "b", "c"):
        await add_items(redis_url, f"{name}-{job}", 20)
    for job in ("a", "b"):
        platform[job, "main"].fault = lambda call: endless() if call == where else None
    async with Autoscaler(make_config(name, redis_url, "a", "b", "c"), open_backend=platform) as autoscaler:
        report = await autoscaler.once()
        assert parts(report) == {"tier a/main", "tier b/main"}
        assert {error.problem for error in report.errors} == {"no answer within 0.2 s"}
        assert len(platform["c", "main"].requests) == 1
        assert report.duration < 10


@pytest.mark.parametrize("answer", [-1, 3.0, "3", None, True, 10**12, float("nan")])
async def test_an_answer_that_is_no_number_of_units_counts_as_none(
    redis_url: str, name: str, platform: Platform, answer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ready() -> object:
        return answer

    await add_items(redis_url, f"{name}-work", 20)
    monkeypatch.setattr(platform["work", "main"], "ready", ready)
    async with Autoscaler(make_config(name, redis_url), open_backend=platform) as autoscaler:
        report = await autoscaler.once()
    assert [error.problem for error in report.errors] == [f"http, work/main: `ready` has answered {answer!r}"]
    assert report.tiers[0].ready is None
    assert report.tiers[0].requested == 0


async def test_a_back_end_that_cannot_be_opened_is_opened_in_a_later_pass(
    redis_url: str, name: str, platform: Platform
) -> None:
    is_away = True

    def opening(config: Config, deployment: str, tier: str) -> object:
        if is_away:
            raise ExtraMissing("back ends", "some")
        return platform(config, deployment, tier)

    await add_items(redis_url, f"{name}-work", 20)
    config = make_config(name, redis_url)
    async with Autoscaler(config, open_backend=opening) as autoscaler:  # type: ignore[arg-type]
        assert parts(await autoscaler.once()) == {"tier work/main"}
        is_away = False
        assert (await autoscaler.once()).tiers[0].asked


async def test_a_queue_of_another_type_is_reported_and_its_units_stay(
    redis_url: str, redis: Redis, name: str, platform: Platform
) -> None:
    for job in ("a", "b"):
        await add_items(redis_url, f"{name}-{job}", 20)
    async with Autoscaler(make_config(name, redis_url, "a", "b"), open_backend=platform) as autoscaler:
        before = (await autoscaler.once()).tiers[0].wanted
        assert before >= 10
        await redis.delete(f"{name}-a:queue")
        await redis.set(f"{name}-a:queue", "a text")
        report = await autoscaler.once()
        assert parts(report) == {"job a"}
        assert "holds another type" in report.errors[0].problem or "WRONGTYPE" in report.errors[0].problem
        assert [one.job for one in report.jobs] == ["b"]
        assert platform["a", "main"].requests[-1] >= before
        await redis.delete(f"{name}-a:queue")
        assert (await autoscaler.once()).errors == ()


async def test_a_server_of_a_job_that_is_away_is_reported_and_the_others_go_on(
    redis_url: str,
    name: str,
    platform: Platform,
    own: EmbeddedServer,
    make_server: MakeServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = make_config(name, redis_url, "a", job_url=own.url)
    async with Autoscaler(config, open_backend=platform) as autoscaler:
        await add_items(own.url, f"{name}-a", 20)
        wanted = (await autoscaler.once()).tiers[0].wanted
        await own.stop()
        with monkeypatch.context() as patched:
            patched.setattr(passes, "CALL_SECONDS", 0.2)
            report = await autoscaler.once()
        assert (report.leads, parts(report), report.number) == (True, {"job a"}, 2)
        assert platform["a", "main"].requests == [wanted, wanted]
        await make_server(port=own.port)
        for _ in range(20):
            report = await autoscaler.once()
            if not report.errors:
                break
        assert report.errors == ()


@pytest.mark.seed("RWQ-B15")
async def test_a_memory_that_makes_the_plan_fail_is_dropped(
    redis_url: str, name: str, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(*arguments: object) -> object:
        if arguments[3]:
            raise ZeroDivisionError
        return planned(*arguments)  # type: ignore[arg-type]

    planned = planning.plan
    await add_items(redis_url, f"{name}-work", 20)
    async with Autoscaler(make_config(name, redis_url), open_backend=platform) as autoscaler:
        await autoscaler.once()
        monkeypatch.setattr(passes, "plan", plan)
        report = await autoscaler.once()
        assert [(one.part, one.problem) for one in report.errors] == [("plan", "ZeroDivisionError: ")]
        assert report.tiers[0].asked
        monkeypatch.setattr(passes, "plan", raising(ValueError("never")))
        monkeypatch.setattr(passes, "plan", lambda *_: raising(ValueError("never"))(""))
        report = await autoscaler.once()
        assert (report.leads, parts(report), report.tiers) == (True, {"plan"}, ())


@pytest.mark.seed("RWQ-O28", "RWQ-B15")
async def test_the_cleaner_goes_on_while_no_pass_succeeds(
    redis_url: str,
    redis: Redis,
    name: str,
    platform: Platform,
    monkeypatch: pytest.MonkeyPatch,
    own: EmbeddedServer,
) -> None:
    """Although the server of the autoscaler's own queue is away, and the back end raises."""
    monkeypatch.setattr(cleaning, "GRACE_MS", 100)
    platform["work", "main"].fault = raising(ZeroDivisionError())
    config = make_config(name, own.url, job_url=redis_url, every=0.05, clean_every=0.1)
    await own.stop()
    reports: list[PassReport] = []
    autoscaler = Autoscaler(config, open_backend=platform)
    running = asyncio.create_task(autoscaler.run(on_report=reports.append))
    # What a worker of another library leaves when it dies: an id in `processing`, without a lease.
    await redis.set(f"{name}-work:item:lost", b"x")
    await redis.lpush(f"{name}-work:processing", "lost")
    waits = False
    deadline = time.monotonic() + 20
    while not waits:
        assert time.monotonic() < deadline
        waits = (await places(redis, f"{name}-work")).waiting == [b"lost"]
        await asyncio.sleep(0.02)
    assert not running.done()
    assert reports == []
    await autoscaler.close()
    await running


async def test_the_cleaner_is_started_again_when_it_fails(
    redis_url: str, name: str, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = 0

    async def run(*_: object) -> None:
        nonlocal runs
        runs += 1
        raise ZeroDivisionError

    monkeypatch.setattr(loop, "CLEANER_PAUSE", 0.01)
    monkeypatch.setattr(Maintenance, "run", run)
    autoscaler = Autoscaler(make_config(name, redis_url), open_backend=platform)
    running = asyncio.create_task(autoscaler.run())
    await eventually("it was started again", lambda: runs > 2)
    await autoscaler.close()
    await running


async def test_an_error_is_logged_when_more_than_a_time_of_it_changes_and_its_end_too(
    redis_url: str, name: str, platform: Platform, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "leasequeue.autoscale")
    async with Autoscaler(make_config(name, redis_url), open_backend=platform) as autoscaler:
        for problem in ("ordered to stop 1 s ago", "ordered to stop 12 s ago", "exit code 1", "exit code 2"):
            platform["work", "main"].fault = raising(BackendError("memory", "work/main", problem))
            assert parts(await autoscaler.once()) == {"tier work/main"}
        platform["work", "main"].fault = lambda _: None
        await autoscaler.once()
    lines = [record.getMessage() for record in caplog.records]
    assert [line.rpartition(": ")[2] for line in lines if line.startswith("tier ")] == [
        "ordered to stop 1 s ago",
        "exit code 1",
        "exit code 2",
        "works again",
    ]
    assert len([line for line in lines if line.startswith("pass ")]) == 5


async def test_a_pause_of_the_autoscalers_own_queue_is_reported(
    redis_url: str, name: str, platform: Platform
) -> None:
    config = make_config(name, redis_url)
    queue = AsyncWorkQueue.from_url(redis_url, config.name)
    async with queue, Autoscaler(config, open_backend=platform) as autoscaler:
        assert (await autoscaler.once()).errors == ()
        await queue.pause(reason="all queues")
        report = await autoscaler.once()
        assert parts(report) == {"server"}
        assert f"queue {config.name} is paused (all queues)" in report.errors[0].problem
        await queue.resume()
        report = await autoscaler.once()
        assert (report.number, report.errors) == (2, ())


# --------------------------------------------------------------------------------------- the report of a pass


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
