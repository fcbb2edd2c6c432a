"""The chat of the page about streams, with a real server of HTTP and a client that loses its connection."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from uvicorn import Config, Server

from tests.docs.pages import DOCS, blocks
from tests.eventually import eventually
from tests.queue.asking import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from fastapi import FastAPI

    from leasequeue import Job

PAGE = DOCS / "how-to" / "streams.md"


@asynccontextmanager
async def served(app: FastAPI, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Serve an application with uvicorn, and give a client."""
    path = str(folder / "socket")
    server = Server(Config(app, uds=path, log_level="warning"))
    serving = asyncio.create_task(server._serve())  # `serve` would take the signals of the tests
    await eventually("uvicorn has started", lambda: server.started)
    transport = httpx.AsyncHTTPTransport(uds=path)
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=120) as client:
        yield client
    server.should_exit = True
    await serving


async def events(response: httpx.Response) -> AsyncIterator[dict[str, str]]:
    """Yield the fields of each event."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        else:
            yield fields
            fields = {}


@pytest.fixture
def chat(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the program of the page, with a model that says a word for each that it is given."""
    [program] = [block for block in blocks(PAGE) if block.title == "chat.py"]
    (tmp_path / "chat.py").write_text(program.code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.delitem(sys.modules, "chat", raising=False)
    chat: Any = importlib.import_module("chat")
    chat.words = asyncio.Queue()

    async def model(_: str) -> AsyncIterator[str]:
        while (word := await chat.words.get()) != "":
            yield word

    chat.model = model
    yield chat
    del sys.modules["chat"]


async def test_the_chat_goes_on_after_a_lost_connection_and_ends_when_the_browser_leaves(
    chat: Any, tmp_path: Path
) -> None:
    async with served(chat.app, tmp_path) as client:
        answer = (await client.post("/answers", params={"question": "why"})).json()
        for word in ("You", "asked"):
            chat.words.put_nowait(word)
        async with client.stream("GET", f"/answers/{answer}") as response:
            reading = events(response)
            first = await anext(reading)
            assert json.loads(first["data"]) == "You"
        chat.words.put_nowait("why")
        chat.words.put_nowait("")
        again = {"Last-Event-ID": first["id"]}
        async with client.stream("GET", f"/answers/{answer}", headers=again) as response:
            found = [one async for one in events(response)]
        assert [json.loads(one["data"]) for one in found] == ["asked", "why", {"state": "completed"}]
        response = await client.get(f"/answers/{answer}", headers={"Last-Event-ID": found[-1]["id"]})
        assert response.status_code == 204, "a browser connects again until it is told to stop"

        chat.CANCEL_AFTER = 0
        left = (await client.post("/answers", params={"question": "how"})).json()
        chat.words.put_nowait("You")
        async with client.stream("GET", f"/answers/{left}") as response:
            await anext(events(response))
        await until("it is cancelled", partial(is_cancelled, chat.answer.job(left)))


async def is_cancelled(job: Job[int]) -> bool:
    """Return whether a job was cancelled. To wait for its result would keep it."""
    return (await job.status()).state == "cancelled"
