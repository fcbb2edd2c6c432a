"""What another user of this machine can do to an embedded server, and see of it.

The attacks run as another user if the tests run as root. Else they run as the same user, without what only
this user can read: the password, and the socket, whose modes are checked.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Item
from leasequeue.embedded import EmbeddedServer
from leasequeue.embedded import server as server_module
from leasequeue.errors import EmbeddedServerError
from tests import servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

#: The user of no file.
NOBODY = 65534
#: Files, replication, programs, and locking the owner out.
ATTACKS = [
    "CONFIG SET dir {folder}",
    "CONFIG SET dbfilename authorized_keys",
    "CONFIG SET save 1",
    "CONFIG REWRITE",
    "SAVE",
    "BGSAVE",
    "BGREWRITEAOF",
    "REPLICAOF 127.0.0.1 1",
    "SLAVEOF 127.0.0.1 1",
    "MODULE LOAD {folder}/x.so",
    "DEBUG RELOAD",
    "ACL SETUSER default off",
    "ACL SETUSER mallory on nopass ~* +@all",
    "ACL LOAD",
    "MIGRATE 127.0.0.1 1 key 0 1000",
    "SHUTDOWN NOSAVE",
    "EVAL {script} 0",
]
#: What the answers have that say that a user has no right.
REFUSALS = ("NOPERM", "permission", "not allowed", "can't run")
#: As an argument of an inline command.
SCRIPT = "\"return redis.call('config','set','dir','/')\""


@pytest.fixture(autouse=True)
def _rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the rules of servers of users, not of those of tests."""
    monkeypatch.setattr(server_module, "OPEN_RULES", servers.OPEN_RULES)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Return what starts servers of the kind that the tests run on, as users do."""
    async with Start() as start:
        yield start


class Start:
    """Starts servers, and stops them."""

    def __init__(self) -> None:
        self._started: list[EmbeddedServer] = []

    async def __call__(
        self,
        *,
        dir: Path | None = None,  # noqa: A002 - as there
        port: int | None = None,
        password: str | None = None,
    ) -> EmbeddedServer:
        program = servers.program(servers.wanted())
        self._started.append(
            await EmbeddedServer.start(dir=dir, port=port, password=password, binary=program)
        )
        return self._started[-1]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for one in self._started:
            await one.stop()


def as_other(*command: str, given: str = "") -> str:
    """Return what a program prints that another user runs."""
    done = subprocess.run(
        command,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        user=NOBODY if os.geteuid() == 0 else None,
        group=NOBODY if os.geteuid() == 0 else None,
        extra_groups=[] if os.geteuid() == 0 else None,
        cwd="/",
    )
    return done.stdout + done.stderr


#: Sends each line of its input as a command over TCP, and prints the first line of each answer.
CLIENT = """
import socket, sys
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
with client, client.makefile("rw", newline="") as both:
    for line in sys.stdin.read().splitlines():
        both.write(line + "\\r\\n")
        both.flush()
        print(both.readline().strip())
