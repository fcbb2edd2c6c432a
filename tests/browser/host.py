"""An application with a dashboard in it, for uvicorn. The environment names the server."""

from __future__ import annotations

import os

from fastapi import FastAPI

from leasequeue import TaskQueue
from leasequeue.dashboard import dashboard
from leasequeue.fastapi import lifespan

tasks = TaskQueue.from_url(os.environ["HOST_URL"], "orders")
board = dashboard(tasks)
app = FastAPI(lifespan=lifespan(tasks, then=board.router.lifespan_context))
app.mount("/queues", board)


@app.get("/hello")
async def hello() -> str:
    """Answer, as the application beside the dashboard does."""
    return "hello"
