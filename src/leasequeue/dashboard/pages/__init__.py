"""The pages and actions of the dashboard: each module declares its own."""

from leasequeue.dashboard.pages import (
    autoscaler,
    dead,
    flows,
    job,
    overview,
    queue,
    schedules,
    search,
    workers,
)

PAGES = (
    overview.PAGE,
    dead.PAGE,
    queue.PAGE,
    job.PAGE,
    search.PAGE,
    workers.PAGE,
    workers.ONE,
    schedules.PAGE,
    flows.PAGE,
    flows.OF_QUEUE,
    flows.RUN,
    autoscaler.PAGE,
)
ACTIONS = (*queue.ACTIONS, *job.ACTIONS, *dead.ACTIONS, *workers.ACTIONS, *schedules.ACTIONS, *flows.ACTIONS)
