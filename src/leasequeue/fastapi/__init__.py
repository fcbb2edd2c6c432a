"""Serve task queues and queues in FastAPI applications.

    from leasequeue.fastapi import Tasks, lifespan, router

    app = FastAPI(lifespan=lifespan(tasks, worker=True))
    app.include_router(router(tasks, reads=[Depends(login)], writes=[Depends(admin)]), prefix="/tasks")

    @app.post("/exports", status_code=202)
    async def create(tasks: Tasks) -> dict[str, int]: ...

Needs the extra `leasequeue[fastapi]`.
"""

from leasequeue.errors import ExtraMissing

try:
    import fastapi as _fastapi  # noqa: F401 - to say here what is missing and how to install it
except ImportError as error:
    raise ExtraMissing("queues in FastAPI", "fastapi") from error

from leasequeue.fastapi.dependencies import DependencyMissing, Queue, Tasks, queue_of, tasks_of
from leasequeue.fastapi.lifespan import lifespan
from leasequeue.fastapi.router import anyone, router
from leasequeue.fastapi.streams import stream_response

__all__ = [
    "DependencyMissing",
    "Queue",
    "Tasks",
    "anyone",
    "lifespan",
    "queue_of",
    "router",
    "stream_response",
    "tasks_of",
]
