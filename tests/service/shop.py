"""The tasks of a photo shop, with default settings: `leasequeue worker tests.service.shop:worker`."""

from __future__ import annotations

import os
from pathlib import Path

import httpx

from leasequeue import FanOut, RetryPolicy, TaskQueue, Worker, current_run, fan_out
from tests.service.pictures import read_png, resized

tasks = TaskQueue.from_url(os.environ["SHOP_REDIS"], "shop")
#: A rate is that of a group, and a separate queue leaves the groups of `shop` to the tenants.
outgoing = TaskQueue.from_url(os.environ["SHOP_REDIS"], "outgoing")
FOLDER = Path(os.environ["SHOP_FOLDER"])


@tasks.task(run_in="process", timeout=60)
def resize(source: str, target: str, width: int) -> list[int]:
    """Write a smaller picture, and return its size."""
    (FOLDER / target).write_bytes(resized((FOLDER / source).read_bytes(), width))
    found, rows = read_png((FOLDER / target).read_bytes())
    return [found, len(rows)]


@outgoing.task(rate="5/s", retry=RetryPolicy(attempts=5, first=0.1))
async def send_mail(to: str) -> int:
    """Send a mail, which the server refuses at first; return which attempt has succeeded."""
    attempt = current_run().attempt
    if attempt == 1 and to.startswith("greylisted"):
        raise ConnectionRefusedError("451 try again later")
    return attempt


@tasks.task(timeout=20, retry=RetryPolicy(attempts=8, first=0.1, longest=2))
async def ask_price(size: int) -> int:
    """Ask another service, which is sometimes unavailable."""
    transport = httpx.AsyncHTTPTransport(uds=os.environ["SHOP_PRICES"])
    async with httpx.AsyncClient(transport=transport, base_url="http://prices", timeout=10) as client:
        answer = await client.get(f"/prices/{size}")
        answer.raise_for_status()
        return int(answer.json())


@tasks.task(timeout=60)
async def import_photos(count: int, batch: int = 50) -> int:
    """Import photos in batches, and report how far it is."""
    done = 0
    while done < count:
        done += min(batch, count - done)
        current_run().progress({"done": done, "of": count})
    return done


@tasks.task(cron="0 3 * * *", timeout=60)
async def nightly_report() -> int:
    """Count the pictures that were made."""
    return len([*FOLDER.glob("small-*.png")])  # noqa: ASYNC240 - one folder


@tasks.task(timeout=20)
async def line_of(photo: int) -> int:
    """Return the price of one line of an invoice."""
    return 100 + photo


@tasks.task(timeout=20)
async def invoice(photos: list[int]) -> FanOut[int]:
    """Have each line priced apart."""
    return fan_out(line_of.call(photo) for photo in photos)


@tasks.task(timeout=20)
async def total(prices: list[int]) -> int:
    """Add up the lines."""
    return sum(prices)


worker = Worker(tasks, outgoing)
