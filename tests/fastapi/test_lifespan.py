"""The lifespan: composed with the application's own, started again and again, with and without a worker."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from fastapi import Depends, FastAPI, Request, WebSocket
from fastapi.testclient import TestClient

from leasequeue import AsyncWorkQueue, InvalidArgument, Provided, TaskQueue, Worker
from leasequeue.errors import JobUnknown, ServerRefused, WorkerBusy
from leasequeue.fastapi import DependencyMissing, Queue, Tasks, lifespan, queue_of, tasks_of
from tests.fastapi.applications import app_of, double

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping


@pytest.mark.parametrize("of_its_own", [False, True])
def test_an_application_is_started_again_and_again(tasks: TaskQueue, *, of_its_own: bool) -> None:
    app = app_of(tasks, worker=Worker(tasks, concurrency=1, name="ours") if of_its_own else True)
    for number in range(3):
        with TestClient(app) as client:
            assert double(client, number) == 2 * number


def test_two_applications_run_in_one_process(tasks: TaskQueue, redis_url: str, name: str) -> None:
    others = TaskQueue.from_url(redis_url, f"{name}-others")

    @others.task(name="double")
    async def triple(number: int) -> int:
        return 3 * number

    with (
        TestClient(app_of(tasks, worker=True)) as client,
        TestClient(app_of(others, worker=True)) as other,
        TestClient(app_of(tasks, worker=True)) as again,
    ):
        assert [double(one, 5) for one in (client, other, again)] == [10, 15, 10]


def test_without_a_worker_tasks_are_left_to_other_processes(tasks: TaskQueue) -> None:
    with TestClient(app_of(tasks)) as client:
        assert client.post("/double", params={"number": 1}).status_code == 202
        assert client.get("/counts").json()["waiting"] == 1


def test_it_is_composed_with_the_application_s_own(tasks: TaskQueue) -> None:
    order = []

    @tasks.task
    async def greet(greeting: str = Provided()) -> str:
        order.append("run")
        return greeting

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[Mapping[str, Any]]:
        order.append(f"start {app.title}")
        yield {"greeting": "hello"}
        order.append("end")

    app = FastAPI(title="ours", lifespan=lifespan(tasks, worker=True, then=own))

    @app.get("/")
    async def index(request: Request) -> list[str]:
        job = await greet.add()
        return [request.state.greeting, await job.result(timeout=120)]

    with TestClient(app) as client:
        assert client.get("/").json() == ["hello", "hello"]
    assert order == ["start ours", "run", "end"]


@pytest.mark.parametrize("place", ["before the yield", "after the yield"])
def test_an_error_of_the_application_s_own_is_raised(
    tasks: TaskQueue, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    @asynccontextmanager
    async def own(_: FastAPI) -> AsyncIterator[None]:
        if place == "after the yield":
            yield
        raise JobUnknown(place)

    with (
        pytest.raises(JobUnknown, match=place),
        TestClient(app_of(tasks, worker=True, then=own)) as client,
    ):
        assert double(client, 3) == 6
    assert ("stopped: 1 completed" in caplog.text) == (place == "after the yield")


def test_the_worker_stops_before_the_application_s_own_resources_close(tasks: TaskQueue) -> None:
    order = []

    @asynccontextmanager
    async def own(_: FastAPI) -> AsyncIterator[None]:
        yield
        order.append("closed")

    @asynccontextmanager
    async def of_worker() -> AsyncIterator[None]:
        yield
        order.append("stopped")

    with TestClient(app_of(tasks, worker=Worker(tasks, lifespan=of_worker), then=own)):
        pass
    assert order == ["stopped", "closed"]


def test_a_worker_that_does_not_start_ends_the_start_of_the_application(tasks: TaskQueue) -> None:
    @tasks.task
    async def greet(greeting: str = Provided()) -> str:
        return greeting

    with pytest.raises(InvalidArgument, match="greeting"), TestClient(app_of(tasks, worker=True)):
        pass


def test_a_worker_that_runs_already_is_refused(tasks: TaskQueue) -> None:
    worker = Worker(tasks)
    with (
        TestClient(app_of(tasks, worker=worker)) as client,
        pytest.raises(WorkerBusy),
        TestClient(app_of(tasks, worker=worker)),
    ):
        pass
    assert client is not None


def test_a_server_that_is_down_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    tasks = TaskQueue.from_url("redis://127.0.0.1:1", "away", reply_timeout=0.1)
    with TestClient(app_of(tasks)):
        assert "starts without its queues, and is not ready" in caplog.text


def test_a_server_that_refuses_ends_the_start(redis_url: str, name: str) -> None:
    url = redis_url.replace("redis://", "redis://nobody:wrong@")
    with pytest.raises(ServerRefused), TestClient(app_of(TaskQueue.from_url(url, name))):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"worker": 1}, "worker"),
        ({"on_crash": "nothing"}, '"unhealthy" or "exit"'),
        ({"then": 1}, "then"),
    ],
)
def test_an_invalid_argument_is_refused(tasks: TaskQueue, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        lifespan(tasks, **options)


def test_invalid_sources_are_refused(tasks: TaskQueue) -> None:
    wrong: Any = "default"
    for sources in ((), (wrong,), (tasks, TaskQueue.from_url("redis://127.0.0.1:1", tasks.name))):
        with pytest.raises(InvalidArgument, match="sources"):
            lifespan(*sources)
    with pytest.raises(InvalidArgument, match="a task queue to work on"):
        lifespan(tasks.queue, worker=True)


@pytest.mark.parametrize("yielded", [{"leasequeue": 1}, [1]], ids=["its name", "no mapping"])
def test_a_state_that_cannot_be_kept_is_refused(tasks: TaskQueue, yielded: Any) -> None:
    @asynccontextmanager
    async def own(_: FastAPI) -> AsyncIterator[Any]:
        yield yielded

    with pytest.raises(InvalidArgument, match="then"), TestClient(app_of(tasks, then=own)):
        pass


# ----------------------------------------------------------------------------------------------- dependencies


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
