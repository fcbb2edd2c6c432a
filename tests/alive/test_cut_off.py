"""A worker whose connections are closed by the other side stops its runs before its peers start them."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from leasequeue import Fleet
from leasequeue.alive.membership import Membership, registration_of
from leasequeue.queue.pushes import listener
from leasequeue.queue.queue import engine_of
from leasequeue.worker import background
from tests.eventually import eventually
from tests.queue.asking import session, until
from tests.worker.working import Gate, add, finished, new_worker, working

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue
    from leasequeue.testing import Proxy
    from leasequeue.wire.server import OpenedConnection
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core

HOUR = 3600.0


async def other_worker(queue: AsyncWorkQueue) -> None:
    """Register another worker, which looks after none."""
    assert (await engine_of(queue).registry.beat({"name": "other"}, alive_ms=3_600_000, first=True)).accepted


async def is_seen(queue: AsyncWorkQueue, its: AsyncWorkQueue) -> bool:
    """Return whether the worker of a queue object has registered connections, and knows that it has."""
    found = {one.session: one for one in await engine_of(queue).registry.workers()}
    seen = its.session in found and bool(found[its.session].about["connections"])
    return seen and registration_of(its).named


async def misses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return when heartbeats are missed from now on."""
    missed: list[float] = []
    as_ever = Membership._missed

    def note(self: Membership, *arguments: object) -> float:
        missed.append(time.monotonic())
        return as_ever(self, *arguments)  # type: ignore[arg-type]  # as they come

    monkeypatch.setattr(Membership, "_missed", note)
    return missed


