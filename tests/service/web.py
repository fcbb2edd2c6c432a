"""The application of the photo shop: each request adds a task and awaits its result."""

from __future__ import annotations

from fastapi import FastAPI, HTTPException

from leasequeue.fastapi import lifespan, router
from tests.service.shop import (
    ask_price,
    import_photos,
    invoice,
    nightly_report,
    outgoing,
    resize,
    send_mail,
    tasks,
    total,
)

#: How long a request waits (s): a machine that is busy with other tests is slow.
WAIT_SECONDS = 150

app = FastAPI(lifespan=lifespan(tasks, outgoing))
app.include_router(router(tasks), prefix="/tasks")
_asked: set[int] = set()


@app.post("/photos/{tenant}/{number}")
async def add_photo(tenant: str, number: int) -> list[int]:
    """Resize a picture for one of the tenants, among whom the worker is fair."""
    job = await resize.options(group=tenant).add("original.png", f"small-{tenant}-{number}.png", 200)
    return await job.result(timeout=WAIT_SECONDS)


@app.post("/mails/{to}")
async def add_mail(to: str) -> int:
    """Send a mail."""
    return await (await send_mail.add(to)).result(timeout=WAIT_SECONDS)


@app.get("/quotes/{size}")
async def quote(size: int) -> int:
    """Ask the price of a picture."""
    return await (await ask_price.add(size)).result(timeout=WAIT_SECONDS)


@app.get("/prices/{size}")
async def price(size: int) -> int:
    """Be the other service, which is unavailable when it is asked a price for the first time."""
    if size not in _asked:
        _asked.add(size)
        raise HTTPException(503)
    return 3 * size


@app.post("/imports/{count}")
async def add_import(count: int) -> list[int]:
    """Import photos; return how far it was known to be, and how many there are."""
    job = await import_photos.add(count)
    done = await job.result(timeout=WAIT_SECONDS)
    return [done, count]


@app.post("/reports")
async def report() -> int:
    """Make the nightly report now."""
    return await (await nightly_report.add()).result(timeout=WAIT_SECONDS)


@app.post("/invoices")
async def add_invoice(photos: list[int]) -> int:
    """Return the total of an invoice."""
    run = await invoice.call(photos).then(total).add()
    return await run.result(timeout=WAIT_SECONDS)
