"""Applications for these tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from leasehold.fastapi import Queue, Tasks, lifespan

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

    from leasehold import Task
    from leasehold.fastapi.sources import Source


def app_of(*sources: Source, **options: Any) -> FastAPI:
    """Make an application that adds the task `double`."""
    app = FastAPI(lifespan=lifespan(*sources, **options))

    @app.post("/double", status_code=202)
    async def add(number: int, tasks: Tasks) -> str:
        return (await task_of(tasks, "double").add(number)).id

    @app.get("/double")
    async def add_and_wait(number: int, tasks: Tasks) -> Any:
        job = await task_of(tasks, "double").add(number)
        return await job.result(timeout=10)

    @app.get("/counts")
    async def counts(queue: Queue) -> dict[str, int]:
        return (await queue.counts())._asdict()

    return app


def double(client: TestClient, number: int) -> int:
    """Have an application double a number by a task."""
    response = client.get("/double", params={"number": number})
    assert response.status_code == 200, response.text
    doubled: int = response.json()
    return doubled


def task_of(tasks: Tasks, name: str) -> Task[Any, Any]:
    """Return a task by its name."""
    return next(one for one in tasks.tasks if one.name == name)
