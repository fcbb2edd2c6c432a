"""The HTTP server of probes and metrics."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING

import httpx
import pytest

from leasequeue.cli import probes
from leasequeue.cli.probes import AddressUnusable, ProbeServer, note, probe
from leasequeue.cli.worker.health import HealthPort
from leasequeue.worker import Worker, health
from tests.eventually import eventually
from tests.queue.asking import until
from tests.worker.working import Gate, new_worker, working

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from leasequeue import AsyncWorkQueue
    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue


def fails(_: WSGIEnvironment, __: StartResponse) -> list[bytes]:
    """Fail, as a metric of the user's may."""
    raise LookupError("no such thing")


@contextmanager
def serving(routes: Mapping[str, WSGIApplication], host: str = "127.0.0.1") -> Iterator[ProbeServer]:
    server = ProbeServer(host, 0, routes)
    server.start()
    with closing(server):
        yield server


def get(server: ProbeServer, path: str, method: str = "GET") -> tuple[int, str]:
    return fetch(server.url, path, method)


def fetch(url: str, path: str, method: str = "GET") -> tuple[int, str]:
    answer = httpx.request(method, f"{url}{path}", timeout=120)
    return answer.status_code, answer.text


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_probe_answers_with_its_problems(host: str) -> None:
    problems: list[str] = []
    with serving({"/live": probe(lambda: problems)}, host) as server:
        assert get(server, "/live") == (200, "ok\n")
        problems += ["one thing", "anöther \udc80"]
        assert get(server, "/live") == (503, "one thing\nanöther ?\n")
        assert get(server, "/live", "HEAD") == (503, "")


def test_many_clients_may_connect_at_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ProbeServer("127.0.0.1", 0, {"/live": note("x", 200)})
    started: list[Callable[[], None]] = []
    monkeypatch.setattr(ProbeServer, "_in_thread", staticmethod(started.append))
    server.start()  # nothing accepts a connection yet
    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=0.5))
        monkeypatch.undo()
        server._in_thread(started[0])
        assert get(server, "/live") == (200, "x\n")
        server.close()


def test_other_paths_and_methods_are_refused() -> None:
    with serving({"/live": note("x", 200), "/metrics": fails}) as server:
        assert get(server, "/") == (404, "GET /live\nGET /metrics\n")
        assert get(server, "/live/") == (200, "x\n")
        assert get(server, "/lives") == (404, "GET /live\nGET /metrics\n")
        assert get(server, "/live", "POST") == (405, "GET it\n")
        assert get(server, "/metrics") == (500, "see the log\n")


def threads_of_clients() -> int:
    return sum("process_request_thread" in one.name for one in threading.enumerate())


def test_a_hundred_clients_that_stall_hold_a_few_threads_and_delay_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes._Handler, "timeout", 3600.0)
    others = threads_of_clients()
    with ExitStack() as stack, serving({"/live": probe(tuple), "/ready": note("x" * (1 << 22))}) as server:
        for index in range(100):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            if index % 3:  # a third sends nothing, a third no end, and a third takes no answer
                client.sendall(b"GET /ready HTTP/1.0\r\n" + b"\r\n" * (index % 3 - 1))
            if index % 25 == 24:
                assert get(server, "/live") == (200, "ok\n")
        assert get(server, "/live") == (200, "ok\n")
        assert threads_of_clients() - others <= probes.MAX_THREADS


def test_threads_whose_answers_hang_are_not_more_than_their_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "MAX_CLIENTS", 2)
    monkeypatch.setattr(probes, "MAX_THREADS", 4)
    goes_on = threading.Event()

    def hangs() -> Iterator[str]:
        goes_on.wait(60)
        yield from ()

    others = threads_of_clients()
    with ExitStack() as stack, serving({"/live": probe(hangs)}) as server:
        clients = []
        for _ in range(10):
            clients.append(stack.enter_context(socket.create_connection(("127.0.0.1", server.port))))
            clients[-1].sendall(b"GET /live HTTP/1.0\r\n\r\n")
        for client in clients[4:]:  # they have all been accepted, and refused
            client.settimeout(20)
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""
        assert threads_of_clients() - others <= 4
        goes_on.set()


