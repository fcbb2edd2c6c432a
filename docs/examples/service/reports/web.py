"""The web service: `uvicorn reports.web:app`."""

import logging
import os
import secrets
from typing import Annotated

from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field

from leasequeue import ServerError, telemetry
from leasequeue.fastapi import lifespan, router
from reports.tasks import make_report, tasks

API_KEY = os.environ["API_KEY"]
log = logging.getLogger("reports")


def login(x_api_key: Annotated[str, Header()] = "") -> None:
    """Let only those in who know the key."""
    if not secrets.compare_digest(x_api_key.encode(), API_KEY.encode()):
        raise HTTPException(401, "X-Api-Key is missing or wrong")


app = FastAPI(title="Reports", lifespan=lifespan(tasks, worker=False))
# The state and results of jobs, counts of the queue, workers, /tasks/live and /tasks/ready.
app.include_router(router(tasks, reads=[Depends(login)], writes=[Depends(login)]), prefix="/tasks")

resource = Resource.create({"service.name": "reports-web"})
telemetry.instrument(meter_provider=MeterProvider([PrometheusMetricReader()], resource))


@app.get("/metrics", include_in_schema=False)
@app.get("/metrics/", include_in_schema=False)
def metrics() -> Response:
    """Answer with the metrics of this process, for Prometheus."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


@app.exception_handler(ServerError)
async def unavailable(_: Request, error: ServerError) -> JSONResponse:
    """Answer that the queue's server is away; the log of the process says why."""
    log.warning("an order failed: %s", error)
    return JSONResponse({"detail": "Repeat the order a little later."}, 503, {"Retry-After": "2"})


class Order(BaseModel):
    """An order of a report."""

    customer: str = Field(pattern=r"^[a-z]+$", examples=["ann"])
    month: str = Field(pattern=r"^\d{4}-\d\d$", examples=["2026-10"])


class Accepted(BaseModel):
    """An order that was accepted."""

    id: str
    created: bool | None


@app.post("/reports", status_code=202, dependencies=[Depends(login)])
async def order(order: Order, response: Response) -> Accepted:
    """Order a report, and return at once. An order that is unfinished is not repeated."""
    call = make_report.options(id=f"{order.customer}-{order.month}")
    job = await call.add(order.customer, order.month)
    response.headers["Location"] = f"/tasks/jobs/{job.id}/result"
    return Accepted(id=job.id, created=job.created)
