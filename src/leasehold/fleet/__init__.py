"""The workers of queues: who works, who is dead, and telling them what to do."""

from leasehold.fleet.fleet import Fleet
from leasehold.fleet.views import RunView, WorkerView

__all__ = ["Fleet", "RunView", "WorkerView"]
