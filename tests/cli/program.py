"""The command line as the tests run it: its exit code, its standard output and its standard error."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import warnings
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pytest
from typer.testing import CliRunner

from leasequeue import Item
from leasequeue.cli.app import app
from tests.queue.asking import take

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from leasequeue import AsyncWorkQueue


class Outcome(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The output as one JSON document on one line."""
        [document] = self.documents
        return document

    @property
    def documents(self) -> list[Any]:
        """The output as JSON documents, one on each line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def table(self) -> list[list[str]]:
        """The output as a table: rows of cells without spaces."""
        return [line.split() for line in self.out.splitlines()]

    @property
    def error(self) -> str:
        """The single line on standard error, which is no traceback."""
        [line] = self.err.splitlines()
        assert line.startswith("leasequeue: ")
        return line.removeprefix("leasequeue: ")


class Leasequeue(Protocol):
    """Run `leasequeue` to its end, on the server that the tests share."""

    async def __call__(self, *arguments: str | bytes, stdin: bytes = b"", **environment: str) -> Outcome: ...


@pytest.fixture
def leasequeue(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Leasequeue:
    """Give a function that runs a command in this process, in a thread with its own event loop.

    What depends on a process is tested with `run_process` or `started`.
    """
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # commands replace it
    unset = {name: None for name in os.environ if name.endswith("_URL")}

    async def run(*arguments: str | bytes, stdin: bytes = b"", **environment: str) -> Outcome:
        root = logging.getLogger()
        handlers, level = [*root.handlers], root.level
        try:
            result = await asyncio.to_thread(
                CliRunner().invoke,
                app,
                [os.fsdecode(argument) for argument in arguments],
                prog_name="leasequeue",
                input=stdin,
                env={**unset, "COLUMNS": "200", "LEASEQUEUE_URL": redis_url, **environment},
            )
        finally:
            root.handlers[:] = (
                handlers  # a command may have put its own there, which write to a closed stream
            )
            root.setLevel(level)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result.exit_code, result.stdout_bytes.decode(), result.stderr_bytes.decode())

    return run


async def run_process(
    *arguments: str | bytes | Path, stdin: bytes = b"", cwd: Path | None = None, **environment: str
) -> Outcome:
    """Run a command to its end in a separate process."""
    async with started(*arguments, cwd=cwd, environment=environment) as process:
        out, err = await process.communicate(stdin)
    assert process.returncode is not None
    return Outcome(process.returncode, out.decode(), err.decode())


@asynccontextmanager
async def started(
    *arguments: str | bytes | Path,
    stdin: int = asyncio.subprocess.PIPE,
    stderr: int = asyncio.subprocess.PIPE,
    cwd: Path | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[Process]:
    """Start `leasequeue`; kill it at the end of the block if it still runs."""
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("_URL")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "leasequeue.cli"),
        *arguments,
        cwd=cwd,
        env=inherited | {"COLUMNS": "200"} | dict(environment),
        stdin=stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def use(*queues: AsyncWorkQueue) -> None:
    """Leave queues that exist and are empty: their last token is the only key of them."""
    for queue in queues:
        await queue.add_item(Item(b"x"))
        await queue.complete(await take(queue))


def usage_error(outcome: Outcome) -> str:
    """Check that a command was refused as wrong usage, and return the message on one line."""
    assert (outcome.code, outcome.out) == (2, "")
    assert "Traceback" not in outcome.err
    return " ".join(outcome.err.replace("│", " ").split())
