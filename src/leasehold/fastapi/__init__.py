"""Serve task queues and queues in FastAPI applications.

    from leasehold.fastapi import Tasks, lifespan, router

    app = FastAPI(lifespan=lifespan(tasks, worker=True))
    app.include_router(router(tasks, writes=[Depends(admin)]), prefix="/tasks")

    @app.post("/exports", status_code=202)
    async def create(tasks: Tasks) -> dict[str, int]: ...

Needs the extra `leasehold[fastapi]`.
"""

from leasehold.errors import ExtraMissing

try:
    import fastapi as _fastapi  # noqa: F401 - to say here what is missing and how to install it
except ImportError as error:
    raise ExtraMissing("queues in FastAPI", "fastapi") from error

from leasehold.fastapi.dependencies import Queue, Tasks, queue_of, tasks_of
from leasehold.fastapi.errors import DependencyMissing
from leasehold.fastapi.lifespan import lifespan
from leasehold.fastapi.router import router

__all__ = ["DependencyMissing", "Queue", "Tasks", "lifespan", "queue_of", "router", "tasks_of"]
