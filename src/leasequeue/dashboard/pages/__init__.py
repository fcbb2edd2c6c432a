"""The pages and actions of the dashboard: each module declares its own."""

from leasequeue.dashboard.pages import overview, queue

PAGES = (overview.PAGE, queue.PAGE)
ACTIONS = (*queue.ACTIONS,)
