"""However many of 1,000 simulated workers die at once, the last is noticed about as soon as one alone."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.alive.simulated import SimulatedFleet

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue

pytestmark = [pytest.mark.core, pytest.mark.slow]

WORKERS = 1000


def sessions_of(count: int) -> list[str]:
    """Return the names of sessions, in the order of the ring."""
    chance = random.Random(7)
    return sorted(f"lh:host/{chance.randrange(9999)}/{chance.getrandbits(64):016x}" for _ in range(count))


def choose(sessions: list[str], who: str, count: int) -> set[str]:
    """Return those that die."""
    if who == "an arc":
        return {*sessions[300 : 300 + count]}
    if who == "pairs":
        return {*(one for at in range(0, 2 * count, 4) for one in sessions[at : at + 2])}
    return {*random.Random(11).sample(sessions, count)}


async def last_noticed(
    queue: AsyncWorkQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch, who: str, count: int, **slow: float
) -> float:
    """Return when the last of them is failed (s)."""
    sessions = sessions_of(WORKERS)
    dying = choose(sessions, who, count)
    assert len(dying) == count
    with monkeypatch.context() as patched:
        fleet = SimulatedFleet(queue, redis, patched)
        assert queue.url is not None
        await fleet.start(queue.url, sessions, dying)
        await fleet.run(**slow)
    await redis.delete(f"{queue.name}:workers", f"{queue.name}:heartbeats")
    assert fleet.failed.keys() == dying
    return max(fleet.failed.values())


@pytest.mark.parametrize("who", ["at random", "pairs", "an arc"])
async def test_the_last_of_500_dead_workers_is_noticed_about_as_soon_as_that_of_10(
    make_queue: MakeQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    few = await last_noticed(make_queue(), redis, monkeypatch, "at random", 10)
    many = await last_noticed(make_queue(), redis, monkeypatch, who, 500)
    assert many <= 1.5 * few


async def test_on_a_starved_host_two_further_looks_are_enough(
    make_queue: MakeQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though each look takes 4 s, a worker that lives has time to register other connections."""
    seconds = await last_noticed(make_queue(), redis, monkeypatch, "at random", 10, look_lasts=4.0)
    assert 2 * 4 <= seconds <= 3 * 4 + 1.5