"""


def asked(port: int, *commands: str) -> list[str]:
    """Return the first line of each answer that another user gets."""
    python = next(one for one in ("/usr/bin/python3", "/usr/local/bin/python3") if Path(one).exists())
    return as_other(python, "-IS", "-c", CLIENT, str(port), given="\n".join(commands)).splitlines()


def attacks(folder: Path) -> list[str]:
    """Return the commands that must be refused."""
    return [one.format(folder=folder, script=SCRIPT) for one in ATTACKS]


async def values_of(url: str) -> dict[str | None, str | None]:
    """Return the settings that attacks would change."""
    async with Redis.from_url(url) as client:
        settings: dict[str | None, str | None] = {}
        for one in ("dir", "dbfilename", "save"):
            settings |= await client.config_get(one)
        assert (await client.info("replication"))["role"] == "master"
        return settings


@pytest.mark.core
@pytest.mark.parametrize("password", [None, 'a b"\\\r\n #é%:@/'], ids=["random", "chosen"])
async def test_another_user_can_do_nothing_to_a_server_with_a_password(
    start: Start, tmp_path: Path, password: str | None
) -> None:
    server = await start(port=0, password=password)
    before = await values_of(server.url)
    commands = ["GET key", "AUTH default", "HELLO 3 AUTH default default", *attacks(tmp_path)]
    answers = asked(server.port, *commands)
    assert len(answers) == len(commands)
    for command, answer in zip(commands, answers, strict=True):
        # Redis 7 says of two commands that they are not allowed at all.
        refused = answer.startswith(("-NOAUTH", "-WRONGPASS")) or "not allowed" in answer
        assert refused, (command, answer)
    assert await values_of(server.url) == before
    assert server.running


@pytest.mark.core
async def test_another_user_can_configure_nothing_of_a_server_without_a_password(
    start: Start, tmp_path: Path
) -> None:
    server = await start(port=0, password="")
    before = await values_of(server.url)
    assert asked(server.port, "SET key value", "GET missing") == ["+OK", "$-1"], "the data is open"
    commands = attacks(tmp_path)
    answers = asked(server.port, *commands)
    assert len(answers) == len(commands)
    for command, answer in zip(commands, answers, strict=True):
        refused = answer.startswith("-") and any(word in answer for word in REFUSALS)
        assert refused, (command, answer)
    assert await values_of(server.url) == before
    async with AsyncWorkQueue.from_url(server.url, "q") as queue:  # what Leasequeue needs is permitted
        assert await queue.add_item(Item(b"x"))
        lease = await queue.lease(30)
        assert lease is not None
        assert await queue.complete(lease)
        await queue.admin.fsck()


@pytest.mark.core
async def test_a_server_listens_on_tcp_only_if_that_is_asked_for(start: Start) -> None:
    server = await start()
    assert (server.port, server.url) == (0, f"unix://{server.socket_path}?db=0")
    assert sockets_of(server.pid) & tcp_sockets() == set()
    other = await start(port=0)
    assert len(sockets_of(other.pid) & tcp_sockets()) == 1
    async with Redis.from_url(server.url) as client:
        assert await client.config_set("maxmemory", "100mb"), "this user may configure it"
    async with AsyncWorkQueue.from_url(server.url, "q") as queue:
        assert queue.url == server.url, "other processes of this user can join"


def sockets_of(pid: int) -> set[str]:
    """Return the sockets that a process has open."""
    found = set()
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was just closed
            found.add(str(one.readlink()).strip("socket:[]"))
    return found


def tcp_sockets() -> set[str]:
    """Return the TCP sockets that listen on this machine."""
    rows = [
        line.split()
        for one in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{one}").read_text().splitlines()[1:]
    ]
    return {row[9] for row in rows if row[3] == "0A"}


async def test_another_user_can_neither_open_the_socket_nor_read_the_password(start: Start) -> None:
    server = await start(port=0)
    password = urlsplit(server.url).password
    assert password
    folder = Path(server.socket_path).parent
    modes = {one.name: stat.S_IMODE(one.lstat().st_mode) for one in (folder, *folder.iterdir())}
    assert modes.pop(folder.name) == 0o700
    assert modes["socket"] == modes["config"] == modes["pid"] == 0o600
    for one in folder.iterdir():
        if one.is_file():
            assert password not in one.read_text()
    if os.geteuid() == 0:
        assert "Permission denied" in as_other("cat", str(folder / "config"))
        assert "Permission denied" in as_other("ls", str(folder))
    arguments = as_other("ps", "-ww", "-eo", "args")
    assert str(folder) in arguments
    assert password not in arguments
    assert password not in repr(server) + str(vars(server).get("program"))


async def test_the_files_of_the_data_are_for_this_user_alone_also_in_an_open_folder(
    start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    (folder / "leasequeue.lock").touch(mode=0o644)
    before = os.umask(0o022)
    try:
        server = await start(dir=folder, port=0)
    finally:
        os.umask(before)
    async with Redis.from_url(server.url) as client:
        await client.set("key", "value")
        await client.bgrewriteaof()
        await client.save()
    await server.stop()
    found = [one for one in folder.rglob("*") if one.is_file()]
    assert {one.name for one in found} >= {"leasequeue.lock", "dump.rdb"}
    assert not {one.name: oct(one.stat().st_mode) for one in found if one.stat().st_mode & 0o077}


async def test_the_password_of_a_folder_is_kept_and_no_error_shows_it(start: Start, tmp_path: Path) -> None:
    first = await start(dir=tmp_path, port=0)
    password = urlsplit(first.url).password
    assert password
    with pytest.raises(EmbeddedServerError, match="in use by another server") as caught:
        await start(dir=tmp_path, port=0)
    assert password not in str(caught.value)
    assert str(tmp_path / "leasequeue.lock") in str(caught.value)
    assert (tmp_path / "leasequeue.lock").read_text() == first.url
    await first.stop()
    again = await start(dir=tmp_path, port=first.port)
    assert again.url == first.url
    with pytest.raises(EmbeddedServerError, match="in use") as caught:
        await start(port=first.port, password=password)
    assert password not in str(caught.value)
    other = await start(port=0)
    assert urlsplit(other.url).password != password


async def test_a_planted_lock_file_is_refused(start: Start, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "data"
    folder.mkdir(mode=0o777)
    (folder / "leasequeue.lock").symlink_to(victim)
    with pytest.raises(EmbeddedServerError, match="cannot be kept in"):
        await start(dir=folder, port=0)
    assert victim.read_text() == "precious"


async def test_a_lock_file_of_another_user_is_refused(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "leasequeue.lock"
    lock.touch(mode=0o666)
    if os.geteuid() == 0:
        os.chown(lock, NOBODY, NOBODY)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    with pytest.raises(EmbeddedServerError, match="is of another user, who could read the password"):
        await start(dir=tmp_path, port=0)
    assert lock.read_text() == ""


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "*", "10.0.0.1", "example.org", "127.0.0.1 0.0.0.0", "::ffff:127.0.0.1"],  # noqa: S104 - refused
)
async def test_a_public_address_without_a_password_is_refused(host: str) -> None:
    with pytest.raises(EmbeddedServerError, match="other machines may reach: set a password") as caught:
        await EmbeddedServer.start(host=host, port=0, password="")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("host", ["localhost", "::1", "127.0.0.2"])
async def test_an_address_of_this_machine_alone_needs_no_password(host: str) -> None:
    async with (
        await EmbeddedServer.start(host=host, port=0, password="") as server,
        Redis.from_url(server.url) as client,
    ):
        assert await client.ping()
