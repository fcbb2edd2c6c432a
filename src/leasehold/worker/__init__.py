"""The worker: calls handlers with the items of queues."""

from leasehold.retry import RetryPolicy
from leasehold.worker.handler import Handler
from leasehold.worker.health import Health
from leasehold.worker.outcomes import HandedOver, Reject, Retry, Signal, Snooze
from leasehold.worker.returns import FanOut, Next
from leasehold.worker.run import Interruption, Run, current_run
from leasehold.worker.stage_context import StageContext, correlation_id, current_stage, once
from leasehold.worker.worker import Worker

__all__ = [
    "FanOut",
    "HandedOver",
    "Handler",
    "Health",
    "Interruption",
    "Next",
    "Reject",
    "Retry",
    "RetryPolicy",
    "Run",
    "Signal",
    "Snooze",
    "StageContext",
    "Worker",
    "correlation_id",
    "current_run",
    "current_stage",
    "once",
]
