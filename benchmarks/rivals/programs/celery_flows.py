"""Celery's chains, and chords for children and their join; celery.py says how it is set up.

- A message of a chain carries the rest of the chain. The worker that ran it sends the next one, with the
  result, before it acknowledges: a worker that dies in between causes a second successor.
- A chord keeps the results of its children in Redis and counts them there (the default of its backend); the
  worker that counts the last one sends the join, with all results.
- Threads start runs concurrently, as it cannot start many at once.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery import chain, chord

from benchmarks.rivals.programs import celery, protocol


def open_app(url: str, flow: protocol.Flow) -> tuple[Any, Any, Any]:
    """Return an app, its first task, and the one that is passed results."""
    app, job = celery.open_app(url, results=flow.joins)

    @app.task(name="step")
    def step(before: Any, number: int, ms: int) -> int:
        flow.check(before, number)
        done: int = job.run(number, ms)
        return done

    return app, job, step


async def produce(url: str, flow: dict[str, Any]) -> None:
    """Start runs."""
    shape = protocol.Flow(**flow)
    _, job, step = open_app(url, shape)

    def start(some: range) -> None:
        *others, last = some
        if shape.joins:
            chord(job.si(number, 0) for number in others)(step.s(last, 0))
        else:
            chain(job.si(some[0], 0), *(step.s(number, 0) for number in some[1:])).apply_async()

    async def start_many(numbers: range, _: int) -> None:
        runs = list(protocol.chunks(numbers, shape.size))
        with ThreadPoolExecutor(celery.PRODUCERS) as pool:
            await asyncio.gather(*(asyncio.wrap_future(pool.submit(start, some)) for some in runs))

    await protocol.produce(protocol.refused, start_many)


async def work(task: protocol.Task) -> None:
    """Run a worker, as celery.py does."""
    app, _, _ = open_app(task.url, protocol.Flow(**task.flow))
    celery.start(app, task)
    await asyncio.Event().wait()
