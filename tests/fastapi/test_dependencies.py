"""Dependencies: the task queue and the queue of the application, in all kinds of routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fastapi import Depends, FastAPI, WebSocket
from fastapi.testclient import TestClient

from leasequeue import AsyncWorkQueue, TaskQueue
from leasequeue.fastapi import DependencyMissing, Queue, Tasks, lifespan, queue_of, tasks_of

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def others(redis_url: str, name: str) -> TaskQueue:
    tasks = TaskQueue.from_url(redis_url, f"{name}-others")

    @tasks.task(queue=f"{name}-own")
    async def nothing() -> None: ...

    return tasks


def test_the_only_task_queue_and_its_queue(tasks: TaskQueue) -> None:
    app = FastAPI(lifespan=lifespan(tasks))

    @app.get("/")
    async def index(ours: Tasks, queue: Queue) -> list[bool]:
        return [ours is tasks, queue is tasks.queue]

    with TestClient(app) as client:
        assert client.get("/").json() == [True, True]


def test_plain_functions_web_sockets_and_mounted_applications(tasks: TaskQueue) -> None:
    app, mounted = FastAPI(lifespan=lifespan(tasks)), FastAPI()
    app.mount("/inner", mounted)

    @mounted.get("/plain")
    def plain(ours: Tasks) -> str:
        return ours.name

    @app.websocket("/socket")
    async def socket(socket: WebSocket, ours: Tasks) -> None:
        await socket.accept()
        await socket.send_text(ours.name)
        await socket.close()

    with TestClient(app) as client:
        assert client.get("/inner/plain").json() == tasks.name
        with client.websocket_connect("/socket") as connected:
            assert connected.receive_text() == tasks.name


def test_several_are_asked_for_by_name(
    tasks: TaskQueue, others: TaskQueue, redis_url: str, name: str
) -> None:
    emails = AsyncWorkQueue.from_url(redis_url, f"{name}-emails")
    app = FastAPI(lifespan=lifespan(tasks, others, emails))

    @app.get("/")
    async def index(
        # Annotated would be evaluated where these names are not known.
        theirs: TaskQueue = Depends(tasks_of(others.name)),  # noqa: B008, FAST002
        queue: AsyncWorkQueue = Depends(queue_of(emails.name)),  # noqa: B008, FAST002
        of_task: AsyncWorkQueue = Depends(queue_of(f"{name}-own")),  # noqa: B008, FAST002
    ) -> list[bool]:
        return [theirs is others, queue is emails, of_task is others.tasks[0].queue]

    with TestClient(app) as client:
        assert client.get("/").json() == [True, True, True]


def asking(dependency: object, *sources: TaskQueue | AsyncWorkQueue) -> FastAPI:
    app = FastAPI(lifespan=lifespan(*sources) if sources else None)
    app.get("/", dependencies=[Depends(dependency)])(lambda: None)  # type: ignore[arg-type] # found in Annotated
    return app


def test_a_missing_one_is_an_error_that_says_what_to_do(tasks: TaskQueue, others: TaskQueue) -> None:
    def problem(*sources: TaskQueue | AsyncWorkQueue, of: object) -> str:
        with (
            TestClient(asking(of, *sources)) as client,
            pytest.raises(DependencyMissing) as caught,
        ):
            client.get("/")
        return str(caught.value)

    only_tasks: Callable[..., object] = Tasks.__metadata__[0].dependency  # type: ignore[attr-defined] # of Annotated
    only_queue: Callable[..., object] = Queue.__metadata__[0].dependency  # type: ignore[attr-defined]
    assert "FastAPI(lifespan=leasequeue.fastapi.lifespan(tasks))" in problem(of=only_tasks)
    assert "with TestClient(app) as client" in problem(of=queue_of("emails"))
    assert f"Depends(tasks_of({tasks.name!r}))" in problem(tasks, others, of=only_tasks)
    assert f"Depends(queue_of({tasks.name!r}))" in problem(tasks, others, of=only_queue)
    assert "was given no task queue" in problem(tasks.queue, of=only_tasks)
    assert f"no task queue of this name, but {tasks.name}" in problem(tasks, of=tasks_of("emails"))
    assert f"no queue of this name, but {tasks.name}" in problem(tasks, of=queue_of("emails"))


def test_an_application_without_the_lifespan_in_a_test_is_told(tasks: TaskQueue) -> None:
    app = FastAPI(lifespan=lifespan(tasks))

    @app.get("/")
    async def index(ours: Tasks) -> str:
        return ours.name

    with pytest.raises(DependencyMissing, match="with TestClient") as caught:
        TestClient(app).get("/")
    assert caught.value.wanted == "Tasks"
