"""Errors of the router as application/problem+json (RFC 9457), and as OpenAPI shows them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from leasequeue.errors import LeasequeueError
from leasequeue.errors.log import Log

MEDIA_TYPE = "application/problem+json"
#: When a client may repeat a request that failed because the server is unavailable (s).
RETRY_AFTER = 2

log = Log("leasequeue.fastapi")


@dataclass(frozen=True)
class ProblemType:
    """A kind of error.

    Attributes:
        name: The end of its `type`.
        repeats: Whether the same request may succeed a little later.
    """

    name: str
    status: int
    title: str
    repeats: bool = False

    @property
    def type(self) -> str:
        """The URI that identifies it."""
        return f"urn:leasequeue:{self.name}"


JOB_UNKNOWN = ProblemType("job-unknown", 404, "There is no such job, or nothing is kept of it")
QUEUE_UNKNOWN = ProblemType("queue-unknown", 404, "There is no such queue here")
JOB_ENDED = ProblemType("job-ended", 409, "The job has ended, so it cannot be cancelled")
JOB_CANCELLED = ProblemType("job-cancelled", 410, "The job was cancelled")
JOB_EXPIRED = ProblemType("job-expired", 410, "The job has expired: no worker had begun with it in time")
REQUEST_INVALID = ProblemType("request-invalid", 422, "The request is invalid")
JOB_FAILED = ProblemType("job-failed", 424, "The job has failed")
RESULT_UNREADABLE = ProblemType("result-unreadable", 502, "The job was done, but its result cannot be read")
SERVER_UNAVAILABLE = ProblemType("server-unavailable", 503, "The queue's server is unavailable", repeats=True)
NOT_READY = ProblemType("not-ready", 503, "The application is not ready", repeats=True)
#: What the dependencies that the application has set may answer.
LOGIN_MISSING = ProblemType("about:blank", 401, "Unauthorized")
FORBIDDEN = ProblemType("about:blank", 403, "Forbidden")

_SCHEMA: dict[str, Any] = {
    "title": "Problem",
    "description": "An error, by RFC 9457. Further members depend on its type.",
    "type": "object",
    "required": ["type", "title", "status"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string", "format": "uri-reference"},
    },
}


class ProblemFound(Exception):
    """A path operation answers with a problem."""

    def __init__(self, problem: ProblemType, detail: str, **members: Any) -> None:
        super().__init__(detail)
        self.problem = problem
        self.detail = detail
        self.members = members


class ProblemRoute(APIRoute):
    """A route whose errors are problems."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See FastAPI."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except ProblemFound as found:
                return _response(request, found)
            except RequestValidationError as error:
                return _response(request, _invalid(error))
            except HTTPException as error:
                return _of_application(error)
            except LeasequeueError as error:
                log.warning("%s %s: %s", request.method, path_of(request), error)
                detail = "Repeat the request." if error.transient else "See the log of the application."
                return _response(request, ProblemFound(SERVER_UNAVAILABLE, detail))

        return answer


def answers(*problems: ProblemType) -> dict[int | str, dict[str, Any]]:
    """Return what OpenAPI says of problems: a response for each status, with an example for each problem."""
    found: dict[int | str, dict[str, Any]] = {}
    for one in problems:
        examples = {_slug(one): {"summary": one.title, "value": _example(one)}}
        known = found.setdefault(
            one.status,
            {"description": one.title, "content": {MEDIA_TYPE: {"schema": _SCHEMA, "examples": {}}}},
        )
        if one.title not in known["description"]:
            known["description"] += f"; or: {one.title[0].lower()}{one.title[1:]}"
        known["content"][MEDIA_TYPE]["examples"] |= examples
        if one.repeats:
            known["headers"] = {
                "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}
            }
    return found


def _slug(one: ProblemType) -> str:
    return one.title.lower() if one.name == "about:blank" else one.name


def _example(one: ProblemType) -> dict[str, Any]:
    kind = one.name if one.name == "about:blank" else one.type
    return {"type": kind, "title": one.title, "status": one.status}


def _response(request: Request, found: ProblemFound) -> Response:
    one = found.problem
    body = {**_example(one), "detail": found.detail, "instance": path_of(request), **found.members}
    headers = {"Retry-After": str(RETRY_AFTER)} if one.repeats else {}
    return JSONResponse(body, status_code=one.status, headers=headers, media_type=MEDIA_TYPE)


def path_of(request: Request) -> str:
    """Return the path of a request as the client has sent it, with the root path of a proxy."""
    raw = request.scope.get("raw_path")  # servers may leave it out
    path = bytes(raw).decode("latin-1") if raw else quote(request.scope["path"])
    root = str(request.scope.get("root_path", ""))
    return path if path.startswith(root) else f"{root}{path}"


def _of_application(error: Any) -> Response:
    """Answer with an error of the application, such as one of its dependencies."""
    body = {"type": "about:blank", "title": error.detail, "status": error.status_code}
    return JSONResponse(body, status_code=error.status_code, headers=error.headers, media_type=MEDIA_TYPE)


def _invalid(error: RequestValidationError) -> ProblemFound:
    """Return what is wrong with a request, without the values, which may be no JSON."""
    wrong = []
    for one in error.errors():
        place, *names = one["loc"]
        wrong.append({"in": str(place), "name": ".".join(map(str, names)), "message": str(one["msg"])})
    detail = "; ".join(f"{one['name'] or one['in']}: {one['message']}" for one in wrong)
    return ProblemFound(REQUEST_INVALID, detail, errors=wrong)
