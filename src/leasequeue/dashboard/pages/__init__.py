"""The pages and actions of the dashboard: each module declares its own."""

from leasequeue.dashboard.pages import flows, overview, queue

PAGES = (overview.PAGE, queue.PAGE, flows.PAGE, flows.OF_QUEUE, flows.RUN)
ACTIONS = (*queue.ACTIONS, *flows.ACTIONS)
