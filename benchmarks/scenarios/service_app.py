"""The example service with two more endpoints. Import it when REDIS_URL and API_KEY are set."""

from fastapi import Depends, Response

from reports.tasks import make_report
from reports.web import Accepted, Order, app, login

__all__ = ["app"]

#: How long a request waits for its report.
WAIT_SECONDS = 30


@app.post("/plain", status_code=202, dependencies=[Depends(login)])
async def plain(order: Order, response: Response) -> Accepted:
    """Answer as the example does, without a queue."""
    job_id = f"{order.customer}-{order.month}"
    response.headers["Location"] = f"/tasks/jobs/{job_id}/result"
    return Accepted(id=job_id, created=True)


@app.post("/run", status_code=202, dependencies=[Depends(login)])
async def run(order: Order) -> float:
    """Order a report, and return its total."""
    job = await make_report.add(order.customer, order.month)
    report = await job.result(timeout=WAIT_SECONDS)
    return report.total
