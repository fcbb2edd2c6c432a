"""Leasehold: an atomic work queue for asyncio on Redis or Valkey."""

from leasehold.embedded import EmbeddedServer
from leasehold.errors import (
    ConnectionLost,
    EmbeddedServerError,
    EvictionWarning,
    InvalidArgument,
    LeaseholdError,
    PayloadError,
    QueueClosed,
    ScriptFailed,
    ServerBusy,
    ServerError,
    ServerOutOfMemory,
    ServerReadOnly,
    ServerRefused,
    ServerTooOld,
    TimeLimitExceeded,
    WorkerBusy,
    WrongKeyType,
)
from leasehold.item import Item
from leasehold.keys import KeyPrefix
from leasehold.queue import AsyncWorkQueue, CleanReport, Counts, DeadLetter, Failure, ItemView, Lease
from leasehold.retry import RetryPolicy
from leasehold.worker import Health, Reject, Retry, Run, Snooze, Worker

__all__ = [
    "AsyncWorkQueue",
    "CleanReport",
    "ConnectionLost",
    "Counts",
    "DeadLetter",
    "EmbeddedServer",
    "EmbeddedServerError",
    "EvictionWarning",
    "Failure",
    "Health",
    "InvalidArgument",
    "Item",
    "ItemView",
    "KeyPrefix",
    "Lease",
    "LeaseholdError",
    "PayloadError",
    "QueueClosed",
    "Reject",
    "Retry",
    "RetryPolicy",
    "Run",
    "ScriptFailed",
    "ServerBusy",
    "ServerError",
    "ServerOutOfMemory",
    "ServerReadOnly",
    "ServerRefused",
    "ServerTooOld",
    "Snooze",
    "TimeLimitExceeded",
    "Worker",
    "WorkerBusy",
    "WrongKeyType",
]
