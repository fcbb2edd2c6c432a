"""The worker: calls handlers with the items of queues."""

from leasehold.retry import RetryPolicy
from leasehold.worker.handler import Handler
from leasehold.worker.health import Health
from leasehold.worker.outcomes import Reject, Retry, Signal, Snooze
from leasehold.worker.run import Interruption, Run, current_run
from leasehold.worker.worker import Worker

__all__ = [
    "Handler",
    "Health",
    "Interruption",
    "Reject",
    "Retry",
    "RetryPolicy",
    "Run",
    "Signal",
    "Snooze",
    "Worker",
    "current_run",
]
