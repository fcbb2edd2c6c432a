"""A copy that leads and dies is noticed by its connections; one that lives is not taken for dead."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from leasequeue.alive import ring
from leasequeue.alive.connections import OwnConnections
from leasequeue.autoscale import Autoscaler, leader, loop
from tests.autoscale.scaling import Platform, make_config
from tests.eventually import eventually
from tests.queue.asking import until
from tests.queue.fixtures import tidy

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from leasequeue.autoscale import Config, PassReport

__all__ = ["tidy"]

#: With these intervals, a pass is leased for two minutes, and a standby waits for 2.5 hours.
HOUR = 3600.0


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a copy count as dead when its connections are gone at two looks."""
    monkeypatch.setattr(loop, "STANDBY_PAUSE", 0.02)
    monkeypatch.setattr(loop, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(ring, "GONE_SECONDS", 0.01)
    monkeypatch.setattr(ring, "STANDING_SECONDS", 0.0)


async def state_of(redis: Redis, name: str) -> dict[str, Any]:
    """Return the state."""
    data = await redis.get(f"{name}-autoscaler:item:pass")
    state: dict[str, Any] = msgspec.json.decode(data or b"{}")
    return state


def forked(config: Config, platform: Platform) -> int:
    """Run a copy in a forked process; return its id."""
    if (pid := os.fork()) == 0:
        try:
            asyncio.run(Autoscaler(config, open_backend=platform).run())
        except BaseException:  # noqa: BLE001 - it must not return to the tests
            traceback.print_exc()
        os._exit(1)
    return pid


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("where", ["in a pass", "between two passes"])
def test_a_standby_takes_over_from_a_leader_that_is_killed_without_waiting_for_its_lease(
    redis_url: str, name: str, where: str
) -> None:
    config, platform = make_config(name, redis_url, every=HOUR), Platform()
    reading, writing = os.pipe()

    def stop(call: str) -> object:
        if where == "in a pass" and call == "request":
            os.write(writing, b"x")
            return asyncio.Event().wait()
        return None

    platform["work", "main"].fault = stop
    pid = forked(config, platform)
    reports: list[PassReport] = []

    async def take_over() -> None:
        autoscaler = Autoscaler(config, open_backend=Platform())
        if where == "in a pass":
            await asyncio.to_thread(os.read, reading, 1)
        else:

            async def has_led() -> bool:
                return await autoscaler.last_report() is not None

            await until("it has made a pass", has_led)
        running = asyncio.create_task(autoscaler.run(on_report=reports.append))
        await asyncio.sleep(0.2)
        assert reports == [], "it lives"
        os.kill(pid, signal.SIGKILL)
        await eventually("the standby leads", lambda: bool(reports))
        await autoscaler.close()
        await running

    try:
        asyncio.run(take_over())
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)
    assert (reports[0].number, reports[0].errors) == (1 if where == "in a pass" else 2, ())


async def test_a_pass_waits_for_the_check_of_its_connections_that_is_under_way(queue: AsyncWorkQueue) -> None:
    """Otherwise it notes nothing, and if it dies in that pass, the standby waits for its lease."""
    await queue.queue_len()
    own, found = OwnConnections(lambda: None), []

    async def check() -> None:
        await own.check([queue])
        found.append(own.mark(queue).connections)

    await asyncio.gather(check(), check())
    own.close()
    assert found[0]
    assert found == [found[0]] * 2


async def test_a_leader_that_connects_anew_between_two_passes_says_so_at_once(
    redis_url: str, redis: Redis, name: str
) -> None:
    reports: list[PassReport] = []
    async with Autoscaler(make_config(name, redis_url, every=HOUR), open_backend=Platform()) as one:
        running = asyncio.create_task(one.run(on_report=reports.append))
        await eventually("it leads", lambda: bool(reports))
        before = (await state_of(redis, name))["connections"]
        assert before
        for number in before:
            await redis.client_kill_filter(_id=str(number))

        async def is_known() -> bool:
            now = (await state_of(redis, name))["connections"]
            return bool(now) and not {*now} & {*before}

        await until("the others know its new connections", is_known)
        assert len(reports) == 1
    await running


async def test_a_leader_that_was_taken_for_dead_during_a_pass_keeps_nothing(
    redis_url: str, redis: Redis, name: str
) -> None:
    config, platform, goes_on = make_config(name, redis_url, every=HOUR), Platform(), asyncio.Event()
    asked = asyncio.Event()

    def stop(call: str) -> object:
        if call != "ready":
            return None
        asked.set()
        return goes_on.wait()

    platform["work", "main"].fault = stop
    reports: list[PassReport] = []
    async with (
        Autoscaler(config, open_backend=platform) as first,
        Autoscaler(config, open_backend=Platform()) as second,
    ):
        late = asyncio.create_task(first.once())
        await asked.wait()
        running = asyncio.create_task(second.run(on_report=reports.append))
        for one in (await state_of(redis, name))["connections"]:
            await redis.client_kill_filter(_id=str(one))
        await eventually("the second one leads", lambda: bool(reports))
        kept = await state_of(redis, name)
        goes_on.set()
        assert not (await late).leads
        assert platform["work", "main"].requests == [], "it asks for nothing any more"
        assert await state_of(redis, name) == kept
        second.stop()
        await running


async def test_a_standby_that_leases_what_another_copy_has_led_since_gives_it_back(
    redis_url: str, redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped between its look and its lease, while another copy has made a pass."""
    monkeypatch.setattr(leader, "STANDBY_TURNS", 0.0)
    config = make_config(name, redis_url, every=HOUR)
    async with (
        Autoscaler(config, open_backend=Platform()) as first,
        Autoscaler(config, open_backend=Platform()) as second,
    ):
        await first.once()
        standby = second._leadership
        assert await standby._is_free()
        monkeypatch.setattr(standby, "_is_free", _true)
        assert (await first.once()).number == 2
        async with standby.turn() as turn:
            assert turn is None
        assert (await state_of(redis, name))["number"] == 2
        again = first._leadership
        again._follow()  # as it found the item leased by the standby
        async with again.turn() as turn:
            assert turn is not None, "no other copy has led"


async def _true() -> bool:
    return True


async def test_the_lease_of_a_copy_that_has_just_taken_over_is_not_ended(
    redis_url: str, redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state names the dead copy until the new one has noted that it leads."""
    monkeypatch.setattr(ring, "GONE_SECONDS", 0.0)
    config = make_config(name, redis_url, every=HOUR)
    async with (
        Autoscaler(config, open_backend=Platform()) as first,
        Autoscaler(config, open_backend=Platform()) as second,
        Autoscaler(config, open_backend=Platform()) as third,
    ):
        await first.once()
        [dead] = (await state_of(redis, name))["connections"]
        lease = await third._leadership._lease()
        assert lease is not None
        await redis.client_kill_filter(_id=str(dead))
        assert [await second._leadership._is_free() for _ in range(10)] == [False] * 10
        assert await third._queue.renew(lease, 60)
        assert await third._queue.release(lease)
        await until("it is free", second._leadership._is_free)
