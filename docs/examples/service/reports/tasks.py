"""The tasks, and the worker that runs them: `leasequeue worker reports.tasks:worker`."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from leasequeue import Provided, RetryPolicy, TaskQueue, Worker

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379")
tasks = TaskQueue.from_url(REDIS_URL, "reports")


@dataclass(frozen=True)
class Report:
    """A report on the sales to a customer in a month."""

    customer: str
    month: str
    sales: int
    total: float


class Sales:
    """Stands for the database of sales."""

    customers = ("ann", "bob")

    async def of(self, customer: str, month: str) -> list[float]:
        """Return the amounts of the sales to a customer in a month."""
        await asyncio.sleep(0.1)
        return [10.5, 20.0] if customer in self.customers and month else []


@asynccontextmanager
async def lifespan() -> AsyncIterator[dict[str, object]]:
    """Open what the tasks need; a worker calls it once when it starts."""
    yield {"sales": Sales()}


@tasks.task(timeout=60, retry=RetryPolicy(attempts=5), keep_result=3600)
async def make_report(customer: str, month: str, *, sales: Sales = Provided()) -> Report:
    """Make the report of a customer for a month, such as 2026-10."""
    amounts = await sales.of(customer, month)
    return Report(customer, month, len(amounts), sum(amounts))


@tasks.task(cron="0 6 1 * *", tz="Europe/Berlin")
async def make_reports(*, sales: Sales = Provided()) -> list[str]:
    """Order the reports of all customers for the month before, on the first of each month at six."""
    month = f"{datetime.now(UTC) - timedelta(days=7):%Y-%m}"
    # With an id, a report that is ordered twice is made once.
    calls = [make_report.options(id=f"{name}-{month}").call(name, month) for name in sales.customers]
    return [job.id for job in await tasks.add_many(calls)]


worker = Worker(tasks, concurrency=50, grace=30, lifespan=lifespan)
