"""Of any number of copies of the autoscaler one leads, and its memory outlives it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import traceback
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, InvalidArgument, Item
from leasequeue.autoscale import Autoscaler, PassReport
from leasequeue.autoscale import leader as leader_module
from tests.autoscale.scaling import Platform, add_items, make_config
from tests.eventually import eventually
from tests.queue.fixtures import Clock, clock, tidy
from tests.queue.keyspace import audit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from leasequeue.autoscale import Config
    from tests.conftest import MakeServer

__all__ = ["clock", "tidy"]

#: The longest that a pass is leased with the intervals of these tests (s), and more than that.
LEASE, LONGER = 30.0, 40.0


@dataclass
class Copy:
    """A copy of the autoscaler that runs, and its reports."""

    autoscaler: Autoscaler
    reports: list[PassReport] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    def start(self) -> Copy:
        self.task = asyncio.create_task(self.autoscaler.run(on_report=self.reports.append))
        return self

    async def end(self) -> None:
        await self.autoscaler.close()
        if self.task is not None:
            await asyncio.wait([self.task])


@pytest.fixture
async def copies(redis_url: str, name: str, platform: Platform) -> AsyncIterator[Callable[..., Copy]]:
    """Return a function that makes copies of one autoscaler."""
    made: list[Copy] = []

    def make(url: str = redis_url, every: float = 0.05) -> Copy:
        one = Copy(Autoscaler(make_config(name, url, every=every), open_backend=platform))
        made.append(one)
        return one

    yield make
    for one in made:
        await one.end()


async def state_of(redis: Redis, name: str) -> dict[str, Any]:
    """Return the state, and check that it is in exactly one place."""
    places = await audit(redis, f"{name}-autoscaler")
    assert places.all == {b"pass": 1}
    data = await redis.get(f"{name}-autoscaler:item:pass")
    assert data is not None
    state: dict[str, Any] = msgspec.json.decode(data)
    return state


async def test_of_two_copies_one_makes_all_passes_and_the_other_says_so_once(
    copies: Callable[..., Copy], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "leasequeue.autoscale")
    monkeypatch.setattr(
        leader_module, "STANDBY_TURNS", 1e6
    )  # they share an event loop, which may stand still
    both = [copies().start(), copies().start()]
    await eventually("there were passes", lambda: max(len(one.reports) for one in both) >= 8)
    leader, standby = sorted(both, key=lambda one: -len(one.reports))
    assert standby.reports == []
    assert [one.number for one in leader.reports] == [*range(1, len(leader.reports) + 1)]
    assert not any(one.errors for one in leader.reports)
    seen = await standby.autoscaler.last_report()
    assert seen is not None
    assert seen.number >= 8
    assert seen.copy
    assert caplog.text.count("this one stands by") == 1


async def test_a_leader_that_stops_hands_over_at_once(copies: Callable[..., Copy]) -> None:
    first = copies(every=3600.0).start()
    await eventually("the first one leads", lambda: len(first.reports) == 1)
    first.autoscaler.stop()
    assert first.task is not None
    await first.task
    second = copies(every=3600.0).start()  # it would stand by for 2.5 hours
    await eventually("the second one leads", lambda: len(second.reports) == 1)
    assert second.reports[0].number == 2
    assert len(first.reports) == 1


async def test_a_leader_that_was_stopped_between_two_passes_follows_the_new_one(
    copies: Callable[..., Copy], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = copies(every=3600.0), copies()
    await first.autoscaler.once()
    await second.autoscaler.once()
    with caplog.at_level(logging.INFO, "leasequeue.autoscale"):
        first.start()
        await eventually("it stands by", lambda: "this one stands by" in caplog.text)
    assert first.reports == []
    second.start()
    await eventually("the other one leads", lambda: len(second.reports) >= 3)
    assert [one.number for one in second.reports[:3]] == [3, 4, 5]


async def test_a_callback_that_raises_does_not_end_the_loop(copies: Callable[..., Copy]) -> None:
    calls: list[int] = []

    def fail(report: PassReport) -> None:
        calls.append(report.number)
        raise BrokenPipeError

    one = copies()
    one.task = asyncio.create_task(one.autoscaler.run(on_report=fail))
    await eventually("there are more passes", lambda: len(calls) >= 3)


async def test_a_pass_that_another_copy_makes_now_is_left_alone(
    copies: Callable[..., Copy], platform: Platform
) -> None:
    first, second, goes_on = copies(), copies(), asyncio.Event()
    platform["work", "main"].fault = lambda _: goes_on.wait()
    passing = asyncio.create_task(first.autoscaler.once())
    await eventually("it asks", lambda: platform["work", "main"].calls > 0)
    assert not (await second.autoscaler.once()).leads
    goes_on.set()
    assert (await passing).leads


@pytest.mark.parametrize("where", ["ready", "request"])
async def test_a_leader_that_was_stopped_changes_no_state_when_it_goes_on(
    redis_url: str, redis: Redis, name: str, platform: Platform, clock: Clock, where: str
) -> None:
    await add_items(redis_url, f"{name}-work", 20)
    units, stopped, goes_on = platform["work", "main"], asyncio.Event(), asyncio.Event()

    def stop(call: str) -> object:
        if call != where:
            return None
        stopped.set()
        return goes_on.wait()

    config = make_config(name, redis_url)
    async with (
        Autoscaler(config, clock=clock, open_backend=platform) as first,
        Autoscaler(config, clock=clock, open_backend=platform) as second,
    ):
        await first.once()
        units.fault = stop
        await add_items(redis_url, f"{name}-work", 40)
        late = asyncio.create_task(first.once())
        await stopped.wait()
        units.fault = lambda _: None
        clock.now += LONGER  # its lease has expired
        assert (await second.once()).number == 2
        kept = await state_of(redis, name)
        goes_on.set()
        report = await late
        assert not report.leads
        assert await state_of(redis, name) == kept
        # Stopped before it had asked, it asks for nothing any more; otherwise the next pass asks again.
        assert len(units.requests) == (2 if where == "ready" else 3)
        again = await second.once()
        assert (again.number, again.leads) == (3, True)
        assert units.requests[-1] == again.tiers[0].wanted


# ------------------------------------------------------------------------------ kills


def killed_at(config: Config, platform: Platform, now: float, step: int) -> bool:
    """Make a pass in a forked process that is killed at a step of its event loop; return whether it was."""
    pid = os.fork()
    if pid == 0:
        try:
            steps = itertools.count()
            run_once = asyncio.SelectorEventLoop._run_once  # type: ignore[attr-defined]

            def count(loop: asyncio.AbstractEventLoop) -> None:
                if next(steps) == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                run_once(loop)

            asyncio.SelectorEventLoop._run_once = count  # type: ignore[attr-defined]
            asyncio.run(pass_of(config, platform, now))
        except BaseException:  # noqa: BLE001 - the parent sees the status
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in {0, -signal.SIGKILL}
    return code != 0


async def pass_of(config: Config, platform: Platform, now: float) -> PassReport:
    autoscaler = Autoscaler(config, clock=lambda: now, open_backend=platform)
    return await autoscaler.once()  # the process ends without `close`


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.long)])
def test_a_pass_that_is_killed_at_any_step_neither_loses_nor_doubles_the_state(
    redis_url: str, name: str, platform: Platform, stride: int
) -> None:
    config, now, number, done = make_config(name, redis_url), 1_900_000_000.0, 0, 0

    async def check() -> int:
        async with (
            Redis.from_url(redis_url) as redis,
            Autoscaler(config, clock=lambda: now, open_backend=platform) as autoscaler,
        ):
            report = await autoscaler.once()
            assert (report.leads, report.errors) == (True, ())
            assert (await state_of(redis, name))["number"] == report.number
            return report.number

    asyncio.run(add_items(redis_url, f"{name}-work", 20))
    platform["work", "main"].count = 17
    for step in itertools.count(1, stride):
        was_killed = killed_at(config, platform, now, step)
        now += LONGER
        after = asyncio.run(check())
        # The pass that was killed has ended or not, and then ours has.
        assert after - number in {1, 2}
        done += after - number == 2
        number = after
        if not was_killed:
            break
    assert step > 10
    assert done > 0


# --------------------------------------------------------------------------- restarts


@pytest.mark.seed("RWQ-B17")
async def test_a_restart_before_each_pass_changes_nothing(
    redis_url: str, redis: Redis, name: str, clock: Clock
) -> None:
    """Neither the requests nor the state differ from those of one that continues."""
    found: list[tuple[list[int], object]] = []
    start = clock.now
    for restarts in (False, True):
        await redis.flushdb()
        platform = Platform()
        clock.now = start
        config = make_config(name, redis_url, slow_down=60.0)
        autoscaler = Autoscaler(config, clock=clock, open_backend=platform)
        queue = AsyncWorkQueue.from_url(redis_url, f"{name}-work", clock=clock)
        async with queue:
            for number in range(20):
                if number in {1, 5}:
                    await queue.add_items(Item(b"x", id=f"{number}-{n}") for n in range(30))
                if number in {3, 8}:
                    await queue.admin.purge()
                clock.now += 10.0
                assert (await autoscaler.once()).number == number + 1
                if restarts:
                    await autoscaler.close()
                    autoscaler = Autoscaler(config, clock=clock, open_backend=platform)
        await autoscaler.close()
        state = await state_of(redis, name)
        found.append((platform["work", "main"].requests, (state["plan"], state["jobs"])))
    assert found[0] == found[1]
    requests = found[0][0]
    # Without a memory, a pass would not know for how long fewer have been enough.
    assert max(requests) > 10
    assert requests[-1] == 0


async def test_a_server_that_is_killed_and_loses_all_ends_neither_the_loop_nor_the_count(
    copies: Callable[..., Copy], make_server: MakeServer
) -> None:
    server = await make_server()
    one = copies(server.url).start()
    await eventually("it leads", lambda: len(one.reports) >= 3)
    os.kill(server.pid, signal.SIGKILL)
    await eventually("passes fail", lambda: any(report.errors for report in one.reports))
    await server.stop()
    before = max(report.number for report in one.reports)
    await make_server(port=server.port)
    await eventually("it continues", lambda: one.reports[-1].number > before + 2)
    assert one.reports[-1].errors == ()
    numbers = [report.number for report in one.reports if report.number]
    assert numbers == [*range(1, len(numbers) + 1)]


async def test_a_server_that_loses_its_last_writes_gets_the_state_of_the_leader(
    redis_url: str, redis: Redis, name: str, platform: Platform
) -> None:
    async with Autoscaler(make_config(name, redis_url), open_backend=platform) as autoscaler:
        await autoscaler.once()
        old = await redis.dump(f"{name}-autoscaler:item:pass")
        assert old is not None
        await autoscaler.once()
        await redis.restore(f"{name}-autoscaler:item:pass", 0, old, replace=True)
        assert (await autoscaler.once()).number == 3


@pytest.mark.parametrize(
    "garbage",
    [
        b"garbage",
        b"",
        b"\xff\xfe",
        b"[]",
        b"[" * 5000,
        b'{"version": 99}',
        b'{"number": "x"}',
        b'{"number": -1}',
        b'{"number": 7, "plan": {"media": [1]}, "jobs": {"work": {"at": "x"}, "y": {}}, "report": {"x": 1}}',
    ],
)
async def test_a_state_that_cannot_be_read_is_begun_anew(
    redis_url: str, redis: Redis, name: str, platform: Platform, garbage: bytes
) -> None:
    await add_items(redis_url, f"{name}-work", 20)
    async with AsyncWorkQueue.from_url(redis_url, f"{name}-autoscaler") as queue:
        await queue.add_item(Item(garbage, id="pass"))
    async with Autoscaler(make_config(name, redis_url), open_backend=platform) as autoscaler:
        assert await autoscaler.last_report() is None
        report = await autoscaler.once()
        assert (report.leads, report.errors) == (True, ())
        assert report.tiers[0].wanted >= 10
    assert (await state_of(redis, name))["number"] == report.number


async def test_after_a_change_of_the_configuration_the_rest_goes_on(
    redis_url: str, name: str, platform: Platform
) -> None:
    for number, jobs in enumerate([("a", "b"), ("b", "c"), ("a",)], 1):
        async with Autoscaler(make_config(name, redis_url, *jobs), open_backend=platform) as autoscaler:
            report = await autoscaler.once()
        assert (report.number, report.errors) == (number, ())
        assert [one.job for one in report.jobs] == [*jobs]


def test_the_queue_of_a_job_is_refused_as_that_of_the_autoscaler(redis_url: str, name: str) -> None:
    config = make_config(name, redis_url)
    with pytest.raises(InvalidArgument, match="not that of a job's queue"):
        Autoscaler(replace(config, name=config.jobs["work"].queue))


async def test_other_items_on_the_queue_of_the_autoscaler_are_put_aside(
    redis_url: str, name: str, platform: Platform
) -> None:
    await add_items(redis_url, f"{name}-autoscaler", 3)
    async with Autoscaler(make_config(name, redis_url), open_backend=platform) as autoscaler:
        assert (await autoscaler.once()).leads
        assert (await autoscaler.once()).number == 2
    async with AsyncWorkQueue.from_url(redis_url, f"{name}-autoscaler") as queue:
        assert await queue.queue_len() == 4
