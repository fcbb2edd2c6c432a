"""The worker: calls handlers with the items of queues."""

from leasequeue.worker.handler import Handler
from leasequeue.worker.health import Health
from leasequeue.worker.outcomes import HandedOver, Reject, Retry, Signal, Snooze
from leasequeue.worker.retry import RetryPolicy
from leasequeue.worker.run import Interruption, Run, current_run
from leasequeue.worker.stage_context import FanOut, Next, StageContext, correlation_id, current_stage, once
from leasequeue.worker.worker import Worker

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
