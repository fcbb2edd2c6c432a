"""A small HTTP server for probes and metrics, in separate threads: an event loop may be blocked."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import sys
import threading
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from leasequeue.errors import LeasequeueError
from leasequeue.errors.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

#: Seconds for which a client may be silent.
CLIENT_SECONDS = 5.0
#: From so many clients on, the oldest connection ends for each further one: answers take milliseconds, so it
#: is that of a client that stalls. So many threads are the most, which answers that hang may take.
MAX_CLIENTS, MAX_THREADS = 32, 64
#: Seconds between two tries to listen at an address that is in use.
RETRY_SECONDS = 0.5
#: How often to look whether the server was closed.
POLL_SECONDS = 0.1

log = Log("leasequeue.probes")


class AddressUnusable(LeasequeueError):
    """The server cannot listen at an address."""


def probe(problems: Callable[[], Iterable[str]]) -> WSGIApplication:
    """Return an application that answers 200 without a problem, and else 503 with a line for each."""

    def answer(_: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        found = [*problems()]
        return _answer(start_response, 503 if found else 200, *(found or ["ok"]))

    return answer


def note(text: str, status: int = 404) -> WSGIApplication:
    """Return an application that answers with a text."""
    return lambda _, start_response: _answer(start_response, status, text)


def document(read: Callable[[], tuple[bool, Mapping[str, Any]]]) -> WSGIApplication:
    """Return an application that answers with a JSON document: 200, or 503 if the first value is False."""

    def answer(_: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        fresh, found = read()
        return _answer(start_response, 200 if fresh else 503, json.dumps(found), kind="application/json")

    return answer


def one_at_a_time(application: WSGIApplication) -> WSGIApplication:
    """Return an application that answers one request at a time."""
    lock = threading.Lock()

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        with lock:
            return [*application(environ, start_response)]

    return answer


class ProbeServer:
    """Serves some paths over HTTP until it is closed."""

    def __init__(
        self, host: str, port: int, routes: Mapping[str, WSGIApplication], *, option: str = ""
    ) -> None:
        self._host = host
        self._port = port
        self._routes = dict(routes)
        #: The option by which the user gives another port.
        self._option = option
        self._server: _Server | None = None
        self._closed = threading.Event()

    @property
    def port(self) -> int:
        """The port at which it listens; as given, if it does not listen yet."""
        return self._port if self._server is None else self._server.server_address[1]

    @property
    def url(self) -> str:
        """The address as a URL."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    def start(self) -> None:
        """Listen, and answer from a thread."""
        self._server = self._listen()
        self._in_thread(self._serve)

    def start_soon(self) -> None:
        """Start it as soon as the address is free, until it is closed."""
        self._in_thread(self._serve)

    def close(self) -> None:
        """Listen no more."""
        self._closed.set()
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    @staticmethod
    def _in_thread(run: Callable[[], None]) -> None:
        threading.Thread(target=run, name="leasequeue probes", daemon=True).start()

    def _listen(self) -> _Server:
        try:
            family, _, _, _, address = socket.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            return _Server(family, (str(address[0]), int(address[1])), self._answer)
        except OSError as error:
            problem = f"cannot listen at {self._host}, port {self._port}: {error.strerror or error}"
            advice = f": give another port with {self._option}" * bool(self._option)
            raise AddressUnusable(problem + advice) from error

    def _serve(self) -> None:
        """Answer, after waiting until the address is free."""
        server, warned = self._server, False
        while server is None and not self._closed.is_set():
            try:
                server = self._listen()
            except AddressUnusable as error:
                if not warned:
                    log.warning("%s; trying again", error)
                warned = True
                self._closed.wait(RETRY_SECONDS)
        if server is not None:
            self._server = server
            if self._closed.is_set():
                server.server_close()
            else:
                server.serve_forever(POLL_SECONDS)

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"].rstrip("/") or "/"
        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            answer: Iterable[bytes] = _answer(start_response, 405, "GET it")
        elif path not in self._routes:
            answer = _answer(start_response, 404, *(f"GET {one}" for one in self._routes))
        else:
            try:
                answer = [*self._routes[path](environ, start_response)]
            except Exception:
                log.exception("%s failed", path)
                answer = _answer(start_response, 500, "see the log")
        return [] if environ["REQUEST_METHOD"] == "HEAD" else answer


def _answer(
    start_response: StartResponse, status: int, *lines: str, kind: str = "text/plain; charset=utf-8"
) -> list[bytes]:
    body = "".join(f"{line}\n" for line in lines).encode(errors="replace")
    headers = [("Content-Type", kind), ("Content-Length", f"{len(body)}"), ("Cache-Control", "no-store")]
    start_response(f"{status} {HTTPStatus(status).phrase}", headers)
    return [body]


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_SECONDS  # type: ignore[mutable-override]  # a class attribute, as they document

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as in the base class
        """Log requests for debugging only: probes are frequent."""
        log.debug("%s", format % args)


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    # With 5, the default, some of the clients that connect at the same moment wait for a second: probes fail.
    request_queue_size = 128

    def __init__(self, family: int, address: tuple[str, int], answer: WSGIApplication) -> None:
        self.address_family = family
        #: The connections, the oldest first.
        self._clients: dict[socket.socket, None] = {}
        super().__init__(address, _Handler)
        self.set_app(answer)

    def server_bind(self) -> None:
        """Bind the socket, without asking for the name of the host, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread. There are not more than `MAX_THREADS`, however many clients stall."""
        clients = [*self._clients]
        if len(clients) >= MAX_THREADS:
            self.shutdown_request(request)
            return
        for stalled in clients[: max(0, len(clients) + 1 - MAX_CLIENTS)]:
            with contextlib.suppress(OSError):  # it has just ended
                stalled.shutdown(socket.SHUT_RDWR)  # what its thread reads or writes then fails
        self._clients[request] = None
        try:
            super().process_request(request, client_address)
        except BaseException:  # the process can have no more threads
            self._clients.pop(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one client."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._clients.pop(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - as in the base class
        """Ignore clients that disappear."""
        log.debug("a request from %s failed: %r", client_address, sys.exception())
