"""The workers of queues: who works, who is dead, and telling them what to do."""

from leasequeue.fleet.fleet import Fleet
from leasequeue.fleet.views import RunView, WorkerView

__all__ = ["Fleet", "RunView", "WorkerView"]
