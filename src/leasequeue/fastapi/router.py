"""A router for the jobs, queues, workers and health of an application."""

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.params import Depends
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import StreamingResponse

from leasequeue.alive import Fleet
from leasequeue.durations import check_list
from leasequeue.errors import InvalidArgument, LeasequeueError, ServerRefused
from leasequeue.errors.log import Log
from leasequeue.fastapi.dependencies import find_serving
from leasequeue.fastapi.jobs import Jobs, until_disconnected
from leasequeue.fastapi.lifespan import Source, Sources
from leasequeue.fastapi.models import (
    HealthInfo,
    JobInfo,
    JobResult,
    QueueDetails,
    QueueInfo,
    WorkerInfo,
    queue_details,
    queue_info,
    worker_info,
)
from leasequeue.fastapi.problems import (
    FORBIDDEN,
    JOB_CANCELLED,
    JOB_ENDED,
    JOB_EXPIRED,
    JOB_FAILED,
    JOB_UNKNOWN,
    LOGIN_MISSING,
    NOT_READY,
    QUEUE_UNKNOWN,
    REQUEST_INVALID,
    RESULT_UNREADABLE,
    SERVER_UNAVAILABLE,
    ProblemFound,
    ProblemRoute,
    answers,
    path_of,
)
from leasequeue.fastapi.streams import stream_response

#: The longest time that a request may wait for a result (s): proxies end silent connections, and a server
#: that stops waits for its requests.
MAX_WAIT = 30
#: The longest time after which a client is to ask again for a result (s).
MAX_RETRY_AFTER = 60
#: How long the server may take to answer for the application to be ready (s).
READY_SECONDS = 2.0
#: What a server would log of a request whose client has gone; no client sees it.
CLIENT_GONE = 499

log = Log("leasequeue.fastapi")


