"""Applications for these tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
from fastapi import Depends, FastAPI, HTTPException

from leasequeue import AsyncWorkQueue, TaskQueue
from leasequeue.fastapi import Queue, Tasks, anyone, lifespan, router

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

    from leasequeue import Task
    from leasequeue.fastapi.lifespan import Source

#: Where the router is.
PREFIX = "/tasks"


def app_of(*sources: Source, **options: Any) -> FastAPI:
    """Make an application that adds the task `double`."""
    app = FastAPI(lifespan=lifespan(*sources, **options))

    @app.post("/double", status_code=202)
    async def add(number: int, tasks: Tasks) -> str:
        return (await task_of(tasks, "double").add(number)).id

    @app.get("/double")
    async def add_and_wait(number: int, tasks: Tasks) -> Any:
        job = await task_of(tasks, "double").add(number)
        return await job.result(timeout=120)

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


def admin(token: str = "") -> None:
    """Refuse requests without the token."""
    if token != "secret":  # noqa: S105 - of this test
        raise HTTPException(401, "say who you are", headers={"WWW-Authenticate": "Bearer"})


def with_router(*sources: TaskQueue | AsyncWorkQueue, **options: Any) -> FastAPI:
    """Make an application with the router of some queues."""
    app = FastAPI()
    given = {"reads": [Depends(anyone)], "writes": [Depends(admin)]} | options
    app.include_router(router(*sources, **given), prefix=PREFIX)
    return app


def client_of(app: FastAPI) -> httpx.AsyncClient:
    """Return a client in the event loop of the test."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://test{PREFIX}")


def problem(response: httpx.Response, status: int, name: str) -> dict[str, Any]:
    """Check that a response is a problem, and return it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = response.json()
    assert found["status"] == status
    assert found["type"] == (f"urn:leasequeue:{name}" if name else "about:blank")
    return found
