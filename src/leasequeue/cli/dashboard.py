"""`leasequeue dashboard`: show the queues of a server in the browser."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import threading
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from leasequeue.cli.formatting import print_line
from leasequeue.cli.options import choice_option, number_option
from leasequeue.cli.server import DEFAULT_URL, Code, fail, run_blocking_command
from leasequeue.errors import ExtraMissing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp

#: The variable with the password: the arguments of a process can be read by other users.
PASSWORD_VARIABLE = "LEASEQUEUE_DASHBOARD_PASSWORD"  # noqa: S105 - its name
_USER, DEFAULT_PORT = "dashboard", 8642


def dashboard(
    url: Annotated[
        str,
        typer.Argument(envvar=["LEASEQUEUE_URL", "REDIS_URL"], metavar="URL", help="The server's URL."),
    ] = DEFAULT_URL,
    *,
    host: Annotated[
        str,
        typer.Option(help=f"The address to listen on. Any but this machine's own needs {PASSWORD_VARIABLE}."),
    ] = "127.0.0.1",
    port: Annotated[int, number_option("TCP port; 0: a free one.", minimum=0, maximum=65535)] = DEFAULT_PORT,
    rights: Annotated[
        str,
        choice_option("What viewers may do.", ("read-only", "all")),
    ] = "read-only",
    show_data: Annotated[
        bool, typer.Option("--show-data", help="Show payloads, arguments and results.")
    ] = False,
    environment: Annotated[str, typer.Option(metavar="NAME", help="A word that each page shows.")] = "",
) -> None:
    """Show the queues of a server in the browser, until Ctrl-C or SIGTERM.

    The server's keys are scanned to find the queues. If the variable
    LEASEQUEUE_DASHBOARD_PASSWORD is set, the browser asks for this password, with any user name.
    """
    run_blocking_command(lambda: _serve(url, host, port, rights, environment, show_data=show_data))


def _serve(url: str, host: str, port: int, rights: str, environment: str, *, show_data: bool) -> Code:
    try:
        import uvicorn

        from leasequeue.dashboard import Rights
        from leasequeue.dashboard import dashboard as board_of
        from leasequeue.dashboard.password import Password
    except ModuleNotFoundError as error:
        if error.name not in {"uvicorn", "starlette", "jinja2"}:
            raise
        raise ExtraMissing("the dashboard", "dashboard") from error
    password = os.environ.get(PASSWORD_VARIABLE, "")
    if not password and not _is_of_this_machine(host):
        problem = f"--host {host}: others could see and change the queues: set {PASSWORD_VARIABLE} first"
        return fail(problem, Code.USAGE)
    may = (Rights.all if rights == "all" else Rights.read_only).of(_USER)
    app: ASGIApp = board_of(url, rights=may, show_data=show_data, environment=environment)
    app = Password(app, password) if password else _for_this_machine(app, host)
    config = uvicorn.Config(app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=1)
    listening = config.bind_socket()
    listening.listen()  # so that the address that is printed answers, if only after a moment
    address = f"[{host}]" if ":" in host else host
    print_line(f"http://{address}:{listening.getsockname()[1]}/ shows the queues. Press Ctrl-C to stop.")
    uvicorn.Server(config).run(sockets=[listening])
    return Code.DONE


class ServedDashboard(NamedTuple):
    """A dashboard that a thread serves: its address, and the thread."""

    address: str
    thread: threading.Thread


@contextlib.contextmanager
def served_dashboard(url: str) -> Iterator[ServedDashboard | None]:
    """Serve a dashboard that may do all in a thread, for this machine alone.

    None: its extra is not installed. Signals are left to the main thread.
    """
    try:
        import uvicorn

        from leasequeue.dashboard import Rights
        from leasequeue.dashboard import dashboard as board_of
    except (ModuleNotFoundError, ExtraMissing) as error:
        if not isinstance(error, ExtraMissing) and error.name not in {"uvicorn", "starlette"}:
            raise
        yield None
        return
    board = board_of(url, rights=Rights.all.of("dev"), show_data=True, environment="dev")
    app = _for_this_machine(board, "127.0.0.1")
    try:
        listening = socket.create_server(("127.0.0.1", DEFAULT_PORT))
    except OSError:  # another program is there
        listening = socket.create_server(("127.0.0.1", 0))
    # The log is that of the program.
    server = uvicorn.Server(
        uvicorn.Config(app, log_config=None, log_level="warning", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="dashboard")
    thread.start()
    try:
        yield ServedDashboard(f"http://127.0.0.1:{listening.getsockname()[1]}/", thread)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def _for_this_machine(app: ASGIApp, host: str) -> ASGIApp:
    """Answer only requests for this machine: the name of another site may lead here, for its own pages."""
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    versions = [host, f"[{host}]", "["]  # of an address of IPv6, as each Starlette reads it
    return TrustedHostMiddleware(app, allowed_hosts=["127.0.0.1", "localhost", *versions])


def _is_of_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
