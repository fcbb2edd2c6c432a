"""schemathesis sends what OpenAPI allows, and what it does not, and checks the answers against it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from fastapi import Depends, FastAPI, HTTPException

from leasequeue import RetryPolicy, call_sync
from leasequeue.fastapi import lifespan, router

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasequeue import TaskQueue


def guard(token: str = "") -> None:
    """Refuse every second token."""
    if len(token) % 2:
        raise HTTPException(403)


@pytest.fixture
def app(tasks: TaskQueue) -> Iterator[FastAPI]:
    """Return an application with jobs in several states, of the ids that OpenAPI's examples have."""

    @tasks.task(retry=RetryPolicy(attempts=1))
    async def fail() -> None:
        raise ValueError("it is bad")

    for item_id in ("4f0c9e0b5a3d4b7f8f5e1c2d3a4b5c6d", "0"):
        call_sync(tasks.tasks[0].options(id=item_id).add, 1)
    call_sync(fail.options(id="1").add)
    app = FastAPI(lifespan=lifespan(tasks, worker=True))
    app.include_router(router(tasks, writes=[Depends(guard)], reads=[Depends(guard)]), prefix="/tasks")
    yield app
    call_sync(tasks.close)  # the connections of `call_sync` would stay open


@pytest.mark.slow
# schemathesis ignores this warning itself, by a filter that its threads share and may take from each other.
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
def test_each_answer_is_as_openapi_says(app: FastAPI) -> None:
    # Here, and its plugin of pytest not at all: importing it takes a second in each process of the tests.
    import schemathesis
    from schemathesis.config import SchemathesisConfig
    from schemathesis.engine import events, from_schema
    from schemathesis.python.asgi import shutdown_lifespans

    config = SchemathesisConfig.from_dict(
        {
            "seed": 15,
            "suppress-health-check": ["all"],  # on a busy machine, making examples takes its time
            "phases": {"stateful": {"enabled": False}},
            "generation": {"max-examples": 2, "database": "none"},
        }
    )
    api = schemathesis.openapi.from_asgi("/openapi.json", app, config=config)
    problems, answered = [], Counter[int]()
    for event in from_schema(api).execute():
        if isinstance(event, events.ScenarioFinished):
            found = event.recorder
            answered.update(one.response.status_code for one in found.interactions.values() if one.response)
            problems += [
                f"{one.failure_info.failure} {found.cases[case_id].value.as_curl_command()}"
                for case_id, checks in found.checks.items()
                for one in checks
                if one.failure_info
            ]
        elif isinstance(event, (events.NonFatalError, events.FatalError)):
            problems.append(f"{event}")
    shutdown_lifespans()
    assert not problems
    assert {200, 403, 404, 405, 422} <= answered.keys()


def test_all_answers_for_a_result_are_declared(app: FastAPI) -> None:
    answers = app.openapi()["paths"]["/tasks/jobs/{id}/result"]["get"]["responses"]
    codes = {200, 202, 204, 401, 403, 404, 410, 422, 424, 502, 503}
    assert answers.keys() == {f"{code}" for code in codes}
    for code in codes - {200, 202, 204}:
        (media_type,) = answers[f"{code}"]["content"]
        assert media_type == "application/problem+json"
        for example in answers[f"{code}"]["content"][media_type]["examples"].values():
            assert example["value"]["status"] == code
