"""The worker: runs handlers on the items of queues, through deploys, crashes and slow code."""

from leasehold.retry import RetryPolicy
from leasehold.worker.handler import Handler
from leasehold.worker.health import Health
from leasehold.worker.outcomes import Reject, Retry, Signal, Snooze
from leasehold.worker.run import Run
from leasehold.worker.worker import Worker

__all__ = ["Handler", "Health", "Reject", "Retry", "RetryPolicy", "Run", "Signal", "Snooze", "Worker"]
