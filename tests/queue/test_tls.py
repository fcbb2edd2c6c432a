"""Connections with TLS to a real server, and which error a client gets that cannot have one."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest
from redis.asyncio.sentinel import Sentinel

from leasequeue import AsyncWorkQueue, ConnectionLost, Item, Worker, list_queues
from leasequeue.errors import TlsFailed
from leasequeue.wire import tls
from tests.eventually import eventually
from tests.tls import Certificates, TlsServer, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from redis.asyncio.connection import AbstractConnection

    from tests.queue.fixtures import MakeQueue


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    """Make the certificates of a server, of a client, and of a stranger."""
    return Certificates.make(tmp_path)


@pytest.fixture
async def asking(certificates: Certificates) -> AsyncIterator[TlsServer]:
    """Start a server that asks its clients for a certificate."""
    async with running(certificates, asks_clients=True) as server:
        yield server


@pytest.fixture
async def trusting(certificates: Certificates) -> AsyncIterator[TlsServer]:
    """Start a server that does not."""
    async with running(certificates, asks_clients=False) as server:
        yield server


async def works(queue: AsyncWorkQueue, name: str) -> None:
    """Check a queue over TLS: all connections of a worker, small and large calls, and waiting."""
    worker, done = Worker(clean_every=None), list[int]()

    @worker.handler(queue)
    async def handle(data: bytes) -> None:
        done.append(len(data))
        if len(done) == 3:
            worker.stop()

    await queue.add_item(Item(b"x", id="before"))
    working = asyncio.create_task(worker.run())
    await eventually("the first is done", lambda: done == [1])
    await queue.add_item(Item(b"x" * 3, id="while it waits"))
    await queue.add_item(Item(b"x" * (1 << 20), id="large"))
    async with asyncio.timeout(120):
        await working
    assert sorted(done) == [1, 3, 1 << 20]
    assert (await queue.counts()).total == 0
    assert queue.name == name


async def test_a_client_with_a_certificate_works_where_one_is_asked_for(
    asking: TlsServer, make_queue: MakeQueue, name: str
) -> None:
    url = asking.url(asking.certificates.trusting(), asking.certificates.of("client"))
    await works(make_queue(url=url), name)
    assert await list_queues(url) == [name]


async def test_a_client_without_a_certificate_works_where_none_is_asked_for(
    trusting: TlsServer, make_queue: MakeQueue, name: str
) -> None:
    await works(make_queue(url=trusting.url(trusting.certificates.trusting())), name)


async def test_each_cause_is_told(
    asking: TlsServer, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "SILENT_SECONDS", 0.1)
    certificates = asking.certificates
    ours, known = certificates.of("client"), certificates.trusting()
    mixed = {**ours, "ssl_keyfile": certificates.of("stranger")["ssl_keyfile"]}
    absent = str(certificates.folder / "absent.pem")
    for url, reason, advice in (
        (asking.url(known), "client certificate", "ssl_certfile"),
        (asking.url(known, certificates.of("stranger")), "client certificate", "does not accept this one"),
        (asking.url(ours), "server certificate", "ssl_ca_certs"),
        (asking.url(certificates.trusting("other"), ours), "server certificate", "ssl_ca_certs"),
        (asking.url(known, ours, host="127.0.0.1"), "server certificate", "host name"),
        (asking.url(known, mixed), "files", "belong together"),
        (asking.url(known, {**ours, "ssl_certfile": absent}), "files", "Check their paths"),
        (asking.url({"ssl_ca_certs": absent}, ours), "files", "Check their paths"),
        (f"redis://localhost:{asking.port}", "TLS port", "Write rediss://"),
        (f"rediss://localhost:{asking.plain_port}", "plain port", "Write redis://"),
    ):
        queue = make_queue(url=url, name=f"of-{reason}")
        for call in (queue.add_item(Item(b"x")), queue.lease(30)):
            with pytest.raises(TlsFailed, match=advice) as caught:
                await call
            assert (caught.value.reason, caught.value.transient) == (reason, False), url
            assert "nothing was applied" in str(caught.value)
        with pytest.raises(TlsFailed):
            await list_queues(url)


async def test_a_worker_without_the_certificate_that_is_asked_for_ends(
    asking: TlsServer, make_queue: MakeQueue
) -> None:
    worker = Worker(clean_every=None)

    @worker.handler(make_queue(url=asking.url(asking.certificates.trusting())))
    async def handle(data: bytes) -> None:
        raise AssertionError(data)

    async with asyncio.timeout(120):
        with pytest.raises(TlsFailed, match="client certificate"):
            await worker.run()


@pytest.mark.parametrize("encrypted", [True, False])
async def test_no_port_is_probed_before_the_sentinels_have_named_a_server(
    name: str, monkeypatch: pytest.MonkeyPatch, *, encrypted: bool
) -> None:
    """Until then, a connection of redis-py has the address `localhost:6379`, where anything may answer."""
    probed: list[str] = []

    async def answers(host: str, _: int) -> bool:
        probed.append(host)
        return True

    async def read_alert(connection: AbstractConnection) -> None:
        probed.append(f"{connection}")

    monkeypatch.setattr(tls, "SILENT_SECONDS", 0.01)
    for probe in ("_answers_plainly", "_expects_tls"):
        monkeypatch.setattr(tls, probe, answers)
    monkeypatch.setattr(tls, "_read_alert", read_alert)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as ended:
            for listening in (silent, ended.sockets[0]):
                sentinel = Sentinel([listening.getsockname()])  # type: ignore[no-untyped-call]  # theirs has no types
                client = sentinel.master_for("main", ssl=encrypted)
                async with AsyncWorkQueue(name, client, reply_timeout=0.2) as queue:
                    with pytest.raises(ConnectionLost):
                        await queue.counts()
    assert not probed


async def test_a_server_that_hangs_up_is_down_and_does_not_expect_tls(make_queue: MakeQueue) -> None:
    """As a load balancer without a server behind it does."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        for scheme in ("redis", "rediss"):
            queue = make_queue(url=f"{scheme}://127.0.0.1:{port}", name=f"over-{scheme}")
            with pytest.raises(ConnectionLost, match="repeat when the server is back"):
                await queue.add_item(Item(b"x"))
