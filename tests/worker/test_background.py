"""The background thread of a worker: what is called in it as it ends."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from leasequeue.errors import WorkerNotRunning
from leasequeue.worker.background import BackgroundThread


class Calls:
    """A coroutine to call, and whether it was made."""

    def __init__(self) -> None:
        self.made = 0

    async def __call__(self) -> None:
        self.made += 1
        await asyncio.sleep(3600)


def unexpected(error: BaseException) -> None:
    """Fail the test: the thread has ended with an error."""
    raise AssertionError from error


async def test_a_thread_that_has_ended_takes_no_calls() -> None:
    call, called = Calls(), list[str]()
    background = BackgroundThread([], [call], failing={}, on_failure=unexpected)
    await background.start()
    await background.stop()
    with pytest.raises(WorkerNotRunning):
        background.call(call)
    background.call_soon(lambda: called.append("never"))
    assert call.made == 1
    assert called == []


async def test_a_thread_that_ends_takes_no_calls_and_cancels_those_that_it_took() -> None:
    call = Calls()
    refused: list[Exception] = []
    accepted: list[Future[Any]] = []

    async def calls_at_the_end() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            try:
                background.call(call)
            except WorkerNotRunning as error:
                refused.append(error)

    background = BackgroundThread([], [calls_at_the_end], failing={}, on_failure=unexpected)
    await background.start()
    accepted.append(background.call(call))
    await background.stop()
    assert len(refused) == 1
    with pytest.raises(CancelledError):
        accepted[0].result(timeout=120)
