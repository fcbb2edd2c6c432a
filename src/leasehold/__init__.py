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
from leasehold.queue import AsyncWorkQueue, CleanReport, Counts, ItemView, Lease

__all__ = [
    "AsyncWorkQueue",
    "CleanReport",
    "ConnectionLost",
    "Counts",
    "EmbeddedServer",
    "EmbeddedServerError",
    "EvictionWarning",
    "InvalidArgument",
    "Item",
    "ItemView",
    "KeyPrefix",
    "Lease",
    "LeaseholdError",
    "QueueClosed",
    "ScriptFailed",
    "ServerBusy",
    "ServerError",
    "ServerOutOfMemory",
    "ServerReadOnly",
    "ServerRefused",
    "ServerTooOld",
    "WrongKeyType",
]
