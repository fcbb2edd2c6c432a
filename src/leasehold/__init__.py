"""Leasehold: an atomic work queue for asyncio on Redis or Valkey."""

from leasehold.embedded import EmbeddedServer
from leasehold.errors import (
    ConnectionLost,
    EmbeddedServerError,
    EvictionWarning,
    InvalidArgument,
    LeaseholdError,
    QueueClosed,
    ScriptFailed,
    ServerBusy,
    ServerError,
    ServerOutOfMemory,
    ServerReadOnly,
    ServerRefused,
    ServerTooOld,
    WrongKeyType,
)
from leasehold.item import Item
from leasehold.keys import KeyPrefix
from leasehold.queue import AsyncWorkQueue, CleanReport, Counts, DeadLetter, Failure, ItemView, Lease
from leasehold.retry import RetryPolicy

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
    "InvalidArgument",
    "Item",
    "ItemView",
    "KeyPrefix",
    "Lease",
    "LeaseholdError",
    "QueueClosed",
    "RetryPolicy",
    "ScriptFailed",
    "ServerBusy",
    "ServerError",
    "ServerOutOfMemory",
    "ServerReadOnly",
    "ServerRefused",
    "ServerTooOld",
    "WrongKeyType",
]
