"""An application for uvicorn, whose worker can be made to crash. Its settings are in the environment."""

from __future__ import annotations

import os

from fastapi import Depends, FastAPI

from leasequeue import TaskQueue, Worker
from leasequeue.fastapi import anyone, lifespan, router

VERSION = 1

tasks = TaskQueue.from_url(os.environ["SERVED_URL"], os.environ["SERVED_QUEUE"])
#: Other objects for the same queue, so that closing the worker's leaves that of the requests open.
of_worker = TaskQueue.from_url(os.environ["SERVED_URL"], os.environ["SERVED_QUEUE"])


async def pid() -> int:
    """Return in which process the task runs."""
    return os.getpid()


task = tasks.task(pid)
of_worker.task(pid)
app = FastAPI(lifespan=lifespan(tasks, worker=Worker(of_worker, concurrency=1), on_crash="exit"))
app.include_router(router(tasks, reads=[Depends(anyone)]), prefix="/tasks")


@app.get("/pid")
async def run() -> list[int]:
    """Return what is served, the process of this request, and that of a task."""
    job = await task.add()
    return [VERSION, os.getpid(), await job.result(timeout=120)]


@app.post("/crash")
async def crash() -> None:
    """Let the worker of this process crash."""
    await of_worker.close()
