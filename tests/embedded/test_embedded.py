"""An embedded server answers, keeps its data, and ends with this process."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from leasequeue.embedded import EmbeddedServer, open_server
from leasequeue.embedded import server as server_module
from leasequeue.errors import EmbeddedServerError
from tests.eventually import eventually

if TYPE_CHECKING:
    from tests.conftest import MakeServer
    from tests.embedded.conftest import Traces


async def answers(url: str) -> bool:
    async with Redis.from_url(url) as client:
        return bool(await client.ping())


def fake_server(path: Path, script: str) -> Path:
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "Redis server v=7.0.0" && exit\n{script}\n')
    path.chmod(0o700)
    return path


def spoil(folder: Path) -> None:
    for file in folder.rglob("*.aof"):
        file.write_text("this is not an append-only file\n" * 10)


class TestStart:
    async def test_answers_on_tcp_and_on_a_socket_for_this_user_alone(self, make_server: MakeServer) -> None:
        server = await make_server()
        assert server.url == f"redis://127.0.0.1:{server.port}/0"
        async with Redis.from_url(server.url) as client:
            assert (await client.info("server"))["process_id"] == server.pid
        assert await answers(f"unix://{server.socket_path}")
        assert stat.S_IMODE(Path(server.socket_path).parent.stat().st_mode) == 0o700

    @pytest.mark.seed("RRQ-G6")
    async def test_evicts_nothing_and_saves_nothing(self, make_server: MakeServer) -> None:
        async with Redis.from_url((await make_server()).url) as client:
            for option, value in {"maxmemory-policy": "noeviction", "save": "", "appendonly": "no"}.items():
                assert await client.config_get(option) == {option: value}

    async def test_socket_path_is_short_where_temporary_folders_are_deep(
        self, make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        deep = tmp_path / ("deep" * 30)
        deep.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(deep))
        assert await answers(f"unix://{(await make_server()).socket_path}")

    async def test_takes_the_port_that_was_asked_for(self, make_server: MakeServer) -> None:
        first = await make_server()
        await first.stop()
        assert (await make_server(port=first.port)).url == first.url

    async def test_takes_another_port_when_another_process_takes_the_free_one(
        self, make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = await make_server()
        ports = iter([first.port, first.port, server_module._free_port()])
        monkeypatch.setattr(server_module, "_free_port", lambda: next(ports))
        second = await make_server()
        assert second.port != first.port
        assert await answers(second.url)

    async def test_refuses_a_port_in_use_with_the_servers_own_words(
        self, make_server: MakeServer, traces: Traces
    ) -> None:
        first = await make_server()
        with pytest.raises(EmbeddedServerError, match=r"ended while it was starting(.|\n)*in use"):
            await make_server(port=first.port)
        await first.stop()
        assert traces.gone()

    async def test_gives_up_on_a_silent_program(
        self, traces: Traces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server_module, "READY_SECONDS", 1)
        silent = fake_server(tmp_path / "silent", 'echo "hello from the log"; exec sleep 60')
        with pytest.raises(EmbeddedServerError, match=r"did not answer within(.|\n)*hello from the log"):
            await EmbeddedServer.start(binary=silent)
        assert traces.gone()

    async def test_refuses_a_program_that_is_no_server(self) -> None:
        with pytest.raises(EmbeddedServerError, match="not a Redis or Valkey server"):
            await EmbeddedServer.start(binary="/bin/echo")


class TestStop:
    async def test_leaves_nothing_and_may_be_repeated(self, make_server: MakeServer, traces: Traces) -> None:
        server = await make_server()
        assert (server.running, traces.gone()) == (True, False)
        await server.stop()
        assert (server.running, traces.gone()) == (False, True)
        await server.stop()

    async def test_after_the_server_was_killed(self, make_server: MakeServer, traces: Traces) -> None:
        server = await make_server()
        os.kill(server.pid, signal.SIGKILL)
        await eventually("the guardian has seen it", lambda: not server.running)
        assert traces.gone()
        await server.stop()

    @pytest.mark.parametrize("kept", [False, True], ids=["in-memory", "with-dir"])
    async def test_ends_a_server_that_hangs(
        self,
        make_server: MakeServer,
        traces: Traces,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        kept: bool,
    ) -> None:
        monkeypatch.setattr(server_module, "_GRACE_SECONDS", 0.5)
        server = await make_server(dir=tmp_path if kept else None)
        os.kill(server.pid, signal.SIGSTOP)
        async with asyncio.timeout(120):
            await server.stop()
        assert traces.gone()

    async def test_from_another_event_loop(self, traces: Traces) -> None:
        server = await asyncio.to_thread(lambda: asyncio.run(EmbeddedServer.start()))
        assert await answers(server.url)
        await asyncio.to_thread(lambda: asyncio.run(server.stop()))
        assert traces.gone()

    @pytest.mark.parametrize("milliseconds", [0, 1, 2, 5, 10, 20, 30, 40])
    async def test_cancelled_start_leaves_nothing(self, traces: Traces, milliseconds: int) -> None:
        starting = asyncio.create_task(EmbeddedServer.start())
        await asyncio.sleep(milliseconds / 1000)
        if starting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await starting
        else:
            await (await starting).stop()
        assert traces.gone()

    async def test_start_cancelled_before_the_answer(self, traces: Traces, tmp_path: Path) -> None:
        silent = fake_server(tmp_path / "silent", "exec sleep 60")
        starting = asyncio.create_task(EmbeddedServer.start(binary=silent))
        await eventually("the program runs", lambda: bool(traces.processes()))
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert traces.gone()


class TestDir:
    async def test_data_survive_a_killed_server(self, make_server: MakeServer, tmp_path: Path) -> None:
        first = await make_server(dir=tmp_path)
        async with Redis.from_url(first.url) as client:
            await client.config_set("appendfsync", "always")
            await client.rpush("list", *range(100))
        os.kill(first.pid, signal.SIGKILL)
        await eventually("the server has ended", lambda: not first.running)
        second = await make_server(dir=tmp_path, port=first.port)
        async with Redis.from_url(first.url) as client:
            assert await client.llen("list") == 100
        await second.stop()

    async def test_data_survive_a_stop(self, make_server: MakeServer, tmp_path: Path) -> None:
        first = await make_server(dir=tmp_path)
        async with Redis.from_url(first.url) as client:
            await client.set("key", "value")
        await first.stop()
        async with Redis.from_url((await make_server(dir=tmp_path)).url) as client:
            assert await client.get("key") == b"value"

    async def test_is_for_one_server_at_a_time(self, make_server: MakeServer, tmp_path: Path) -> None:
        first = await make_server(dir=tmp_path)
        with pytest.raises(EmbeddedServerError, match=f"in use by another server \\({first.url}\\)"):
            await make_server(dir=tmp_path)
        assert await answers(first.url)
        await first.stop()
        assert await answers((await make_server(dir=tmp_path)).url)

    async def test_a_folder_that_cannot_be_written_is_refused(
        self, make_server: MakeServer, tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(EmbeddedServerError, match="cannot be kept in"):
            await make_server(dir=tmp_path / "file")

    async def test_an_error_about_invalid_data_contains_the_servers_message(
        self, make_server: MakeServer, tmp_path: Path
    ) -> None:
        first = await make_server(dir=tmp_path)
        async with Redis.from_url(first.url) as client:
            await client.set("key", "value")
        await first.stop()
        spoil(tmp_path)
        with pytest.raises(EmbeddedServerError, match=r"(?i)bad file format"):
            await make_server(dir=tmp_path)


class TestOpenServer:
    async def test_starts_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("REDIS_URL", raising=False)
        async with await open_server() as server:
            assert isinstance(server, EmbeddedServer)
            assert await answers(server.url)

    async def test_uses_the_server_of_redis_url_and_leaves_it_running(
        self, make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        running = await make_server()
        monkeypatch.setenv("REDIS_URL", running.url)
        async with await open_server(dir="/not/looked/at") as server:
            assert server.url == running.url
        assert await answers(running.url)