async def test_its_runs_end_when_its_peers_may_start_them(
    make_queue: MakeQueue, queue: AsyncWorkQueue, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """Though its lease and its registration would hold for an hour. When the server is back, it works on."""
    worker = new_worker(lease_time=HOUR, dead_after=HOUR, gone_after=0.5)
    gate = Gate(worker, its := make_queue(url=proxy.url, reply_timeout=1))
    await other_worker(queue)
    await add(queue, b"x")
    async with working(worker):
        await gate.reached(1)
        await until("its death may be noticed", lambda: is_seen(queue, its))
        before = its.session
        await proxy.fail()
        await eventually("its run is cancelled", lambda: gate.cancelled == ["1"])
        await proxy.heal()
        await gate.reached(2)
        view = await queue.find("1")
        assert view is not None
        assert view.attempt == 1, "it was not failed by another worker, so the attempt does not count"
        gate.opened.set()
        await finished(queue)
        assert its.session != before
    assert gate.done == ["1"]
    assert "it has had no connection for 0.5 s" in caplog.text


@pytest.mark.parametrize("why", ["alone", "never", "given up"])
async def test_runs_go_on_where_no_peer_could_start_them(
    make_queue: MakeQueue, queue: AsyncWorkQueue, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """So an outage of the server ends no runs of a worker that is alone, nor while it only hears nothing."""
    monkeypatch.setattr(listener, "BLOCK_SECONDS", 1)
    monkeypatch.setattr(listener, "MARGIN_SECONDS", 1.0)
    worker = new_worker(lease_time=HOUR, dead_after=HOUR, gone_after=None if why == "never" else 0.5)
    gate = Gate(worker, its := make_queue(url=proxy.url, reply_timeout=1))
    if why != "alone":
        await other_worker(queue)
    await add(queue, b"x")
    async with working(worker):
        await gate.reached(1)
        if why == "never":
            await until("it is registered", lambda: is_registered(queue, its))
            assert not await is_seen(queue, its)
        else:
            await until("its death may be noticed", lambda: is_seen(queue, its))
        missed, began = await misses(monkeypatch), time.monotonic()
        if why == "given up":
            proxy.stall()
            worker.quiet()  # has it send heartbeats, on both threads
            await eventually("it gives its connections up", lambda: not session(its).connections)
            proxy.refuse()
        else:
            await proxy.fail()
            worker.quiet()
        await eventually("the time has passed", lambda: bool(missed) and missed[-1] > began + 1.0)
        assert gate.cancelled == []
        await proxy.heal()
        worker.resume()
        gate.opened.set()
        await finished(queue)
    assert (gate.begun, gate.done) == (["1"], ["1"])


async def is_registered(queue: AsyncWorkQueue, its: AsyncWorkQueue) -> bool:
    """Return whether the background thread of a worker has registered it."""
    return any(its.session in one.sessions.values() for one in await Fleet(queue).workers())


async def test_a_connection_that_is_back_in_time_ends_no_run(
    make_queue: MakeQueue, queue: AsyncWorkQueue, proxy: Proxy
) -> None:
    worker = new_worker(lease_time=HOUR, dead_after=HOUR, gone_after=20)
    gate = Gate(worker, its := make_queue(url=proxy.url, reply_timeout=1))
    await other_worker(queue)
    await add(queue, b"x")
    async with working(worker):
        await gate.reached(1)
        await until("its death may be noticed", lambda: is_seen(queue, its))
        before, connections = its.session, (await named(queue, its))
        await proxy.fail()
        await eventually("it is disconnected", lambda: not session(its).connections)
        await proxy.accept()

        async def is_back() -> bool:
            return bool(now := await named(queue, its)) and not {*now} & {*connections}

        await until("it has registered others", is_back)
        gate.opened.set()
        await finished(queue)
        assert its.session == before
    assert (gate.begun, gate.done, gate.cancelled) == (["1"], ["1"], [])


async def named(queue: AsyncWorkQueue, its: AsyncWorkQueue) -> tuple[int, ...]:
    """Return the connections that the worker of a queue object has registered."""
    found = {one.session: one for one in await engine_of(queue).registry.workers()}
    return tuple(found[its.session].about["connections"]) if its.session in found else ()


def is_cut(one: OpenedConnection) -> bool:
    """Return whether the other side has closed a connection."""
    return one.connection.cut_at is not None


async def test_only_what_the_other_side_closes_is_cut(make_queue: MakeQueue, proxy: Proxy) -> None:
    queue = make_queue(url=proxy.url, reply_timeout=3)
    await queue.counts()
    [cut] = session(queue).connections
    assert not is_cut(cut)
    await proxy.cut()
    await eventually("it is cut", lambda: cut.connection.ended)
    assert is_cut(cut)
    await queue.counts()
    [given_up] = session(queue).connections
    proxy.stall()
    call = asyncio.create_task(queue.counts())
    await eventually("it is given up", lambda: given_up.connection.ended)
    proxy.resume()
    await asyncio.gather(call, return_exceptions=True)
    assert not is_cut(given_up)


async def test_only_the_runs_of_the_server_that_is_cut_off_end(
    make_queue: MakeQueue, queue: AsyncWorkQueue, proxy: Proxy
) -> None:
    """They end at once, though no heartbeat is due for long; and again when it is disconnected again."""
    worker = new_worker(lease_time=HOUR, dead_after=HOUR, gone_after=0.5)
    gate = Gate(worker, its := make_queue(url=proxy.url, reply_timeout=1))
    fine = Gate(worker, beside := make_queue(name=f"{queue.name}-beside"))
    for one in (queue, beside):
        await other_worker(one)
        await add(one, b"x")
    async with working(worker):
        await gate.reached(1)
        await fine.reached(1)
        for cancelled in (["1"], ["1", "1"]):
            await until("its death may be noticed", lambda: is_seen(queue, its))
            await until("the other one as well", lambda: is_seen(beside, beside))
            await proxy.fail()
            await eventually("its run is cancelled", partial(cancelled.__eq__, gate.cancelled))
            await proxy.heal()
            await gate.reached(1 + len(cancelled))
        assert fine.cancelled == []
        gate.opened.set()
        fine.opened.set()
        await finished(queue)
        await finished(beside)
    assert fine.begun == fine.done == ["1"]


async def test_heartbeats_do_not_wait_for_a_server_that_is_silent(
    make_queue: MakeQueue, queue: AsyncWorkQueue, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that go to another server."""
    monkeypatch.setattr(background, "MAX_REPLY_TIMEOUT", HOUR)
    worker = new_worker(lease_time=4 * HOUR, dead_after=HOUR)
    Gate(worker, its := make_queue(url=proxy.url, reply_timeout=1))
    Gate(worker, beside := make_queue(name=f"{queue.name}-beside"))
    async with working(worker):
        await until("it is registered", lambda: is_registered(queue, its))
        await until("it is registered there, too", lambda: is_registered(beside, beside))
        await until("its connections are known", lambda: is_seen(queue, its))
        proxy.stall()

        async def is_quiet() -> bool:
            return any(one.quiet for one in await Fleet(beside).workers())

        worker.quiet()  # has it send heartbeats
        await until("the heartbeat arrives", is_quiet)
        proxy.resume()


@pytest.mark.parametrize("has", ["come", "left"])
async def test_a_peer_that_has_just_come_or_left_is_counted(
    make_queue: MakeQueue, queue: AsyncWorkQueue, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, has: str
) -> None:
    """Though no heartbeat of this worker has been sent since."""
    worker = new_worker(lease_time=HOUR, dead_after=HOUR, gone_after=0.5, clean_every=HOUR)
    gate = Gate(worker, its := make_queue(url=proxy.url, reply_timeout=1))
    if has == "left":
        await other_worker(queue)
    await add(queue, b"x")
    async with working(worker):
        await gate.reached(1)
        registration = registration_of(its)
        await eventually("it has named its connections", lambda: registration.named)
        assert registration.has_peers == (has == "left")
        if has == "come":
            await other_worker(queue)
        else:
            await engine_of(queue).registry.leave()
        await eventually("it is noticed", lambda: registration.has_peers == (has == "come"))
        missed, began = await misses(monkeypatch), time.monotonic()
        await proxy.fail()
        if has == "come":
            await eventually("its run is cancelled", lambda: gate.cancelled == ["1"])
        else:
            await eventually("the time has passed", lambda: bool(missed) and missed[-1] > began + 1.0)
            assert gate.cancelled == []
        await proxy.heal()
        gate.opened.set()
        await finished(queue)