def test_clients_for_which_there_was_no_thread_take_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "MAX_THREADS", 4)
    with serving({"/live": probe(tuple)}) as server:
        size = threading.stack_size(1 << 46)  # more than any machine has: no thread can start
        try:
            for _ in range(5):
                with pytest.raises(httpx.TransportError):
                    get(server, "/live")
        finally:
            threading.stack_size(size)
        assert get(server, "/live") == (200, "ok\n")


def test_an_address_in_use_is_an_error_unless_it_waits() -> None:
    with serving({}) as first:
        with pytest.raises(AddressUnusable, match=rf"127.0.0.1, port {first.port}: .*in use"):
            ProbeServer("127.0.0.1", first.port, {}).start()
        with pytest.raises(AddressUnusable, match=r"nowhere\.invalid"):
            ProbeServer("nowhere.invalid", 0, {}).start()


async def test_a_server_that_waits_listens_once_the_address_is_free(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(probes, "RETRY_SECONDS", 0.01)
    first = ProbeServer("127.0.0.1", 0, {"/live": note("first", 200)})
    first.start()
    second = ProbeServer("127.0.0.1", first.port, {"/live": note("second", 200)})
    second.start_soon()
    with closing(second):
        await eventually("it warns", lambda: "in use; trying again" in caplog.text)
        assert get(second, "/live") == (200, "first\n")
        first.close()

        def has_taken_over() -> bool:
            try:
                return get(second, "/live") == (200, "second\n")
            except httpx.HTTPError:
                return False

        await eventually("the second one answers", has_taken_over)
        assert caplog.text.count("in use") == 1


def test_without_the_extra_metrics_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.prometheus", None)
    port = HealthPort("127.0.0.1", 0, waits=False)
    port.start()
    with closing(port):
        assert httpx.get(f"{port.url}/metrics").status_code == 503
        assert httpx.get(f"{port.url}/ready").text == "the program of the worker is being imported\n"
        assert httpx.get(f"{port.url}/live").text == "ok\n"
        port.serve(Worker())
        answer = httpx.get(f"{port.url}/metrics")
        assert (answer.status_code, "leasequeue[prometheus]" in answer.text) == (404, True)
        assert httpx.get(f"{port.url}/ready").text == "the worker is not running\n"
        assert httpx.get(f"{port.url}/live").text == "ok\n"


async def test_a_worker_that_stands_still_is_not_live(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.prometheus", None)  # it is for the whole process
    worker = new_worker()
    Gate(worker, queue)
    port = HealthPort("127.0.0.1", 0, waits=False)
    port.start()
    with closing(port):
        async with working(worker):
            port.serve(worker)
            await eventually("it is ready", lambda: fetch(port.url, "/ready") == (200, "ok\n"))
            assert fetch(port.url, "/live") == (200, "ok\n")
            monkeypatch.setattr(health, "BLOCKED_SECONDS", -1.0)
            assert fetch(port.url, "/live") == (200, "ok\n"), "it may continue"
            monkeypatch.setattr(health, "STUCK_SECONDS", -1.0)
            status, text = fetch(port.url, "/live")
            assert (status, worker.health().live) == (503, False)
            assert "the event loop has been blocked" in text
            assert "the background thread has stood still" in text


async def test_what_a_server_is_called_is_in_the_log_and_not_in_the_answer(
    make_server: MakeServer,
    make_queue: MakeQueue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.prometheus", None)  # it is for the whole process
    server = await make_server()
    worker = new_worker()
    Gate(worker, make_queue(url=server.url))
    port = HealthPort("127.0.0.1", 0, waits=False)
    port.start()
    with closing(port):
        async with working(worker):
            port.serve(worker)
            await server.stop()
            address = f"127.0.0.1:{server.port}"
            answers: list[tuple[int, str]] = []

            async def is_logged() -> bool:
                answers.append(await asyncio.to_thread(fetch, port.url, "/ready"))
                return any("not ready: " in one and address in one for one in caplog.messages)

            await until("the log says which server it is", is_logged)
            status, text = answers[-1]
            assert status == 503
            assert "s: ConnectionLost, see the log\n" in text
            assert not any(part in one for _, one in answers for part in ("127.0.0.1", str(server.port)))
            logged = caplog.text.count("not ready: ")
            for _ in range(20):
                assert (await asyncio.to_thread(fetch, port.url, "/ready"))[0] == 503
            assert caplog.text.count("not ready: ") < logged + 10, "once for each problem"