class NameConvertor(Convertor[str]):
    """Match the id of a job or the name of a queue in a path: any text, with slashes and line breaks."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        """Return what the path has."""
        return value

    def to_string(self, value: str) -> str:
        """Return what to write into a path."""
        return quote(value, safe="")


class JobConvertor(NameConvertor):
    """Match the id of a job at the end of a path: no text that ends like the path of what a job has."""

    regex = "(?s:.*)(?<!/result)(?<!/cancel)(?<!/stream)(?<!/result/)(?<!/cancel/)(?<!/stream/)"


register_url_convertor("leasequeue", NameConvertor())
register_url_convertor("leasequeue_job", JobConvertor())

JobId = Annotated[str, Path(description="The id of the job.", examples=["4f0c9e0b5a3d4b7f8f5e1c2d3a4b5c6d"])]
QueueName = Annotated[
    str | None,
    Query(description="The name of its queue. Left out: it is looked for in each.", examples=["default"]),
]
Wait = Annotated[
    float,
    Query(
        ge=0, le=MAX_WAIT, allow_inf_nan=False, description="Seconds to wait for the result.", examples=[10]
    ),
]


#: How the dependencies of an application refuse a request.
REFUSED = (LOGIN_MISSING, FORBIDDEN)
#: The answer for an item of a queue without tasks.
_ALSO_BYTES: dict[str, Any] = {
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
}
#: The answer for a job that is unfinished.
_UNFINISHED: dict[str, Any] = {
    "description": "The job is unfinished.",
    "model": JobInfo,
    "headers": {
        "Location": {"description": "Where to ask again.", "schema": {"type": "string"}},
        "Retry-After": {"description": "Seconds to wait before that.", "schema": {"type": "integer"}},
    },
}


async def anyone() -> None:
    """Let anyone pass: `reads=[Depends(anyone)]` says that whoever reaches the application may read.

    For one that only its operators reach, or behind a proxy that asks for a login. What they read has results
    of jobs, texts of errors, ids, and names of hosts.
    """


def router(
    *sources: Source, writes: Sequence[Depends] | None = None, reads: Sequence[Depends] | None = None
) -> APIRouter:
    """Return a router for jobs, queues, workers and health, to be included in an application.

        app.include_router(router(tasks, reads=[Depends(login)], writes=[Depends(admin)]), prefix="/tasks")

    `router(tasks)` alone has `/live` and `/ready`, for anyone: whether it works, without names and texts of
    errors. Errors are `application/problem+json`. An error of a job is shown by its class and text, never
    with its traceback. The routes are described by OpenAPI.

    Args:
        sources: The task queues and queues. Jobs, queues and workers of others are not shown.
        writes: The application's dependencies that protect what changes something: they refuse a request by
            raising `HTTPException`. None: there are no such routes.
        reads: Those that protect what shows jobs, results, queues and workers: whoever reads the ids of runs
            can read their results. None: there are no such routes. `Depends(anyone)` refuses nobody.

    Raises:
        InvalidArgument: If an argument is invalid; also if one is empty, so that nothing protects its routes.
    """
    served = Sources(*sources)
    made = APIRouter(route_class=ProblemRoute)
    if reads is not None:
        guards = _checked("reads", reads)
        _add_streams(made, Jobs(served), guards)
        _add_jobs(made, Jobs(served), guards)
        _add_queues(made, served, guards)
    if writes is not None:
        _add_writes(made, Jobs(served), _checked("writes", writes))
    _add_health(made, served)
    return made


def _checked(argument: str, dependencies: Any) -> list[Depends]:
    found = check_list(argument, dependencies, "Depends(…)")
    if wrong := [one for one in found if not isinstance(one, Depends)]:
        raise InvalidArgument(argument, wrong[0], "Depends(…)")
    if not found:
        raise InvalidArgument(argument, dependencies, "one or more Depends(…), or None for no such routes")
    return found


def _add_streams(made: APIRouter, jobs: Jobs, guards: list[Depends]) -> None:
    @made.get(
        "/jobs/{id:leasequeue}/stream",
        tags=["jobs"],
        summary="Read the stream of a job",
        response_description="Its chunks, as server-sent events.",
        response_class=StreamingResponse,
        responses={
            200: {
                "content": {"text/event-stream": {"schema": {"description": "Events, one after the other."}}}
            },
            **answers(JOB_UNKNOWN, QUEUE_UNKNOWN, *REFUSED, REQUEST_INVALID, SERVER_UNAVAILABLE),
            204: {"description": "`Last-Event-ID` is that of the end."},
        },
        dependencies=guards,
    )
    async def job_stream(
        request: Request,
        id: JobId,  # noqa: A002 - the name in the path
        queue: QueueName = None,
        last_event_id: Annotated[
            str,
            Header(pattern=r"^([0-9]{1,16}-[0-9]{1,16}|end)?$", description="The last event that was read."),
        ] = "",
    ) -> Response:
        """Return what the runs of the job emit, from the first chunk or after `Last-Event-ID`, to the end.

        The event `restart` says that another run has begun, `end` how the job has ended.
        """
        del last_event_id  # `stream_response` reads it
        return stream_response(request, await jobs.stream(id, queue))


def _add_jobs(made: APIRouter, jobs: Jobs, guards: list[Depends]) -> None:
    unknown = (JOB_UNKNOWN, QUEUE_UNKNOWN)
    ended = (JOB_CANCELLED, JOB_EXPIRED, JOB_FAILED, RESULT_UNREADABLE)

    @made.get(
        "/jobs/{id:leasequeue}/result",
        tags=["jobs"],
        summary="Get the result of a job",
        response_description="The result.",
        response_model=JobResult,
        responses={
            **answers(*unknown, *ended, *REFUSED, REQUEST_INVALID, SERVER_UNAVAILABLE),
            200: _ALSO_BYTES,
            202: _UNFINISHED,
            204: {"description": "The job was done, and no result was stored."},
        },
        dependencies=guards,
    )
    async def job_result(
        request: Request,
        id: JobId,  # noqa: A002 - the name in the path
        queue: QueueName = None,
        wait: Wait = 0,
    ) -> Any:
        """Wait for the result of a job, up to `wait` seconds.

        `202`: it is unfinished; ask again at `Location`, after `Retry-After` seconds.
        """
        found = await until_disconnected(request, jobs.result(id, queue, wait=wait), watch=wait > 0)
        if found is None:
            return Response(status_code=CLIENT_GONE)
        if isinstance(found, JobInfo):
            return _unfinished(request, found)
        if found.data is None:
            return Response(status_code=204)
        if not found.is_json:
            headers = {"X-Content-Type-Options": "nosniff"}
            return Response(found.data, media_type="application/octet-stream", headers=headers)
        return Response(found.envelope(id), media_type="application/json")

    @made.get(
        "/jobs/{id:leasequeue_job}",
        tags=["jobs"],
        summary="Get the status of a job",
        response_description="The job.",
        responses=answers(*unknown, *REFUSED, REQUEST_INVALID, SERVER_UNAVAILABLE),
        dependencies=guards,
    )
    async def job(id: JobId, queue: QueueName = None) -> JobInfo:  # noqa: A002
        """Return where a job is, how often it was tried, and its last error."""
        return await jobs.find(id, queue)


def _add_writes(made: APIRouter, jobs: Jobs, guards: list[Depends]) -> None:
    @made.post(
        "/jobs/{id:leasequeue}/cancel",
        tags=["jobs"],
        summary="Cancel a job",
        response_description="The job, which is cancelled.",
        responses=answers(
            *(JOB_UNKNOWN, QUEUE_UNKNOWN, JOB_ENDED),
            *(*REFUSED, REQUEST_INVALID, SERVER_UNAVAILABLE),
        ),
        dependencies=guards,
    )
    async def cancel_job(id: JobId, queue: QueueName = None) -> JobInfo:  # noqa: A002
        """Cancel a job, whether it waits or runs. To cancel it twice is fine."""
        return await jobs.cancel(id, queue)


def _add_queues(made: APIRouter, sources: Sources, guards: list[Depends]) -> None:
    @made.get(
        "/queues",
        tags=["queues"],
        summary="List the queues",
        response_description="The queues.",
        responses=answers(*REFUSED, SERVER_UNAVAILABLE),
        dependencies=guards,
    )
    async def queues() -> list[QueueInfo]:
        """Return how many items of each queue are in each state."""
        found = sources.queues
        counts = await asyncio.gather(*(one.counts() for one in found.values()))
        return [queue_info(name, one) for name, one in zip(found, counts, strict=True)]

    @made.get(
        "/queues/{name:leasequeue}",
        tags=["queues"],
        summary="Get a queue",
        response_description="The queue.",
        responses=answers(QUEUE_UNKNOWN, *REFUSED, REQUEST_INVALID, SERVER_UNAVAILABLE),
        dependencies=guards,
    )
    async def queue(
        name: Annotated[str, Path(description="The name of the queue.", examples=["default"])],
    ) -> QueueDetails:
        """Return how many items of a queue are in each state, and how long its items wait.

        Ask for this every few seconds: when an item began to wait is known from a sample of what was waiting
        at the requests before.
        """
        (found,) = Jobs(sources).queues(name)
        return queue_details(await found.stats())

    @made.get(
        "/workers",
        tags=["queues"],
        summary="List the workers",
        response_description="The workers, those that started first first.",
        responses=answers(*REFUSED, SERVER_UNAVAILABLE),
        dependencies=guards,
    )
    async def workers() -> list[WorkerInfo]:
        """Return the workers of the queues, in all processes, at their last heartbeats."""
        return [worker_info(one) for one in await Fleet(*sources.queues.values()).workers()]


def _add_health(made: APIRouter, sources: Sources) -> None:
    #: The last error of a server that was logged: probes ask every few seconds.
    logged = ""

    @made.get(
        "/live",
        tags=["health"],
        summary="Whether the process answers",
        response_description="It answers.",
    )
    async def live() -> HealthInfo:
        """For a liveness probe: a process that does not answer should be started again."""
        return HealthInfo(status="ok")

    @made.get(
        "/ready",
        tags=["health"],
        summary="Whether the application can work",
        response_description="It can.",
        responses=answers(NOT_READY),
    )
    async def ready(request: Request) -> HealthInfo:
        """For a readiness probe: whether the server answers, and the worker in this process is healthy."""
        nonlocal logged
        serving = find_serving(request)
        reasons = [] if serving is None or serving.worker is None else [*serving.worker.reasons]
        try:
            await (sources if serving is None else serving.sources).check(within=READY_SECONDS)
        except LeasequeueError as error:
            what = f"the server {'refuses' if isinstance(error, ServerRefused) else 'does not answer'}"
            # The error has its address, which is not for anyone who can ask.
            reasons.append(f"{what}: {type(error).__name__}, see the log")
            if logged != str(error):
                log.warning("not ready: %s: %s", what, error)
                logged = str(error)
        else:
            logged = ""
        if reasons:
            raise ProblemFound(NOT_READY, "; ".join(reasons), reasons=reasons)
        return HealthInfo(status="ok")


def _unfinished(request: Request, job: JobInfo) -> Response:
    """Answer that a job is unfinished, and when to ask again."""
    query = bytes(request.scope["query_string"]).decode("latin-1")
    wait = 1.0
    if job.state == "scheduled" and job.due is not None:
        wait = min(MAX_RETRY_AFTER, job.due.timestamp() - time.time())
    headers = {
        "Location": f"{path_of(request)}{'?' if query else ''}{query}",
        "Retry-After": str(max(1, math.ceil(wait))),
    }
    return Response(job.model_dump_json(), status_code=202, media_type="application/json", headers=headers)
