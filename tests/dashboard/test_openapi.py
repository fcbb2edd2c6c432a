"""schemathesis sends what the routes take, as OpenAPI says it, and no answer has a problem."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.responses import JSONResponse
from starlette.routing import Route

from leasequeue import AsyncWorkQueue
from leasequeue.dashboard import Rights, dashboard
from leasequeue.dashboard.action import FORM, Action
from leasequeue.dashboard.pages import ACTIONS, PAGES
from tests.dashboard.boards import parameters_of
from tests.dashboard.fleets import fill
from tests.dashboard.shown_pages import problems_of
from tests.dashboard.test_routes import PARTS

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

    from leasequeue.dashboard.view import Page


def openapi_of(app: Starlette) -> dict[str, Any]:
    """Return what OpenAPI would say of the routes: any text is a part of a path, a parameter or a field."""
    known: dict[str, Page | Action] = {one.path: one for one in PAGES} | {one.path: one for one in ACTIONS}
    paths = dict[str, Any]()
    text = {"type": "string", "maxLength": 40}
    value = {"anyOf": [text, {"const": "walk"}]}
    for route in app.routes:
        assert isinstance(route, Route)
        path = route.path.replace(":path", "")
        parts = [
            {"name": one, "in": "path", "required": True, "schema": {"anyOf": [{"const": PARTS[one]}, text]}}
            for one in re.findall(r"{(\w+)}", path)
        ]
        names = parameters_of(known[path]) if path in known else []
        query = [{"name": one, "in": "query", "schema": value} for one in names]
        fields = {"type": "object", "properties": {one["name"]: one["schema"] for one in query}}
        form = {"content": {FORM: {"schema": fields}}}
        answers = {"responses": {"default": {"description": "any"}}}
        paths[path] = {"get": {"parameters": [*parts, *query], **answers}}
        if "POST" in (route.methods or ()):
            paths[path]["post"] = {"parameters": parts, "requestBody": form, **answers}
    return {"openapi": "3.1.0", "info": {"title": "dashboard", "version": "1"}, "paths": paths}


@pytest.mark.slow
@pytest.mark.parametrize("examples", [5, pytest.param(60, marks=pytest.mark.long)])
# As in tests/fastapi/test_schema.py.
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
def test_random_requests_to_every_route_find_nothing(redis_url: str, examples: int) -> None:
    import schemathesis
    from schemathesis.config import SchemathesisConfig
    from schemathesis.engine import events, from_schema
    from schemathesis.python.asgi import shutdown_lifespans

    board = dashboard(redis_url, rights=Rights.all)
    document = openapi_of(board)

    async def openapi(_: Request) -> JSONResponse:
        async with AsyncWorkQueue.from_url(redis_url, "walk") as queue:
            await fill(queue, redis_url)
        return JSONResponse(document)

    board.router.routes.insert(0, Route("/openapi.json", openapi))
    config = SchemathesisConfig.from_dict(
        {
            "seed": 27,
            "suppress-health-check": ["all"],
            "phases": {"stateful": {"enabled": False}, "coverage": {"enabled": examples > 5}},
            "checks": {"enabled": False, "not_a_server_error": {"enabled": True}},
            "generation": {"mode": "positive", "max-examples": examples, "database": "none"},
        }
    )
    problems, answered = [], Counter[str]()
    for event in from_schema(schemathesis.openapi.from_asgi("/openapi.json", board, config=config)).execute():
        if isinstance(event, (events.NonFatalError, events.FatalError)):
            problems.append(f"{event.info if isinstance(event, events.NonFatalError) else event.exception!r}")
        for one in event.recorder.interactions.values() if isinstance(event, events.ScenarioFinished) else ():
            assert one.response is not None
            headers = {name: values[0] for name, values in one.response.headers.items()}
            answer = httpx.Response(one.response.status_code, headers=headers, content=one.response.content)
            problems += [
                f"{one.request.method} {one.request.uri}: {found}"
                for found in problems_of(answer)
                if found != "hidden data"
            ]
            answered[f"{one.request.method} {answer.status_code}"] += 1
    shutdown_lifespans()
    assert not problems
    assert {"GET 200", "GET 404", "POST 200", "POST 404"} <= answered.keys()
