"""The pages and actions of the dashboard: each module declares its own."""

from leasequeue.dashboard.pages import dead, flows, job, overview, queue, search

PAGES = (
    overview.PAGE,
    dead.PAGE,
    queue.PAGE,
    job.PAGE,
    search.PAGE,
    flows.PAGE,
    flows.OF_QUEUE,
    flows.RUN,
)
ACTIONS = (*queue.ACTIONS, *job.ACTIONS, *dead.ACTIONS, *flows.ACTIONS)
